"""
`numa`: GPUs of one NUMA node next to each other, the lowest NUMA node first.

    key = (numa,), GPUs that report none last

A preference: `numa-bind` is the demand. Source: HAMi, `hami.io/gpu-scheduler-policy: numa`
(https://github.com/Project-HAMi/HAMi, docs).
"""

from sluice_allocator.core.placement.policies.policy import DeviceUse, GpuRule

UNKNOWN = 1 << 16
"""After every NUMA node there is."""


def _by_numa(use: DeviceUse) -> tuple[int, ...]:
    return (UNKNOWN if use.numa is None else use.numa,)


GPUS = GpuRule(_by_numa)
