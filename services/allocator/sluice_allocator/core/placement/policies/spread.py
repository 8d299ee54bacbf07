"""
`spread`: the emptiest node; on it the emptiest GPU.

    key = (used_permille, -free_slices)

Gives every pod as much of a GPU's caches and bandwidth as is free now, and leaves no whole GPU for later requests:
never a default. Source: HAMi (https://github.com/Project-HAMi/HAMi, pkg/scheduler/policy), the same score as binpack,
the smallest is taken.
"""

from sluice_allocator.core.placement.policies.policy import DeviceUse, GpuRule, NodeOrder


def emptiest_first(use: DeviceUse) -> tuple[int, ...]:
    """The least used device is smallest."""
    return (use.used_permille, -use.free_slices)


NODES: NodeOrder = "emptiest"
GPUS = GpuRule(emptiest_first)
