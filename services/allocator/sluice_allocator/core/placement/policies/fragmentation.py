"""
`fragmentation` (the default): the device on which the place costs least of what may still be asked.

    key = rank

The rank is computed where the layouts are known: for an instance the fewest free memory slices on the GPU, then the
smallest growth of slices that no asked profile could use, then the fewest lost placements, then the highest start.
The middle term is the expected fragmentation of Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing
Workloads with Fragmentation Gradient Descent", USENIX ATC 2023, over placements instead of shares.
"""

from sluice_allocator.core.placement.policies.policy import DeviceUse, GpuRule, NodeOrder


def _no_opinion(_use: DeviceUse) -> tuple[int, ...]:
    return ()  # the rank follows in every policy


NODES: NodeOrder = "any"
GPUS = GpuRule(_no_opinion)
