"""
`binpack`: the fullest node; on it the fullest GPU.

    key = (-used_permille, free_slices)

Of equally used GPUs the one with fewer free slices, the smaller GPU.
Source: HAMi, `hami.io/node-scheduler-policy` and `hami.io/gpu-scheduler-policy`
(https://github.com/Project-HAMi/HAMi, pkg/scheduler/policy): the sum of used slots, cores and memory over their totals,
before the pod is added; the largest is taken. Ours has no slots. Nodes are compared by the pool's weights; a GPU is
compared by what limits it: memory slices, or what the shares in a home are counted by.
"""

from sluice_allocator.core.placement.policies.policy import DeviceUse, GpuRule, NodeOrder


def fullest_first(use: DeviceUse) -> tuple[int, ...]:
    """The most used device is smallest."""
    return (-use.used_permille, use.free_slices)


NODES: NodeOrder = "fullest"
GPUS = GpuRule(fullest_first)
