"""Explains why nothing fits: every reason counted per class of nodes and of GPUs, never per GPU. It reads the classes
and buckets that searches read, so neither its cost nor the size of its answer grows with the cluster. For a bucket
whose nodes lack room it reports what the first nodes on it lack."""

from collections import Counter
from collections.abc import Iterator

from msgspec.structs import replace

from sluice.contracts.messages import Share
from sluice.contracts.reasons import KNOWN_AS, ReasonCount, WaitReason, shorten
from sluice.mig.model_names import is_known, is_meant, suggestions
from sluice_allocator.core.placement.cluster.cluster_state import ClusterState
from sluice_allocator.core.placement.explain.capacity_bound import never_on
from sluice_allocator.core.placement.explain.impossible import where_nothing_is, why_impossible
from sluice_allocator.core.placement.explain.no_gpu_fits import listed
from sluice_allocator.core.placement.explain.reason_table import IN_WORDS
from sluice_allocator.core.placement.index.node_class import NodeClass
from sluice_allocator.core.placement.nodes.bucket import Bucket, SortedBuckets
from sluice_allocator.core.placement.nodes.device_spec import DeviceSpec
from sluice_allocator.core.placement.nodes.gpu import WHOLE_GPU, Gpu
from sluice_allocator.core.placement.nodes.node import Node
from sluice_allocator.core.placement.search.context import PASSES, NoPlace, Place, SearchContext, groups_in, prepare
from sluice_allocator.core.placement.search.find import best_place, find_free, find_one
from sluice_allocator.core.placement.spec.place_request import Avoid, PlaceRequest, without_shunned_nodes

REASONS_MAX = 20  # most reasons listed; the others are only counted
BUCKETS_MAX = 64
_NODES_LOOKED_AT = 4
_IN_SENTENCE = 5
Tally = Counter[tuple[WaitReason, str, str]]  # counts by reason, what is counted, and class of nodes


def find_place(cluster: ClusterState, request: PlaceRequest, avoid: Avoid = frozenset()) -> Place | NoPlace:
    """The best place for all claims on one node; or why there is none."""
    place = find_free(cluster, request, avoid)
    return place if place is not None else explain(cluster, request, avoid)


def explain(cluster: ClusterState, request: PlaceRequest, avoid: Avoid = frozenset()) -> NoPlace:
    context = prepare(cluster, without_shunned_nodes(request) if request.host.shun else request, avoid)
    return _explain(context, _apart(context) if context.together else ())


def _apart(context: SearchContext) -> tuple[str, ...]:
    """The containers of a first group that no GPU has room for together now; empty where each group has one."""
    for group in groups_in(context.together):
        alone = replace(context.request, claims=tuple(context.request.claims[number] for number in group), steps=())
        if best_place(prepare(context.cluster, alone, context.avoid)) is None:
            return tuple(claim.container for claim in alone.claims)
    return ()


def _explain(context: SearchContext, apart: tuple[str, ...] = ()) -> NoPlace:
    """Why the search has no place now. `apart`: containers that must share a GPU, and that none has room for."""
    cluster = context.cluster
    if not cluster.gpus:
        words = f"{IN_WORDS[WaitReason.NO_NODES]}{where_nothing_is(context)}"
        return NoPlace(words, (_reason(WaitReason.NO_NODES, 0, "nodes", ""),))
    impossible = why_impossible(context)
    tally: Tally = Counter()
    is_bound = any(claim.numa_bind for claim in context.request.claims)
    several = is_bound or sum(claim.gpus for claim in context.request.claims) > 1
    specs = dict.fromkeys(context.specs)
    for spec in specs:
        of_this: Tally = Counter()
        _tally(context, spec, of_this)
        tally |= of_this  # the most over the claims: a reason never counts more GPUs than there are
    for uuid in context.avoid:
        if uuid in cluster.gpus:
            gpu = cluster.gpus[uuid]
            node = cluster.nodes[gpu.node]
            words = cluster.index.class_of(node).words if node.gpus else ""
            tally[WaitReason.GPU_AVOIDED, gpu.report.model, words] += 1
    # where some claim has no place for even one device, that is the reason, and not that there are too few
    is_short_of_one = several and impossible is None and any(find_one(context, each) is None for each in specs)
    if not tally or (several and impossible is None and not is_short_of_one):
        why = WaitReason.NUMA_NOT_FIT if is_bound else WaitReason.TOO_FEW_GPUS_ON_NODE
        if apart:
            tally, why = Counter(), WaitReason.ONE_GPU_NOT_FIT
        tally[why, "nodes", ""] = cluster.usable_nodes()
    ordered = sorted(tally.items(), key=lambda item: (-item[1], item[0][1], item[0][0], item[0][2]))
    reasons = tuple(_reason(reason, count, of, on) for (reason, of, on), count in ordered)
    if impossible is not None:
        lead = _reason(WaitReason.NO_NODE_CAN_FIT, len(cluster.shown), "nodes", "")
        first = impossible.reason
        its = tuple(each for each in reasons if each.reason is first) or (_reason(first, lead.count, "nodes", ""),)
        reasons = (*its, *(each for each in reasons if each.reason is not first))
        words = impossible.words or f"{IN_WORDS[WaitReason.NO_NODE_CAN_FIT]} ({_sentence(reasons)})"
        return NoPlace(f"{words}{_did_you_mean(context)}", *_bounded((lead, *reasons)))
    is_apart = reasons[0].reason is WaitReason.ONE_GPU_NOT_FIT
    words = f"no GPU has room for all of {listed(apart)}" if is_apart else _sentence(reasons)
    return NoPlace(words, *_bounded(reasons))


def _did_you_mean(context: SearchContext) -> str:
    """The nearest model, if a claim names one that is neither known nor here: a typo would wait without end."""
    here = tuple(context.cluster.models())
    products = [name for model in here for name in model.product_names]
    for part in dict.fromkeys(part for claim in context.request.claims for part in claim.only.models):
        is_there = is_known(part) or any(is_meant(name, part) for name in products)
        if not is_there and (near := suggestions(part, here)):
            return f"; {shorten(part, 60)!r} names no known GPU model: did you mean {' or '.join(near)}?"
    return ""


def _tally(context: SearchContext, spec: DeviceSpec, tally: Tally) -> None:
    for group in context.cluster.index.classes.values():
        why = context.why_not(group)
        if why is not None:
            tally[why, "nodes", group.words] += len(group.nodes)
            continue
        beside = context.kept_out(group)
        if beside is not None:
            if group.nodes:
                tally[beside, "nodes", group.words] += len(group.nodes)
            continue
        for sample in group.samples.values():
            _tally_kind(context, spec, group, sample, tally)
    for group, reason, gpu, count in context.cluster.index.out_of_use():
        kept_out = context.why_not(group)
        impossible = kept_out if kept_out not in PASSES else None
        impossible = impossible or never_on(spec, group, gpu, substitute=context.request.substitute)
        tally[impossible or reason, gpu.report.model, group.words] += count


def _tally_kind(context: SearchContext, spec: DeviceSpec, group: NodeClass, sample: Gpu, tally: Tally) -> None:
    impossible = never_on(spec, group, sample, substitute=context.request.substitute)
    in_use = group.in_use(sample.kind)
    if impossible is not None:
        if in_use:
            tally[impossible, sample.report.model, group.words] += in_use
        return
    for reason, count in _why_full(context, spec, group, sample):
        tally[reason, sample.report.model, group.words] += count
    _tally_homes(context, spec, group, sample, tally)


def _why_full(
    context: SearchContext, spec: DeviceSpec, group: NodeClass, sample: Gpu
) -> Iterator[tuple[WaitReason, int]]:
    names, kind = _profiles(spec, group, sample), sample.kind
    idle_only = context.policy(group).idle_only
    for state, bucket in group.states.get(kind, {}).items():
        if idle_only and bucket and state != sample.table.empty:
            yield WaitReason.GPU_NOT_IDLE, bucket.devices
            continue
        lacks = [sample.table.why_not(state, name) for name in names]
        if bucket and all(lacks):
            full = WaitReason.GPU_LAYOUT_FULL if sample.layout is None else WaitReason.GPU_INSTANCES_TAKEN
            yield WaitReason.GPU_ENGINES_USED_UP if "slices" not in lacks else full, bucket.devices
        elif bucket:
            yield from _why_no_node(context, spec, bucket)
    if kind in group.whole:
        yield from _why_no_node(context, spec, group.whole[kind])
    homes = sum(count for (of, profile), count in group.home_count.items() if of == kind and profile is None)
    given = len(group.booked_whole.get(kind, ())) - homes
    if given > 0:
        yield WaitReason.GPU_NOT_IDLE, given


def _profiles(spec: DeviceSpec, group: NodeClass, sample: Gpu) -> list[str]:
    if spec.claim.shares_percent is not None:
        return [name for name in [sample.full_profile] if name is not None]
    offers = spec.offers_on(sample, group.pool.overcommit_percent)
    names = dict.fromkeys(profile for _, profile, _ in offers)
    return [] if WHOLE_GPU in names else list(names)


def _why_no_node(context: SearchContext, spec: DeviceSpec, bucket: Bucket) -> Iterator[tuple[WaitReason, int]]:
    """The device would fit; its nodes, or the claim's lists of GPUs, exclude it."""
    for node in bucket.some(_NODES_LOOKED_AT):
        reason = _why_not_node(context, spec, node, bucket)
        if reason is not None:
            yield reason, bucket.devices
            return


def _why_not_node(context: SearchContext, spec: DeviceSpec, node: Node, bucket: Bucket) -> WaitReason | None:
    host = context.request.host
    if host.node_name not in {"", node.name}:
        return WaitReason.NODE_NOT_NAMED
    reason = context.why_not_on(node) or node.why_no_room(context.need)
    if reason is not None:
        return reason
    there = [gpu for gpu in node.gpus if gpu.bucket is bucket or any(at.bucket is bucket for at in gpu.homes.values())]
    return WaitReason.GPU_UUID_MISMATCH if all(spec.excludes(gpu) for gpu in there) else None


def _tally_homes(context: SearchContext, spec: DeviceSpec, group: NodeClass, sample: Gpu, tally: Tally) -> None:
    """Count existing homes: too full, or of another trust domain. One GPU may have several instances."""
    kind, model = sample.kind, sample.report.model
    own: Counter[str | None] = Counter()  # by profile
    full: Tally = Counter()
    for mode in _shared_modes(spec):
        for key in group.homes_of.get((spec.domain, mode), ()):
            if key[2] == kind:
                of = model if key[3] is None else f"homes on {model}"
                for reason, count in _why_no_home(context, spec, group.homes[key], mode, sample):
                    own[key[3]] += count
                    if reason is not None:
                        full[reason, of, group.words] += count
    for (of_kind, profile), count in group.home_count.items():
        if of_kind == kind and _shared_modes(spec):
            of = model if profile is None else f"homes on {model}"
            if others := count - own[profile]:
                tally[WaitReason.GPU_OTHER_TRUST_DOMAIN, of, group.words] += others
    tally.update(full)


def _why_no_home(
    context: SearchContext, spec: DeviceSpec, sorted_buckets: SortedBuckets, mode: str, sample: Gpu
) -> Iterator[tuple[WaitReason | None, int]]:
    """What the homes on each bucket lack, as the first one does (None: nothing); beyond BUCKETS_MAX what most lack."""
    percent = spec.claim.shares_percent
    share = spec.share_on(sample, mode) if percent is None else spec.part_of(sample, min(percent, 100))
    mostly = WaitReason.GPU_INSUFFICIENT_MEMORY if mode == "mps" else WaitReason.GPU_INSUFFICIENT_SMS
    for place, bucket_number in enumerate(sorted_buckets.order):
        bucket = sorted_buckets.by_number[bucket_number]
        reason: WaitReason | None = mostly
        if place < BUCKETS_MAX and isinstance(share, Share):
            node = bucket.some(1)[0]
            homes = [at.home for gpu in node.gpus for at in gpu.homes.values() if at.bucket is bucket]
            reason = homes[0].why_not(share) or _why_not_node(context, spec, node, bucket)
        yield reason, bucket.devices


def _shared_modes(spec: DeviceSpec) -> list[str]:
    if spec.claim.shares_percent is not None:
        return ["fractional"]
    return [mode for mode in spec.claim.modes if mode != "exclusive"]


def _reason(reason: WaitReason, count: int, of: str, on: str) -> ReasonCount:
    return ReasonCount(reason=reason, count=count, of=of, on=on, known_as=KNOWN_AS.get(reason, ""))


def _bounded(reasons: tuple[ReasonCount, ...]) -> tuple[tuple[ReasonCount, ...], int]:
    return reasons[:REASONS_MAX], max(0, len(reasons) - REASONS_MAX)


def _sentence(reasons: tuple[ReasonCount, ...]) -> str:
    parts = [f"{_counted(r)}{f' ({r.on})' if r.on else ''}: {IN_WORDS[r.reason]}" for r in reasons[:_IN_SENTENCE]]
    left = len(reasons) - _IN_SENTENCE
    more = f" and {left} more reason{'s' if left > 1 else ''}" if left > 0 else ""
    return "; ".join(parts) + more


def _counted(reason: ReasonCount) -> str:
    nodes = "1 node" if reason.count == 1 else f"{reason.count} nodes"
    return nodes if reason.of == "nodes" else f"{reason.count} x {reason.of}"
