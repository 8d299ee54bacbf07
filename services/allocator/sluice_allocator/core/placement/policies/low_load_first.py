"""
`low-load-first`: spread over nodes, and over the GPUs inside a node.

    key = (used_permille, -free_slices)

Source: tensor-fusion, LowLoadFirst (https://github.com/NexusGPU/tensor-fusion, internal/gpuallocator): the available
percent of VRAM and TFLOPS, weighted, at both levels; the largest is taken. What `compact-first` says of SMs and of
nodes' ratios holds here.
"""

from sluice_allocator.core.placement.policies.policy import GpuRule, NodeOrder
from sluice_allocator.core.placement.policies.spread import emptiest_first

NODES: NodeOrder = "emptiest"
GPUS = GpuRule(emptiest_first)
