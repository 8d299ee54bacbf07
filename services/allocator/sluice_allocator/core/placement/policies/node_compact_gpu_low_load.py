"""
`node-compact-gpu-low-load`: pack nodes, so that whole nodes stay free, and spread over the GPUs inside a node.

    key = (used_permille, -free_slices)

Source: tensor-fusion, NodeCompactGPULowLoad, its default (https://github.com/NexusGPU/tensor-fusion,
internal/gpuallocator): the used percent decides between nodes, the available percent between GPUs.
"""

from sluice_allocator.core.placement.policies.policy import GpuRule, NodeOrder
from sluice_allocator.core.placement.policies.spread import emptiest_first

NODES: NodeOrder = "fullest"
GPUS = GpuRule(emptiest_first)
