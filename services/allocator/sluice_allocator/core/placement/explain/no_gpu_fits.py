"""Why no existing GPU could serve even one device of a claim, whatever is booked, and what is nearest."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from sluice.contracts.messages import DeviceFilter
from sluice.contracts.reasons import WaitReason, shorten
from sluice.contracts.request_syntax import claim_modes, claim_sizes
from sluice.contracts.request_syntax.keys import HAMI, VOLCANO
from sluice.contracts.request_syntax.source_text import did_you_mean
from sluice.mig.catalog import catalog, find_model
from sluice.mig.model import Profile
from sluice.mig.profile_name import ProfileName, ProfileNameError
from sluice_allocator.core.placement.explain.capacity_bound import is_unread, never_on
from sluice_allocator.core.placement.index.node_class import NodeClass
from sluice_allocator.core.placement.nodes.device_spec import DeviceSpec
from sluice_allocator.core.placement.nodes.gpu import Gpu
from sluice_allocator.core.placement.nodes.node_shape import NodeShape
from sluice_allocator.core.placement.search.context import SearchContext

NAMED_MAX = 3  # most models, labels or taints named in a sentence


class Closest(msgspec.Struct, frozen=True):
    """A profile, and the models here that have it, in short names."""

    profile: str
    models: tuple[str, ...]

    def __str__(self) -> str:
        """`4g.40gb (H100, A100-80GB)`."""
        return f"{self.profile} ({listed(self.models)})"


def closest_profile(asked: str, there: Iterable[tuple[str, str]]) -> Closest | None:
    """Of the available profiles, each with its model's short name, the one most like the `asked` name."""
    wanted = _parsed(asked)
    models: dict[str, dict[str, None]] = {}
    for model, profile in there:
        models.setdefault(profile, {})[model] = None
    known = [(name, parsed) for name in models if (parsed := _parsed(name)) is not None]
    if wanted is None or not known:
        return None
    name, _ = min(known, key=lambda each: (*_distance(wanted, each[1]), each[0]))
    return Closest(name, tuple(models[name]))


def _distance(wanted: ProfileName, other: ProfileName) -> tuple[int, bool, int, int]:
    slices, memory_gb = other.slices - wanted.slices, other.memory_gb - wanted.memory_gb
    return abs(slices), slices < 0, len({*wanted.attributes} ^ {*other.attributes}), abs(memory_gb)


def _parsed(name: str) -> ProfileName | None:
    try:
        return ProfileName.parse(name)
    except ProfileNameError:
        return None


def models_that_have(profile: str) -> tuple[str, ...]:
    return tuple(model.key.upper() for model in catalog() if model.profile(profile) is not None)


def profiles_of_the_catalog() -> list[tuple[str, str]]:
    return [(model.key.upper(), profile.name) for model in catalog() for profile in model.profiles]


def short_name(product: str) -> str:
    known = find_model(product)
    return known.key.upper() if known is not None else product.removeprefix("NVIDIA ")


def no_such_resource(name: str, there: Sequence[str]) -> str:
    known = [*there, *HAMI.resources, *VOLCANO.resources]
    return f"no node here has the resource {shorten(name)}{did_you_mean(name, known)}"


def no_such_label(key: str, value: str, values: Sequence[str], keys: Sequence[str]) -> str:
    if values:
        others = listed([f"{key}={each}" for each in values])
        return f"no node here has the label {key}={value}; there {'is' if len(values) == 1 else 'are'} {others}"
    return f"no node here has a label {key}{did_you_mean(key, keys)}"


def listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(shorten(each) for each in names[:NAMED_MAX]) + more


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
        models = listed(list(dict.fromkeys(short_name(gpu.report.model) for _, _, gpu in wanted)))
        words = f"the driver does not report the memory of {models}, so it can only be granted whole"
        return Impossible(WaitReason.GPU_MEMORY_UNKNOWN, words)
    none_here = f"no GPU{_whose_model(only)} {here}"
    sized = [gpu for why, group, gpu in wanted if why in _NO_PROFILE and "exclusive" in group.modes]
    if sized and spec.claim.profile is not None:
        why = next(why for why, _, _ in wanted if why in _NO_PROFILE)
        return Impossible(why, _no_profile(context, spec.claim.profile, sized, none_here))
    too_small = [(why, gpu) for why, _, gpu in wanted if why in {*_NO_PROFILE, WaitReason.GPU_INSUFFICIENT_MEMORY}]
    if too_small:
        return Impossible(too_small[0][0], _no_size(context, spec, [gpu for _, gpu in too_small], none_here))
    return Impossible(wanted[0][0], _no_mode(spec, [gpu for _, _, gpu in wanted], none_here))


def _here(context: SearchContext, shapes: Shapes) -> str:
    """The GPUs that a sentence is about: where some nodes are excluded, those may have what is missing."""
    classes = context.cluster.index.classes.values()
    with_gpus = {group.number for group in classes if any(each.gpus for each in group.shapes.values())}
    everywhere = not context.request.host.node_name and with_gpus <= {group.number for group, _ in shapes}
    return "here" if everywhere else "on the nodes that it may use"


def _whose_model(only: DeviceFilter) -> str:
    if only.models:
        return f" of a model that it asks for ({listed(only.models)})"
    return f" of another model than {listed(only.not_models)}" if only.not_models else ""


def _kinds(shapes: Shapes) -> Iterable[tuple[NodeClass, Gpu]]:
    kinds: dict[tuple[int, str], tuple[NodeClass, Gpu]] = {}
    for group, shape in shapes:
        for gpu, _ in shape.gpus:
            kinds.setdefault((group.number, gpu.kind), (group, gpu))
    return kinds.values()


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
    named = [(gpu, short_name(gpu.report.model)) for gpu in gpus]
    sizes = [(size.memory_mib, f"{size.name} ({name})") for gpu, name in named for size in _possible(context, gpu)]
    most = max(sizes or [(gpu.memory_mib, name) for gpu, name in named])
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
