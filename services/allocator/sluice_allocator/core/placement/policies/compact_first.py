"""
`compact-first`: pack nodes, and pack the GPUs inside a node.

    key = (-used_permille, free_slices)

Source: tensor-fusion, CompactFirst (https://github.com/NexusGPU/tensor-fusion, internal/gpuallocator): the used percent
of VRAM and TFLOPS, weighted, at both levels; the largest is taken. Ours counts SMs instead of TFLOPS (equal within a
model), and compares nodes by their ratio: the sum over all GPUs of a node, as it is there, prefers large nodes to full
ones. A GPU is compared as by `binpack`.
"""

from sluice_allocator.core.placement.policies.binpack import fullest_first
from sluice_allocator.core.placement.policies.policy import GpuRule, NodeOrder

NODES: NodeOrder = "fullest"
GPUS = GpuRule(fullest_first)
