"""Finds one empty device (an instance, or a whole GPU, given or made a home), or one share in a home. Buckets, one per
layout state, are walked in order of preference until one has a node with room."""

from collections.abc import Callable

import msgspec

from sluice.contracts.messages import DeviceGrant, Share
from sluice.contracts.reasons import WaitReason
from sluice.mig.model import Profile
from sluice_allocator.core.placement.index.node_class import NodeClass, SharedDevicesKey, bucket_numbers_for
from sluice_allocator.core.placement.nodes.bucket import Bucket, GivenUp
from sluice_allocator.core.placement.nodes.device_spec import DeviceSpec
from sluice_allocator.core.placement.nodes.gpu import Gpu, SharedDeviceOnGpu, Span, grant_of
from sluice_allocator.core.placement.nodes.node import Node
from sluice_allocator.core.placement.search.context import (
    SearchContext,
    cpu_ratio_distance,
    home_use,
    node_key,
    percent_of,
    tail,
    whole_use,
)
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
        size = profile.memory_mib
        if share is not None and profile.name == sample.full_profile:  # as a home it comes after a GPU without MIG
            size = max(size, sample.report.memory_mib) + 1
        key = (near, size, *node_key(policy, node), *rank, *tail(cpu_per_gpu, node, gpu))
        answer = better(DeviceFit(key, policy, node, gpu, (profile.name, choice.start, choice.size), share), answer)
        if any_node:
            break
    return answer


def _gpu_in(context: SearchContext, spec: DeviceSpec, bucket: Bucket) -> Callable[[Node], Gpu | None]:
    def accept(node: Node) -> Gpu | None:
        if context.admits(node):
            for gpu in node.gpus:
                if gpu.bucket is bucket and context.may_use(gpu, spec):
                    return gpu
        return None

    return accept


_Found = tuple[Node, SharedDeviceOnGpu | GivenUp] | None
HOMES_TRIED_MAX = 64  # most homes tried on one bucket: a high enough level may still lack time or memory


def find_share(context: SearchContext, spec: DeviceSpec, mode: str) -> DeviceFit | None:
    """In an existing home; in a new one where none has room, or where the policy prefers an idle GPU."""
    there = new = None
    groups = [group for group in context.groups() if mode in group.modes]
    for group in groups:
        policy = context.policy(group)
        if policy.idle_only:
            continue
        for key in group.homes_of.get((spec.domain, mode), ()):
            sample = group.samples[key[2]]
            share = spec.share_on(sample, mode)
            if not isinstance(share, WaitReason):
                there = better(_in_home(context, spec, group, key, share), there)
    if there is not None and there.policy.packs:
        return there
    for group in groups:
        for sample in group.samples.values():
            share = spec.share_on(sample, mode)
            if not isinstance(share, WaitReason):
                new = better(_in_new_home(context, spec, group, sample, share), new)
    if there is None or new is None:
        return there or new
    return new if new.key[2:] < there.key[2:] else there


def _in_home(
    context: SearchContext, spec: DeviceSpec, group: NodeClass, key: SharedDevicesKey, share: Share
) -> DeviceFit | None:
    """An existing home of the trust domain: the one with least to spare, unless the policy says otherwise."""
    _, _, kind, profile = key
    sample, sorted_buckets, policy = group.samples[kind], group.homes[key], context.policy(group)
    size = group.home_sizes[kind, profile]
    cpu_per_gpu = context.cpu_per_gpu(percent_of(sample, share))
    answer: DeviceFit | None = None
    for bucket_number in bucket_numbers_for(sorted_buckets, share, size):
        bucket = sorted_buckets.by_number[bucket_number]
        accept = _home_in(context, spec, bucket, share)
        found: _Found = bucket.find(context.need, policy.nodes, accept, cpu_per_gpu)
        if found is None or isinstance(found[1], GivenUp):
            continue
        node, at_home = found[0], found[1]
        ahead: tuple[int, ...] = (bucket_number,)
        if not policy.plain:
            ahead = policy.key(home_use(at_home.gpu, at_home.home, bucket_number))[:-1]
        rank = (0, 0, *node_key(policy, node), *ahead, *tail(cpu_per_gpu, node, at_home.gpu))
        answer = better(DeviceFit(rank, policy, node, at_home.gpu, at_home.key, share), answer)
        if policy.nodes == "any" and policy.packs:
            break
    return answer


def _home_in(
    context: SearchContext, spec: DeviceSpec, bucket: Bucket, share: Share
) -> Callable[[Node], SharedDeviceOnGpu | GivenUp | None]:
    left = HOMES_TRIED_MAX

    def accept(node: Node) -> SharedDeviceOnGpu | GivenUp | None:
        nonlocal left
        if not context.admits(node):
            return None
        for gpu in node.gpus:
            for at_home in gpu.homes.values():
                if at_home.bucket is bucket and context.may_use(gpu, spec):
                    if at_home.home.why_not(share) is None:
                        return at_home
                    left -= 1
        return GivenUp() if left <= 0 else None

    return accept


def _in_new_home(
    context: SearchContext, spec: DeviceSpec, group: NodeClass, sample: Gpu, share: Share
) -> DeviceFit | None:
    if not sample.mig:
        fits = context.cluster.tenancy.size(sample, None).fits_alone(share)
        return find_whole(context, spec, group, sample.kind, share) if fits else None
    for name in spec.home_profiles(sample, share, group.pool.overcommit_percent):
        profile = sample.model.profile(name)
        found = find_instance(context, spec, group, sample, profile, None, share) if profile is not None else None
        if found is not None:
            return found
    return None


def find_part(context: SearchContext, spec: DeviceSpec, percent: int) -> DeviceFit | None:
    """A percentage of one GPU: one with enough left, else an idle one."""
    if percent > 100 or percent % context.cluster.rules.shares_quantum_percent:
        return None
    best: DeviceFit | None = None
    groups = [group for group in context.groups() if "fractional" in group.modes]
    for group in groups:
        for key in group.homes_of.get((spec.domain, "fractional"), ()):
            sample = group.samples[key[2]]
            if key[3] == sample.full_profile and spec.admits(sample) is None and not context.policy(group).idle_only:
                best = better(_in_home(context, spec, group, key, spec.part_of(sample, percent)), best)
    if best is not None:
        return best
    for group in groups:
        for sample in group.samples.values():
            if spec.admits(sample) is None:
                best = better(_on_idle(context, spec, group, sample, spec.part_of(sample, percent)), best)
    return best


def _on_idle(context: SearchContext, spec: DeviceSpec, group: NodeClass, sample: Gpu, share: Share) -> DeviceFit | None:
    if not sample.mig:
        return find_whole(context, spec, group, sample.kind, share)
    largest = sample.model.profile(sample.full_profile or "")
    return find_instance(context, spec, group, sample, largest, None, share) if largest is not None else None
