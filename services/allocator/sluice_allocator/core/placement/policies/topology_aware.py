"""
`topology-aware`: of the GPUs that fit, the set that is closest to each other; for one GPU the worst linked.

    the set with the largest sum of pair scores (core/placement/topology.py)

It chooses the set, so it ranks no single device: what the rest of a chain says orders the places within the set.
Source: HAMi, `hami.io/gpu-scheduler-policy: topology-aware` (https://github.com/Project-HAMi/HAMi, docs).
"""

from sluice_allocator.core.placement.policies.policy import DeviceUse, GpuRule


def _no_opinion(_use: DeviceUse) -> tuple[int, ...]:
    return ()


GPUS = GpuRule(_no_opinion, linked=True)
