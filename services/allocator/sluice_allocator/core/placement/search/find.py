"""Chooses a place: devices on one node for a request, or the reasons why there are none. One device is found by walking
buckets, several among the nodes counted to have enough. Neither scans the cluster."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.messages import Claim, DeviceGrant
from sluice.contracts.reasons import WaitReason
from sluice.mig.model import Profile
from sluice_allocator.core.placement.affinity.pod_filters import named_by
from sluice_allocator.core.placement.cluster.cluster_state import ClusterState
from sluice_allocator.core.placement.index.node_class import DeviceCounts, NodeClass
from sluice_allocator.core.placement.nodes.bucket import GivenUp
from sluice_allocator.core.placement.nodes.device_spec import DeviceSpec, WholeGpu
from sluice_allocator.core.placement.nodes.gpu import Gpu
from sluice_allocator.core.placement.nodes.node import Node
from sluice_allocator.core.placement.search import instance
from sluice_allocator.core.placement.search.context import Place, SearchContext, groups_in, prepare, tail
from sluice_allocator.core.placement.search.instance import DeviceFit, better
from sluice_allocator.core.placement.search.node_fit import STEPS_IN_ALL_MAX, fit_on_node, holds_together
from sluice_allocator.core.placement.search.split import free_percent
from sluice_allocator.core.placement.spec.larger_profiles import is_exclusive_only, step_combinations
from sluice_allocator.core.placement.spec.place_request import Avoid, PlaceRequest, without_shunned_nodes

NODES_TRIED_MAX = 32  # most nodes tried of those counted to have enough; nearly always the first fits


def find_free(cluster: ClusterState, request: PlaceRequest, avoid: Avoid = frozenset()) -> Place | None:
    """The best place for all claims on one node; None when there is none. Cheaper than `find_place`, which explains."""
    context = prepare(cluster, request, avoid)
    place = best_place(context)
    if place is None and request.substitute:
        place = _find_larger(context, best_place)
    if place is None and request.host.shun:
        return find_free(cluster, without_shunned_nodes(request), avoid)
    return place


def find_place_on(
    cluster: ClusterState, request: PlaceRequest, node: NodeName, avoid: Avoid = frozenset()
) -> Place | None:
    """The best place for all claims on this very node; None when there is none."""
    known = cluster.nodes.get(node)
    if known is None:
        return None
    context = prepare(cluster, request, avoid)
    place = _find_on(context, known)
    if place is None and request.substitute:
        place = _find_larger(context, lambda larger: _find_on(larger, known))
    return place


def wait_for_pods(cluster: ClusterState, request: PlaceRequest, request_id: RequestId) -> None:
    """A request found no place: wake it when pods come or go that its terms depend on."""
    context = prepare(cluster, request, frozenset())
    cluster.peers.register(request_id, (pod_filter.term_count for pod_filter in context.pod_filters))


def best_place(context: SearchContext) -> Place | None:
    named = named_nodes(context)
    if named is not None:
        places = (_find_on(context, node) for node in named)
        return next((place for place in places if place is not None), None)
    if len(context.specs) == 1 and context.request.claims[0].gpus == 1:
        found = find_one(context, context.specs[0])
        if found is not None:
            return _place_of(context, found)
        if context.request.claims[0].shares_percent is None:
            return None
    # with the first mode of every claim if a node allows it, else with any
    if any(len(claim.modes) > 1 for claim in context.request.claims):
        claims = tuple(replace(claim, modes=claim.modes[:1]) for claim in context.request.claims)
        first = prepare(context.cluster, replace(context.request, claims=claims), context.avoid)
        place = _find_anywhere(first)
        if place is not None:
            return place
    return _find_anywhere(context)


def _find_larger(context: SearchContext, find: Callable[[SearchContext], Place | None]) -> Place | None:
    """A place with larger profiles than requested, those that waste least first. `find` does the search."""
    samples = [sample for group in context.groups() if "exclusive" in group.modes for sample in group.samples.values()]
    most = [max((len(spec.larger_on(sample)) for sample in samples), default=0) for spec in context.specs]
    for steps in step_combinations([_steps_alone(context, find, number, has) for number, has in enumerate(most)]):
        place = find(prepare(context.cluster, replace(context.request, steps=steps), context.avoid))
        if place is not None:
            return replace(place, instead_of=_asked_instead(context, steps, place))
    return None


def _steps_alone(
    context: SearchContext, find: Callable[[SearchContext], Place | None], number: int, most: int
) -> Sequence[int]:
    """The steps in which one claim alone could be served: few combinations are left for several claims."""
    steps = range(most + 1)
    if len(context.specs) == 1:
        return steps
    alone = replace(context.request, claims=(context.request.claims[number],))
    contexts = ((step, prepare(context.cluster, replace(alone, steps=(step,)), context.avoid)) for step in steps)
    return [step for step, larger in contexts if find(larger) is not None]


def _asked_instead(context: SearchContext, steps: tuple[int, ...], place: Place) -> str:
    names: dict[str, None] = {}
    for claim, spec, step in zip(context.request.claims, context.specs, steps, strict=True):
        if step == 0:
            continue
        gpu = context.cluster.gpus[next(device.gpu for device in place.devices if device.container == claim.container)]
        asked = spec.shape_on(gpu)
        names[claim.profile or (asked.name if isinstance(asked, Profile) else "its own size")] = None
    return ", ".join(names)


def _place_of(context: SearchContext, found: DeviceFit) -> Place:
    claim = context.request.claims[0]
    policy = found.policy
    if policy.nodes != "any" or policy.linked or "numa" in policy.name:  # a GPU's position on its node decides, too
        devices = fit_on_node(context, found.node)
        if devices is not None:
            return Place(found.node.name, devices)
    return Place(found.node.name, (found.grant(claim.container),))


def named_nodes(context: SearchContext) -> list[Node] | None:
    """The only nodes that may serve it, where the pod names its node or its GPUs; None where it names neither."""
    cluster, host = context.cluster, context.request.host
    if host.node_name:
        node = cluster.nodes.get(NodeName(host.node_name))
        return [node] if node is not None else []
    for claim in context.request.claims:
        if claim.only.uuids:
            gpus = [cluster.gpus[uuid] for uuid in claim.only.uuids if uuid in cluster.gpus]
            return list(dict.fromkeys(cluster.nodes[gpu.node] for gpu in gpus))
    if context.one_by_one:
        return cluster.index.named_by(host)
    beside = named_by(cluster.peers, context.pod_filters, cluster.index.tells_apart) if context.pod_filters else None
    return [cluster.nodes[name] for name in beside if name in cluster.nodes] if beside is not None else None


def _find_on(context: SearchContext, node: Node) -> Place | None:
    if not node.has_room(context.need) or not context.may_be_on(node):
        return None
    for claim, spec in zip(context.request.claims, context.specs, strict=True):
        is_plain = is_exclusive_only(claim)
        if is_plain and sum(_count_on(context.cluster, node, gpu, spec) for gpu in node.gpus) < claim.gpus:
            return None
    devices = fit_on_node(context, node)
    return Place(node.name, devices) if devices is not None else None


_Filled = tuple[Node, tuple[DeviceGrant, ...] | GivenUp] | None


def _filling(context: SearchContext) -> Callable[[Node], tuple[DeviceGrant, ...] | GivenUp | None]:
    """Fills nodes with all devices of a request, a bounded number of times."""
    left = NODES_TRIED_MAX

    def accept(node: Node) -> tuple[DeviceGrant, ...] | GivenUp | None:
        nonlocal left
        if not context.admits(node):
            return None
        if left == 0 or context.steps > STEPS_IN_ALL_MAX:
            return GivenUp()
        devices = fit_on_node(context, node)
        left -= devices is None
        return devices

    return accept


def _find_anywhere(context: SearchContext) -> Place | None:
    places = (_find_in(context, group) for group in context.groups())
    best = min((each for each in places if each is not None), key=lambda each: each[0], default=None)
    return best[1] if best is not None else None


def _find_in(context: SearchContext, group: NodeClass) -> tuple[tuple[int, ...], Place] | None:
    claim, spec = largest_claim(context, group)
    wanted = claim.shares_percent if claim.shares_percent is not None else claim.gpus
    counted = _counted(context, group, spec)
    policy = context.policy(group)
    cpu_per_gpu = context.cpu_per_gpu(wanted if claim.shares_percent is not None else 100 * wanted)
    best: tuple[tuple[int, ...], Place] | None = None
    accept = _filling(context)
    for count in counted.sorted_buckets.at_least(wanted):
        bucket = counted.sorted_buckets.by_number[count]
        found: _Filled = bucket.find(context.need, policy.nodes, accept, cpu_per_gpu)
        if found is None:
            continue
        node, devices = found
        if isinstance(devices, GivenUp):
            break
        usage = {"fullest": -node.usage, "emptiest": node.usage, "first": node.number}.get(policy.nodes, count)
        first = context.cluster.gpus[devices[0].gpu]
        key = (context.cluster.usage_of(devices).memory_mib, usage, *tail(cpu_per_gpu, node, first))
        if best is None or key < best[0]:
            best = (key, Place(node.name, devices))
        if policy.nodes == "any":
            break
    return best


def counted_for(context: SearchContext, group: NodeClass) -> DeviceCounts:
    """The nodes of a class by how many devices, or how many percent, they could hold of the largest claim."""
    return _counted(context, group, largest_claim(context, group)[1])


def _counted(context: SearchContext, group: NodeClass, spec: DeviceSpec) -> DeviceCounts:
    count, together = _counting(context.cluster, spec), groups_in(context.together)
    if not together:
        return context.cluster.index.counted.of(group, f"{spec.number}", count)

    def count_groups(node: Node) -> int:
        """The same, and none where a group of claims that must be on one GPU has no GPU there."""
        return count(node) if all(holds_together(context, node, members) for members in together) else 0

    return context.cluster.index.counted.of(group, _name_of(context, spec), count_groups)


def largest_claim(context: SearchContext, group: NodeClass) -> tuple[Claim, DeviceSpec]:
    """The claim that takes most of the GPUs of a class; of equal ones the first."""

    def size(each: tuple[Claim, DeviceSpec]) -> int:
        claim, spec = each
        if claim.shares_percent is not None:
            return max((gpu.memory_mib for gpu in group.samples.values()), default=0) * claim.shares_percent // 100
        return claim.gpus * max((spec.memory_on(gpu) for gpu in group.samples.values()), default=0)

    return max(zip(context.request.claims, context.specs, strict=True), key=size)


def _counting(cluster: ClusterState, spec: DeviceSpec) -> Callable[[Node], int]:
    """How many devices of a claim, or how many percent, a node has at most. Depends on the node alone."""
    if spec.claim.shares_percent is not None:
        return lambda node: sum(free_percent(gpu, spec) for gpu in node.gpus)
    return lambda node: sum(_count_on(cluster, node, gpu, spec) for gpu in node.gpus)


def _name_of(context: SearchContext, spec: DeviceSpec) -> str:
    """The name of such a count: everything that decides it."""
    groups = (
        "+".join(f"{context.request.claims[number].gpus}x{context.specs[number].number}" for number in group)
        for group in groups_in(context.together)
    )
    return f"{spec.number} on one GPU {' '.join(groups)}"


def _count_on(cluster: ClusterState, node: Node, gpu: Gpu, spec: DeviceSpec) -> int:
    most = 0
    for mode in spec.claim.modes:
        if mode not in node.modes:
            continue
        if mode != "exclusive":
            most = max(most, int(_hosts_one(cluster, gpu, spec, mode)))
            continue
        shape = spec.shape_on(gpu)
        if isinstance(shape, Profile):
            most = max(most, gpu.table.count(gpu.state, shape.name))
        elif isinstance(shape, WholeGpu):
            most = max(most, int(gpu.free_whole))
    return most


def _hosts_one(cluster: ClusterState, gpu: Gpu, spec: DeviceSpec, mode: str) -> bool:
    share = spec.share_on(gpu, mode)
    if isinstance(share, WaitReason):
        return False
    own = (home for home in gpu.open_homes().values() if (home.domain, home.mode) == (spec.domain, mode))
    if any(home.why_not(share) is None for home in own):
        return True
    size = cluster.tenancy.size(gpu, None)
    if not gpu.mig:
        return gpu.free_whole and size.fits_alone(share)
    return any(gpu.table.count(gpu.state, name) > 0 for name in spec.home_profiles(gpu, share, size.overcommit_percent))


def find_one(context: SearchContext, spec: DeviceSpec) -> DeviceFit | None:
    claim = spec.claim
    if claim.shares_percent is not None:
        return instance.find_part(context, spec, claim.shares_percent)
    for mode in claim.modes:
        if mode == "exclusive":
            found = _find_exclusive(context, spec, snug_only=claim.snug)
        else:
            found = instance.find_share(context, spec, mode)
        if found is not None:
            return found
    return _find_exclusive(context, spec, snug_only=False) if claim.snug else None


def _find_exclusive(context: SearchContext, spec: DeviceSpec, *, snug_only: bool) -> DeviceFit | None:
    best: DeviceFit | None = None
    for group in context.groups():
        if "exclusive" not in group.modes:
            continue
        for kind, sample in group.samples.items():
            shape = spec.shape_on(sample)
            if isinstance(shape, WaitReason) or (snug_only and not spec.is_snug(sample)):
                continue
            if isinstance(shape, WholeGpu):
                best = better(instance.find_whole(context, spec, group, kind), best)
            else:
                best = better(instance.find_instance(context, spec, group, sample, shape, best), best)
    return best
