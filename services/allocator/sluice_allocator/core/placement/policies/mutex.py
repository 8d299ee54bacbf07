"""
`mutex`: only GPUs on which nothing is booked.

    filter: nothing booked; ranks no device

The pod has the GPU to itself at first; others may join later. Source: HAMi, `hami.io/gpu-scheduler-policy: mutex`
(https://github.com/Project-HAMi/HAMi, docs).
"""

from sluice_allocator.core.placement.policies.policy import DeviceUse, GpuRule


def _no_opinion(_use: DeviceUse) -> tuple[int, ...]:
    return ()


GPUS = GpuRule(_no_opinion, idle_only=True)
