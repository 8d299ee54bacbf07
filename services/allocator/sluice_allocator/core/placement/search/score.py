"""Compares devices that would all fit: by node, by how full they are, and by what they fragment."""

from sluice.contracts.messages import Share
from sluice_allocator.core.placement.nodes.gpu import Gpu
from sluice_allocator.core.placement.nodes.node import ANY_CPU_PER_GPU, Node
from sluice_allocator.core.placement.spec.policies import DeviceUse, Policy


def whole_use(gpu: Gpu) -> DeviceUse:
    return DeviceUse(0, gpu.model.memory_slices, (), gpu.report.numa_node, gpu.report.index)


def percent_of(gpu: Gpu, share: Share) -> int:
    """How much of a GPU a share takes, in whole percent."""
    return share.sm_partition or max(1, 100 * share.memory_mib // max(1, gpu.memory_mib))


def cpu_ratio_distance(policy: Policy, node: Node, cpu_per_gpu: int) -> int:
    """How far a node's CPU per GPU is from the pod's, where the policy uses it."""
    known = node.facts is not None and cpu_per_gpu != ANY_CPU_PER_GPU
    return abs(node.cpu_per_gpu - cpu_per_gpu) if policy.nodes == "any" and known else 0


def node_key(policy: Policy, node: Node) -> tuple[int, ...]:
    """The part of a policy's key that orders nodes before devices; () where devices decide."""
    match policy.nodes:
        case "fullest":
            return -node.usage, node.number
        case "emptiest":
            return node.usage, node.number
        case "first":
            return (node.number,)
        case _:
            return ()


def tail(cpu_per_gpu: int, node: Node, gpu: Gpu) -> tuple[int, ...]:
    """The tie-breaker: the node nearest in CPU per GPU, the poorer, the one known first, its first GPU."""
    if node.facts is None or cpu_per_gpu == ANY_CPU_PER_GPU:
        return 0, 0, node.number, gpu.report.index
    return abs(node.cpu_per_gpu - cpu_per_gpu), node.cpu_per_gpu, node.number, gpu.report.index
