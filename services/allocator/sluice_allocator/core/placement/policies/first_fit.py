"""
`first-fit`: the first node that fits, its first GPU that fits, the lowest free start. The baseline to compare with.

    key = order

It is what device plugins and several schedulers of this field do: tensor-fusion takes the first free start in list
order (https://github.com/NexusGPU/tensor-fusion, internal/gpuallocator). On an empty A100 it puts a 1g at start 0,
which costs the only 4g placement.
"""

from sluice_allocator.core.placement.policies.policy import DeviceUse, GpuRule, NodeOrder


def _in_order(use: DeviceUse) -> tuple[int, ...]:
    return (use.order,)


NODES: NodeOrder = "first"
GPUS = GpuRule(_in_order, lowest_start=True)
