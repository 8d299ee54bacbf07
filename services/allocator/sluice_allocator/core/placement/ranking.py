"""Compares devices that would all fit: by node, by how full they are, and by what they fragment."""

from sluice.contracts.messages import Share
from sluice_allocator.core.placement.gpus import Gpu, HomeKey
from sluice_allocator.core.placement.hosts import NO_WEALTH, Node
from sluice_allocator.core.placement.policies import DeviceUse, Policy


def full_profile(gpu: Gpu) -> str | None:
    """The profile of a home that is all of a GPU; None for a GPU without MIG."""
    return gpu.model.largest.name if gpu.mig and gpu.model.profiles else None


def whole_span(gpu: Gpu) -> HomeKey:
    """The span of a GPU without MIG."""
    return None, 0, max(1, gpu.report.memory_slices)


def whole_use(gpu: Gpu) -> DeviceUse:
    """An empty GPU."""
    return DeviceUse(0, gpu.model.memory_slices, (), gpu.report.numa_node, gpu.report.index)


def percent_of(gpu: Gpu, share: Share) -> int:
    """How much of a GPU a share takes, in whole percent."""
    return share.sm_partition or max(1, 100 * share.memory_mib // max(1, gpu.memory_mib))


def nearness(policy: Policy, node: Node, wealth: int) -> int:
    """How far a node's CPU per GPU is from the pod's, where the policy uses it."""
    known = node.facts is not None and wealth != NO_WEALTH
    return abs(node.wealth - wealth) if policy.nodes == "any" and known else 0


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


def tail(wealth: int, node: Node, gpu: Gpu) -> tuple[int, ...]:
    """The tie-breaker: the node nearest in CPU per GPU, the poorer, the one known first, its first GPU."""
    if node.facts is None or wealth == NO_WEALTH:
        return 0, 0, node.number, gpu.report.index
    return abs(node.wealth - wealth), node.wealth, node.number, gpu.report.index
