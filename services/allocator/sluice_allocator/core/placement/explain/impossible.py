"""Explains why no existing node could serve a request even when empty, by classes and shapes of nodes. Reports only
what is certain, in one sentence with the nearest alternative; no refusal, as a later node may serve it. Conditions that
pass (a cordon, an unready node) do not count."""

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

from sluice.contracts.ids import NodeName
from sluice.contracts.kube.selectors import volumes_reachable
from sluice.contracts.kube.taints import untolerated
from sluice.contracts.messages import Claim
from sluice.contracts.reasons import WaitReason, shorten
from sluice.contracts.request_syntax import claim_sizes
from sluice.contracts.request_syntax.device_limit import devices_of
from sluice_allocator.core.placement.explain import no_gpu_fits as no_gpu
from sluice_allocator.core.placement.explain.capacity_bound import is_unread, most_on, part_of_one
from sluice_allocator.core.placement.explain.no_gpu_fits import Impossible, Shapes, listed
from sluice_allocator.core.placement.index.node_class import NodeClass
from sluice_allocator.core.placement.nodes.device_spec import DeviceSpec
from sluice_allocator.core.placement.nodes.gpu import Gpu
from sluice_allocator.core.placement.nodes.node_shape import NodeShape
from sluice_allocator.core.placement.search.context import SearchContext, groups_in, instances_fit
from sluice_allocator.core.placement.spec.larger_profiles import is_exclusive_only
from sluice_allocator.core.placement.spec.place_request import PASSING, meaning_of, selects

SHAPES_MAX = 512  # with more shapes of nodes nothing is concluded: checking each would be a scan of the cluster
NODES_LOOKED_AT = 16  # most nodes looked at for label keys similar to a missing one


def why_impossible(context: SearchContext) -> Impossible | None:
    """Why no node here could ever serve all of it; None where one could, or where that is uncertain."""
    shapes = _shapes(context)
    if isinstance(shapes, Impossible):
        return shapes
    if len(shapes) > SHAPES_MAX:
        return None
    found = (no_gpu.no_gpu_fits(context, spec, shapes) for spec in dict.fromkeys(context.specs))
    impossible = next((each for each in found if each is not None), None)
    if impossible is not None:
        return impossible
    for members in groups_in(context.together) if not context.request.substitute else ():
        if not any(_may_hold_all(context, gpu, members) for _, shape in shapes for gpu, _ in shape.gpus):
            names = listed([context.request.claims[number].container for number in members])
            return Impossible(WaitReason.ONE_GPU_NOT_FIT, f"no GPU here could hold all of {names}, even an empty one")
    enough = [(group, shape) for group, shape in shapes if _has_devices(context, group, shape)]
    if not enough:
        return _too_many(context, shapes)
    return None if any(_has_room(context, shape) for _, shape in enough) else _too_little_room(context, enough)


def _may_hold_all(context: SearchContext, gpu: Gpu, members: tuple[int, ...]) -> bool:
    """Whether an empty GPU may hold all devices of a group; certain only where it may not."""
    wanted = [(context.specs[number], context.request.claims[number].gpus) for number in members]
    return is_unread(gpu) or instances_fit(gpu, gpu.table.empty, wanted)


def where_nothing_is(context: SearchContext) -> str:
    """In a cluster without GPUs: the models with the requested profiles."""
    words = []
    for profile in dict.fromkeys(claim.profile for claim in context.request.claims if claim.profile is not None):
        models = no_gpu.models_that_have(profile)
        nearest = no_gpu.closest_profile(profile, no_gpu.profiles_of_the_catalog())
        unknown = f"no model that Sluice knows has {profile}" + (f". Closest: {nearest}" if nearest else "")
        words.append(f"{profile} is a profile of {listed(models)}" if models else unknown)
    return "".join(f"; {each}" for each in words)


def _shapes(context: SearchContext) -> Shapes | Impossible:
    host, index = context.request.host, context.cluster.index
    if host.node_name:
        node = context.cluster.nodes.get(NodeName(host.node_name))
        if node is None or node.shape is None or not node.all_gpus:
            return Impossible(WaitReason.NODE_NOT_NAMED, f"no node with GPUs here is named {shorten(host.node_name)}")
        selected = [index.class_of(node)] if _may_select(context, node.labels) else []
        shapes: Shapes = [(group, node.shape) for group in selected]
    else:
        known = (group for group in index.classes.values() if group.shapes)
        selected = [group for group in known if context.one_by_one or _may_select(context, group.labels)]
        shapes = [(group, shape) for group in selected for shape in group.shapes.values() if shape.gpus]
    if not shapes or (context.one_by_one and not _some_node_is_selected(context)):
        if host.volumes and _is_selected_apart_from_volumes(context):
            return Impossible(WaitReason.NODE_VOLUME_ELSEWHERE, "no node with GPUs here can reach all of its volumes")
        return Impossible(WaitReason.NODE_SELECTOR_MISMATCH, _not_selected(context))
    needed = (pod_filter.key for pod_filter in context.pod_filters if pod_filter.needs_label)
    missing = next((key for key in needed if not index.has_label(key)), "")
    if missing:
        words = f"no node with GPUs here has the label {shorten(missing)}, which a topologyKey of the pod names"
        return Impossible(WaitReason.NODE_TOPOLOGY_LABEL_MISSING, words)
    may_be = [(group, shape) for group, shape in shapes if group.why_not(host) in {None, *PASSING}]
    if not may_be:
        found = (taint for group, _ in shapes for taint in untolerated(group.taints, host.tolerations))
        lasting = (taint for taint in found if meaning_of(taint) not in PASSING)
        taints = {f"{taint.key}={taint.value}:{taint.effect}": None for taint in lasting}
        whose = "that it selects" if host.node_selector or host.affinity or host.node_name else "here"
        words = f"it does not tolerate the taints of the nodes {whose}: {listed(list(taints))}"
        return Impossible(WaitReason.NODE_TAINTED, words)
    return may_be


def _may_select(context: SearchContext, labels: Mapping[str, str]) -> bool:
    host = context.request.host
    return selects(host, labels) and volumes_reachable(host.volumes, labels)


def _is_selected_apart_from_volumes(context: SearchContext) -> bool:
    """Whether some node matches the pod's own selectors; certain only without labels of single nodes."""
    labels = (each.labels for each in context.cluster.index.classes.values() if each.shapes)
    return not context.one_by_one and any(selects(context.request.host, each) for each in labels)


def _some_node_is_selected(context: SearchContext) -> bool:
    """Whether some node has the selected labels of single nodes; certain only where those select a few."""
    named = context.cluster.index.named_by(context.request.host)
    if named is None or len(named) > SHAPES_MAX:
        return True
    return any(node.all_gpus and _may_select(context, node.labels) for node in named)


def _not_selected(context: SearchContext) -> str:
    host, index = context.request.host, context.cluster.index
    for key, value in host.node_selector.items():
        values = index.values_of(key)
        if value not in values:
            some = context.cluster.index.nodes[:NODES_LOOKED_AT]
            keys = list(dict.fromkeys(each for node in some for each in node.labels))
            return no_gpu.no_such_label(key, shorten(value), [] if len(values) > SHAPES_MAX else sorted(values), keys)
    if host.node_selector and not host.affinity:
        return "no node here has all the labels that its nodeSelector names"
    for expression in (each for term in host.affinity for each in term if each.operator == "In"):
        values = index.values_of(expression.key)
        if not set(expression.values) & set(values):
            there = f"; there is {listed([f'{expression.key}={each}' for each in sorted(values)])}" if values else ""
            return f"no node here has the label {expression.key}={listed(expression.values)}{there}"
    return "no node here matches its nodeSelector and required node affinity"


def _most_together(context: SearchContext, claim: Claim, spec: DeviceSpec, group: NodeClass, shape: NodeShape) -> int:
    """How many devices of a claim an empty node of this shape holds, on one NUMA node if required."""
    on_numa: Counter[int | None] = Counter()
    for gpu, count in shape.gpus:
        on_numa[gpu.report.numa_node] += count * most_on(spec, group, gpu, substitute=context.request.substitute)
    if not claim.numa_bind or claim.gpus == 1:
        return sum(on_numa.values())
    return max((most for numa, most in on_numa.items() if numa is not None), default=0)


def _has_devices(context: SearchContext, group: NodeClass, shape: NodeShape) -> bool:
    """Whether an empty node of this shape may hold the devices of each claim, and all exclusive ones together."""
    memory, compute = Fraction(0), Fraction(0)
    gpus: dict[int, int] = {}
    for claim, spec in zip(context.request.claims, context.specs, strict=True):
        if _most_together(context, claim, spec, group, shape) < devices_of(claim):
            return False
        if is_exclusive_only(claim):
            larger = context.request.substitute
            some = {n: gpu for n, (gpu, _) in enumerate(shape.gpus) if most_on(spec, group, gpu, substitute=larger)}
            parts = [part_of_one(spec, gpu, substitute=larger) for gpu in some.values()]
            memory += claim.gpus * min(part for part, _ in parts)
            compute += claim.gpus * min(part for _, part in parts)
            gpus |= {number: shape.gpus[number][1] for number in some}
    return max(memory, compute) <= sum(gpus.values())


def _too_many(context: SearchContext, shapes: Shapes) -> Impossible:
    for claim, spec in zip(context.request.claims, context.specs, strict=True):
        most = max(_most_together(context, claim, spec, group, shape) for group, shape in shapes)
        if most < (devices := devices_of(claim)):
            sizes = ", ".join(claim_sizes(claim))
            what = f"{devices} x {sizes}" if sizes and claim.shares_percent is None else f"{devices} GPUs"
            if claim.numa_bind:
                but = f"the most is {most}" if most else "no agent here reports the NUMA nodes of its GPUs"
                return Impossible(WaitReason.NUMA_NOT_FIT, f"it asks for {what} on one NUMA node, and {but}")
            why = f"it asks for {what}, and the most is {most} on one node"
            return Impossible(WaitReason.TOO_FEW_GPUS_ON_NODE, why)
    why = "its containers together ask for more than the GPUs of any one node hold"
    return Impossible(WaitReason.TOO_FEW_GPUS_ON_NODE, why)


def _has_room(context: SearchContext, shape: NodeShape) -> bool:
    need = context.need
    has_both = shape.cpu_milli.most >= need.cpu_milli and shape.memory_mib.most >= need.memory_mib
    has_rest = all(shape.most_of(name) >= count for name, count in need.resources.items())
    return bool(shape.unreported) or (has_both and has_rest)


def _too_little_room(context: SearchContext, shapes: Shapes) -> Impossible:
    need = context.need
    for name, count in need.resources.items():
        most = max(shape.most_of(name) for _, shape in shapes)
        if not most:
            there = list(dict.fromkeys(each for _, shape in shapes for each in shape.resources))
            return Impossible(WaitReason.NODE_INSUFFICIENT_RESOURCE, no_gpu.no_such_resource(name, there))
        if most < count:
            why = f"it requests {count} of {shorten(name)}, and the most on one node is {most}"
            return Impossible(WaitReason.NODE_INSUFFICIENT_RESOURCE, why)
    most = max(shape.memory_mib.most for _, shape in shapes)
    if most < need.memory_mib:
        asked, has = no_gpu.both_amounts(need.memory_mib, most)
        why = f"it requests {asked} of memory, and the largest node has {has}"
        return Impossible(WaitReason.NODE_INSUFFICIENT_MEMORY, why)
    most = max(shape.cpu_milli.most for _, shape in shapes)
    if most < need.cpu_milli:
        why = f"it requests {need.cpu_milli / 1000:g} CPUs, and the largest node has {most / 1000:g}"
        return Impossible(WaitReason.NODE_INSUFFICIENT_CPU, why)
    why = "no single node has the CPU, memory and other resources that it requests beside its GPUs"
    return Impossible(WaitReason.NODE_INSUFFICIENT_RESOURCE, why)
