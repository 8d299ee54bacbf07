"""Explains why no existing GPU could serve even one device of a claim, and names the nearest available alternative.
Ignores bookings: `reasons` covers whether a device is free."""

from collections.abc import Iterator
from typing import NamedTuple

from sluice.contracts.messages import DeviceFilter
from sluice.contracts.reasons import WaitReason
from sluice.contracts.request_syntax import claim_modes, claim_sizes
from sluice.mig.model import Profile
from sluice_allocator.core.placement.explain.empty_gpu import is_unread, never_on
from sluice_allocator.core.placement.explain.suggestions import closest_profile, listed, models_that_have, short_name
from sluice_allocator.core.placement.index.node_class import NodeClass
from sluice_allocator.core.placement.nodes.device_spec import DeviceSpec
from sluice_allocator.core.placement.nodes.gpu import Gpu
from sluice_allocator.core.placement.nodes.node_shape import NodeShape
from sluice_allocator.core.placement.search.context import SearchContext

Shapes = list[tuple[NodeClass, NodeShape]]
_NO_PROFILE = frozenset({WaitReason.GPU_NO_SUCH_PROFILE, WaitReason.GPU_NOT_IN_LAYOUT})


class Impossible(NamedTuple):
    """The first missing thing, and one sentence about it; empty where the counted reasons say it best."""

    reason: WaitReason
    words: str


def no_gpu_fits(context: SearchContext, spec: DeviceSpec, shapes: Shapes) -> Impossible | None:
    """Why not even one device of a claim could ever be had here."""
    only, here = spec.claim.only, _here(context, shapes)
    if only.uuids and not any(uuid in context.cluster.gpus for uuid in only.uuids):
        return Impossible(WaitReason.GPU_UUID_MISMATCH, f"no GPU here is {listed(only.uuids)}")
    found: list[tuple[WaitReason, NodeClass, Gpu]] = []
    for group, gpu in _kinds(shapes):
        why = never_on(spec, group, gpu, substitute=context.request.substitute)
        if why is None or is_unread(gpu):
            return None
        found.append((why, group, gpu))
    wanted = [each for each in found if spec.admits(each[2]) is not WaitReason.GPU_MODEL_MISMATCH]
    if not wanted:
        there = listed(list(dict.fromkeys(short_name(gpu.report.model) for _, _, gpu in found)))
        asked = f"is of a model that it asks for ({listed(only.models)})" if only.models else "is of another model"
        return Impossible(WaitReason.GPU_MODEL_MISMATCH, f"no GPU {here} {asked}; there is {there}")
    if all(why is WaitReason.GPU_MEMORY_UNKNOWN for why, _, _ in wanted):
        return Impossible(WaitReason.GPU_MEMORY_UNKNOWN, _memory_unknown([gpu for _, _, gpu in wanted]))
    none_here = f"no GPU{_whose_model(only)} {here}"
    sized = [gpu for why, group, gpu in wanted if why in _NO_PROFILE and "exclusive" in group.modes]
    if sized and spec.claim.profile is not None:
        return Impossible(_reason_of(wanted, _NO_PROFILE), _no_profile(context, spec.claim.profile, sized, none_here))
    too_small = [(why, gpu) for why, _, gpu in wanted if why in {*_NO_PROFILE, WaitReason.GPU_INSUFFICIENT_MEMORY}]
    if too_small:
        return Impossible(too_small[0][0], _no_size(context, spec, [gpu for _, gpu in too_small], none_here))
    return Impossible(wanted[0][0], _no_mode(spec, [gpu for _, _, gpu in wanted], none_here))


def _here(context: SearchContext, shapes: Shapes) -> str:
    """The GPUs that a sentence is about: where some nodes are excluded, those may have what is missing."""
    numbers = {group.number for group, _ in shapes}
    with_gpus = [
        group for group in context.cluster.index.classes.values() if any(each.gpus for each in group.shapes.values())
    ]
    everywhere = not context.request.host.node_name and all(group.number in numbers for group in with_gpus)
    return "here" if everywhere else "on the nodes that it may use"


def _whose_model(only: DeviceFilter) -> str:
    if only.models:
        return f" of a model that it asks for ({listed(only.models)})"
    return f" of another model than {listed(only.not_models)}" if only.not_models else ""


def _memory_unknown(gpus: list[Gpu]) -> str:
    models = listed(list(dict.fromkeys(short_name(gpu.report.model) for gpu in gpus)))
    return f"the driver does not report the memory of {models}, so it can only be granted whole"


def _kinds(shapes: Shapes) -> Iterator[tuple[NodeClass, Gpu]]:
    seen: dict[tuple[int, str], None] = {}
    for group, shape in shapes:
        for gpu, _ in shape.gpus:
            if (group.number, gpu.kind) not in seen:
                seen[group.number, gpu.kind] = None
                yield group, gpu


def _reason_of(found: list[tuple[WaitReason, NodeClass, Gpu]], among: frozenset[WaitReason]) -> WaitReason:
    return next(why for why, _, _ in found if why in among)


def _possible(context: SearchContext, gpu: Gpu) -> Iterator[Profile]:
    for profile in gpu.model.profiles if gpu.mig else ():
        in_layout = gpu.layout is None or any(each.profile == profile.name for each in gpu.layout)
        if in_layout and context.cluster.rules.allows(gpu.model, profile.name):
            yield profile


def _no_profile(context: SearchContext, asked: str, gpus: list[Gpu], none_here: str) -> str:
    there = [(short_name(gpu.report.model), profile.name) for gpu in gpus for profile in _possible(context, gpu)]
    nearest = closest_profile(asked, there)
    closest = f". Closest: {nearest}" if nearest is not None else ""
    if any(name == asked for _, name in there):
        return f"{asked} is smaller than the sizes that it asks for beside it"
    knows = [short_name(gpu.report.model) for gpu in gpus if gpu.model.profile(asked) is not None]
    if knows and all(gpu.layout is None for gpu in gpus):
        return f"the operator of this fleet allows no {asked} on {listed(list(dict.fromkeys(knows)))}{closest}"
    if knows:
        return f"{none_here} has {asked} in its fixed layout{closest}"
    others = models_that_have(asked)
    elsewhere = f". {listed(others)} ha{'s' if len(others) == 1 else 've'} it" if others else ""
    return f"{none_here} has {asked}{closest}{elsewhere}"


def _no_size(context: SearchContext, spec: DeviceSpec, gpus: list[Gpu], none_here: str) -> str:
    claim = spec.claim
    most = max(
        [
            (size.memory_mib, f"{size.name} ({short_name(gpu.report.model)})")
            for gpu in gpus
            for size in _possible(context, gpu)
        ]
        or [(gpu.memory_mib, short_name(gpu.report.model)) for gpu in gpus]
    )
    if claim.memory_mib is not None and claim.memory_mib > most[0]:
        asked, has = both_amounts(claim.memory_mib, most[0])
        return f"{none_here} has {asked} of memory for one device; the most is {has}: {most[1]}"
    sms = max((size.multiprocessors for gpu in gpus for size in _possible(context, gpu)), default=0)
    if claim.sm_count is not None and claim.sm_count > sms:
        return f"{none_here} has {claim.sm_count} SMs for one device; the most is {sms}"
    return f"{none_here} has a device for it with all of {', '.join(claim_sizes(claim)) or 'a whole GPU'}"


def _no_mode(spec: DeviceSpec, gpus: list[Gpu], none_here: str) -> str:
    if spec.claim.modes == ("exclusive",) and spec.claim.shares_percent is None and not any(gpu.mig for gpu in gpus):
        sizes = ", ".join(claim_sizes(spec.claim))
        return f"{none_here} has MIG on, which an instance of {sizes} needs" if sizes else ""
    if "exclusive" in spec.claim.modes:
        return ""
    return f"no node here serves the mode that it asks for ({claim_modes(spec.claim)})"


def both_amounts(asked_mib: int, most_mib: int) -> tuple[str, str]:
    """Two amounts of memory, in GiB where that tells them apart."""
    if min(asked_mib, most_mib) < 10 * 1024 or asked_mib // 1024 == most_mib // 1024:
        return f"{asked_mib} MiB", f"{most_mib} MiB"
    return f"{asked_mib / 1024:.4g} GiB", f"{most_mib // 1024} GiB"
