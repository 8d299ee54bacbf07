"""Finds one empty device: a place for a MIG instance, or a whole GPU; given exclusively, or made a home. Buckets are
walked in order of preference until one has a node with room. There is one per layout state, however many GPUs are on
it, so the cost does not grow with the cluster."""

from collections.abc import Callable

import msgspec

from sluice.contracts.messages import DeviceGrant, Share
from sluice.mig.model import Profile
from sluice_allocator.core.placement.index.node_class import NodeClass
from sluice_allocator.core.placement.nodes.bucket import Bucket
from sluice_allocator.core.placement.nodes.device_spec import DeviceSpec
from sluice_allocator.core.placement.nodes.gpu import Gpu, Span, grant_of
from sluice_allocator.core.placement.nodes.node import Node
from sluice_allocator.core.placement.search.context import SearchContext
from sluice_allocator.core.placement.search.score import cpu_ratio_distance, node_key, percent_of, tail, whole_use
from sluice_allocator.core.placement.spec.policies import Policy


class DeviceFit(msgspec.Struct, frozen=True):
    """One device that serves the claim. `key` ranks it among those found under the same policy; smallest is best."""

    key: tuple[int, ...]
    policy: Policy
    node: Node
    gpu: Gpu
    span: Span
    share: Share | None = None

    def grant(self, container: str) -> DeviceGrant:
        return grant_of(container, self.gpu, self.span, self.share)


def better(found: DeviceFit | None, best: DeviceFit | None) -> DeviceFit | None:
    """The better of two, whatever the order in which they were found."""
    if found is None or best is None:
        return found or best
    if found.policy is best.policy:
        return found if found.key < best.key else best
    return found if (found.key[:2], found.node.number) < (best.key[:2], best.node.number) else best


def find_whole(
    context: SearchContext, spec: DeviceSpec, group: NodeClass, kind: str, share: Share | None = None
) -> DeviceFit | None:
    """An idle GPU without MIG: to be given whole, or to become the home of a share."""
    bucket = group.whole.get(kind)
    if not bucket:
        return None
    policy = context.policy(group)
    cpu_per_gpu = context.cpu_per_gpu(percent_of(group.samples[kind], share) if share is not None else 100)
    found = bucket.find(context.need, policy.nodes, _gpu_in(context, spec, bucket), cpu_per_gpu)
    if found is None:
        return None
    node, gpu = found
    near = cpu_ratio_distance(policy, node, cpu_per_gpu)
    rank = (near, gpu.memory_mib, *node_key(policy, node), *policy.key(whole_use(gpu)), *tail(cpu_per_gpu, node, gpu))
    return DeviceFit(rank, policy, node, gpu, gpu.whole_span, share)


def find_instance(  # noqa: PLR0917  # one step of two searches
    context: SearchContext,
    spec: DeviceSpec,
    group: NodeClass,
    sample: Gpu,
    profile: Profile,
    best: DeviceFit | None,
    share: Share | None = None,
) -> DeviceFit | None:
    """A place for a MIG instance: the first state on the list in which some GPU with room is."""
    states = group.states.get(sample.kind)
    if not states:
        return None
    policy = context.policy(group)
    any_node = policy.nodes == "any"
    cpu_per_gpu = context.cpu_per_gpu(100 * profile.memory_mib // max(1, sample.memory_mib))
    answer: DeviceFit | None = None
    for layout_choice in context.cluster.index.layout_orders.of(sample, profile, policy):
        bucket = states.get(layout_choice[1])
        if bucket is None:
            continue
        rank, _, choice = layout_choice
        if any_node and best is not None and best.policy is policy and (0, profile.memory_mib, *rank) >= best.key:
            break
        found = bucket.find(context.need, policy.nodes, _gpu_in(context, spec, bucket), cpu_per_gpu)
        if found is None:
            continue
        node, gpu = found
        near = cpu_ratio_distance(policy, node, cpu_per_gpu) if spec.whole else 0  # a requested size goes before it
        size = _memory_of_home(sample, profile, share)
        key = (near, size, *node_key(policy, node), *rank, *tail(cpu_per_gpu, node, gpu))
        answer = better(DeviceFit(key, policy, node, gpu, (profile.name, choice.start, choice.size), share), answer)
        if any_node:
            break
    return answer


def _memory_of_home(gpu: Gpu, profile: Profile, share: Share | None) -> int:
    """The memory of an instance; as the home of a share, one that is all of its GPU comes after a GPU without MIG."""
    full = share is not None and profile.name == gpu.full_profile
    return max(profile.memory_mib, gpu.report.memory_mib) + 1 if full else profile.memory_mib


def _gpu_in(context: SearchContext, spec: DeviceSpec, bucket: Bucket) -> Callable[[Node], Gpu | None]:
    def accept(node: Node) -> Gpu | None:
        if context.admits(node):
            for gpu in node.gpus:
                if gpu.bucket is bucket and context.may_use(gpu, spec):
                    return gpu
        return None

    return accept
