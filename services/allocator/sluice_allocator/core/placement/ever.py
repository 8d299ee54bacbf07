"""
Explains why no existing node could serve a request even when empty, to separate that case from "not now".

Judges by classes of nodes and the shapes of their nodes, never node by node, and reports only what is certain. A
request that is not reported may still never fit (the largest amounts need not be on one node). The result is not a
refusal, because a later node may serve the request; it is one sentence with the nearest available alternative.
Conditions that pass by themselves, such as a cordon or an unready node, do not count.
"""

from collections.abc import Mapping
from fractions import Fraction

from sluice.contracts.ids import NodeName
from sluice.contracts.kube.selectors import volumes_reachable
from sluice.contracts.kube.taints import untolerated
from sluice.contracts.messages import Claim
from sluice.contracts.reasons import WaitReason, shorten
from sluice.contracts.request_syntax import claim_sizes
from sluice.contracts.request_syntax.device_limit import devices_of
from sluice_allocator.core.placement.capacity import NodeShape
from sluice_allocator.core.placement.classes import NodeClass, selects
from sluice_allocator.core.placement.closest import (
    closest_profile,
    listed,
    models_that_have,
    no_such_label,
    no_such_resource,
    profiles_of_the_catalog,
)
from sluice_allocator.core.placement.empty_gpus import is_unread, most_on, part_of_one
from sluice_allocator.core.placement.gpus import Gpu
from sluice_allocator.core.placement.looking import Look
from sluice_allocator.core.placement.no_device import Never, Shapes, both_amounts, no_device
from sluice_allocator.core.placement.pod_terms import Apart
from sluice_allocator.core.placement.same_gpu import groups_in, instances_fit
from sluice_allocator.core.placement.taints import PASSING, meaning_of
from sluice_allocator.core.placement.wants import Want

SHAPES_MAX = 512
"""With more shapes of nodes nothing is concluded: checking each would be a scan of the fleet."""
NODES_LOOKED_AT = 16
"""Most nodes looked at for label keys similar to a missing one."""


def why_never(look: Look) -> Never | None:
    """Why no node here could ever serve all of it; None where one could, or where that is uncertain."""
    shapes = _shapes(look)
    if isinstance(shapes, Never):
        return shapes
    if len(shapes) > SHAPES_MAX:
        return None
    for want in dict.fromkeys(look.wants):
        never = no_device(look, want, shapes)
        if never is not None:
            return never
    for members in groups_in(look.together) if not look.asking.substitute else ():
        if not any(_may_hold_all(look, gpu, members) for _, shape in shapes for gpu, _ in shape.gpus):
            names = listed([look.asking.claims[number].container for number in members])
            return Never(WaitReason.ONE_GPU_NOT_FIT, f"no GPU here could hold all of {names}, even an empty one")
    enough = [(group, shape) for group, shape in shapes if _has_devices(look, group, shape)]
    if not enough:
        return _too_many(look, shapes)
    return None if any(_has_room(look, shape) for _, shape in enough) else _too_little_room(look, enough)


def _may_hold_all(look: Look, gpu: Gpu, members: tuple[int, ...]) -> bool:
    """Whether an empty GPU may hold all devices of a group; certain only where it may not."""
    wanted = [(look.wants[number], look.asking.claims[number].gpus) for number in members]
    return is_unread(gpu) or instances_fit(gpu, gpu.table.empty, wanted)


def where_nothing_is(look: Look) -> str:
    """In a fleet without GPUs: the models with the requested profiles."""
    words = []
    for profile in dict.fromkeys(claim.profile for claim in look.asking.claims if claim.profile is not None):
        models = models_that_have(profile)
        nearest = closest_profile(profile, profiles_of_the_catalog())
        unknown = f"no model that Sluice knows has {profile}" + (f". Closest: {nearest}" if nearest else "")
        words.append(f"{profile} is a profile of {listed(models)}" if models else unknown)
    return "".join(f"; {each}" for each in words)


# -- which nodes ----------------------------------------------------------------------------------------------------


def _shapes(look: Look) -> Shapes | Never:
    """The shapes of the nodes on which the pod could run; or why it could run on none."""
    host, stock = look.asking.host, look.fleet.stock
    if host.node_name:
        node = look.fleet.nodes.get(NodeName(host.node_name))
        if node is None or node.shape is None or not node.all_gpus:
            return Never(WaitReason.NODE_NOT_NAMED, f"no node with GPUs here is named {shorten(host.node_name)}")
        selected = [stock.class_of(node)] if _may_select(look, node.labels) else []
        shapes: Shapes = [(group, node.shape) for group in selected]
    else:
        selected = [group for group in stock.classes.values() if group.shapes and _is_selected(look, group)]
        shapes = [(group, shape) for group in selected for shape in group.shapes.values() if shape.gpus]
    if not shapes or (look.one_by_one and not _some_node_is_selected(look)):
        if host.volumes and _is_selected_apart_from_volumes(look):
            return Never(WaitReason.NODE_VOLUME_ELSEWHERE, "no node with GPUs here can reach all of its volumes")
        return Never(WaitReason.NODE_SELECTOR_MISMATCH, _not_selected(look))
    missing = next((bar.key for bar in look.bars if not isinstance(bar, Apart) and not stock.has_label(bar.key)), "")
    if missing:
        words = f"no node with GPUs here has the label {shorten(missing)}, which a topologyKey of the pod names"
        return Never(WaitReason.NODE_TOPOLOGY_LABEL_MISSING, words)
    may_be = [(group, shape) for group, shape in shapes if group.why_not(host) in {None, *PASSING}]
    if not may_be:
        taints = {
            f"{taint.key}={taint.value}:{taint.effect}": None
            for group, _ in shapes
            for taint in untolerated(group.taints, host.tolerations)
            if meaning_of(taint) not in PASSING
        }
        whose = "that it selects" if host.node_selector or host.affinity or host.node_name else "here"
        words = f"it does not tolerate the taints of the nodes {whose}: {listed(list(taints))}"
        return Never(WaitReason.NODE_TAINTED, words)
    return may_be


def _is_selected(look: Look, group: NodeClass) -> bool:
    return look.one_by_one or _may_select(look, group.labels)


def _may_select(look: Look, labels: Mapping[str, str]) -> bool:
    host = look.asking.host
    return selects(host, labels) and volumes_reachable(host.volumes, labels)


def _is_selected_apart_from_volumes(look: Look) -> bool:
    """Whether some node matches the pod's own selectors; certain only without labels of single nodes."""
    classes = look.fleet.stock.classes.values()
    return not look.one_by_one and any(each.shapes and selects(look.asking.host, each.labels) for each in classes)


def _some_node_is_selected(look: Look) -> bool:
    """Whether some node has the selected labels of single nodes; certain only where those select a few."""
    named = look.fleet.stock.named_by(look.asking.host)
    return (
        named is None
        or len(named) > SHAPES_MAX
        or any(node.all_gpus and _may_select(look, node.labels) for node in named)
    )


def _not_selected(look: Look) -> str:
    host, stock = look.asking.host, look.fleet.stock
    for key, value in host.node_selector.items():
        values = stock.values_of(key)
        if value not in values:
            some = look.fleet.stock.nodes[:NODES_LOOKED_AT]
            keys = list(dict.fromkeys(each for node in some for each in node.labels))
            return no_such_label(key, shorten(value), [] if len(values) > SHAPES_MAX else sorted(values), keys)
    if host.node_selector and not host.affinity:
        return "no node here has all the labels that its nodeSelector names"
    for expression in (each for term in host.affinity for each in term if each.operator == "In"):
        values = stock.values_of(expression.key)
        if not set(expression.values) & set(values):
            there = f"; there is {listed([f'{expression.key}={each}' for each in sorted(values)])}" if values else ""
            return f"no node here has the label {expression.key}={listed(expression.values)}{there}"
    return "no node here matches its nodeSelector and required node affinity"


# -- all on one node ------------------------------------------------------------------------------------------------


def _most_together(look: Look, claim: Claim, want: Want, group: NodeClass, shape: NodeShape) -> int:
    """How many devices of a claim an empty node of this shape holds, on one NUMA node if required."""
    on_numa: dict[int | None, int] = {}
    for gpu, count in shape.gpus:
        most = count * most_on(want, group, gpu, substitute=look.asking.substitute)
        on_numa[gpu.report.numa_node] = on_numa.get(gpu.report.numa_node, 0) + most
    if not claim.numa_bind or claim.gpus == 1:
        return sum(on_numa.values())
    return max((most for numa, most in on_numa.items() if numa is not None), default=0)


def _has_devices(look: Look, group: NodeClass, shape: NodeShape) -> bool:
    """Whether an empty node of this shape may hold the devices of each claim, and all exclusive ones together."""
    memory, compute = Fraction(0), Fraction(0)
    gpus: dict[int, int] = {}
    for claim, want in zip(look.asking.claims, look.wants, strict=True):
        if _most_together(look, claim, want, group, shape) < devices_of(claim):
            return False
        if claim.modes == ("exclusive",) and claim.shares_percent is None:
            larger = look.asking.substitute
            some = {n: gpu for n, (gpu, _) in enumerate(shape.gpus) if most_on(want, group, gpu, substitute=larger)}
            parts = [part_of_one(want, gpu, substitute=larger) for gpu in some.values()]
            memory += claim.gpus * min(part for part, _ in parts)
            compute += claim.gpus * min(part for _, part in parts)
            gpus |= {number: shape.gpus[number][1] for number in some}
    return max(memory, compute) <= sum(gpus.values())


def _too_many(look: Look, shapes: Shapes) -> Never:
    for claim, want in zip(look.asking.claims, look.wants, strict=True):
        most = max(_most_together(look, claim, want, group, shape) for group, shape in shapes)
        if most < (devices := devices_of(claim)):
            sizes = ", ".join(claim_sizes(claim))
            what = f"{devices} x {sizes}" if sizes and claim.shares_percent is None else f"{devices} GPUs"
            if claim.numa_bind:
                why = f"it asks for {what} on one NUMA node, and the most is {most}"
                if not most:
                    why = f"it asks for {what} on one NUMA node, and no agent here reports the NUMA nodes of its GPUs"
                return Never(WaitReason.NUMA_NOT_FIT, why)
            return Never(WaitReason.TOO_FEW_GPUS_ON_NODE, f"it asks for {what}, and the most is {most} on one node")
    why = "its containers together ask for more than the GPUs of any one node hold"
    return Never(WaitReason.TOO_FEW_GPUS_ON_NODE, why)


# -- besides GPUs ---------------------------------------------------------------------------------------------------


def _has_room(look: Look, shape: NodeShape) -> bool:
    need = look.need
    return bool(shape.untold) or (
        shape.cpu_milli.most >= need.cpu_milli
        and shape.memory_mib.most >= need.memory_mib
        and all(shape.most_of(name) >= count for name, count in need.resources.items())
    )


def _too_little_room(look: Look, shapes: Shapes) -> Never:
    need = look.need
    for name, count in need.resources.items():
        most = max(shape.most_of(name) for _, shape in shapes)
        if not most:
            there = list(dict.fromkeys(each for _, shape in shapes for each in shape.resources))
            return Never(WaitReason.NODE_INSUFFICIENT_RESOURCE, no_such_resource(name, there))
        if most < count:
            why = f"it requests {count} of {shorten(name)}, and the most on one node is {most}"
            return Never(WaitReason.NODE_INSUFFICIENT_RESOURCE, why)
    most = max(shape.memory_mib.most for _, shape in shapes)
    if most < need.memory_mib:
        asked, has = both_amounts(need.memory_mib, most)
        why = f"it requests {asked} of memory, and the largest node has {has}"
        return Never(WaitReason.NODE_INSUFFICIENT_MEMORY, why)
    most = max(shape.cpu_milli.most for _, shape in shapes)
    if most < need.cpu_milli:
        why = f"it requests {need.cpu_milli / 1000:g} CPUs, and the largest node has {most / 1000:g}"
        return Never(WaitReason.NODE_INSUFFICIENT_CPU, why)
    why = "no single node has the CPU, memory and other resources that it requests beside its GPUs"
    return Never(WaitReason.NODE_INSUFFICIENT_RESOURCE, why)
