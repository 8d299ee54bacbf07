"""Turn the CEL selectors of a request into shapes that the allocator understands: profiles, and filters of models.

The selectors are evaluated on every virtual device, and a shape admits none that they exclude. Among many profiles only
the smallest of each model is asked for."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import NoReturn

from msgspec.structs import replace

from sluice.contracts.dra import virtual_devices
from sluice.contracts.dra.cel_functions import CelError, holds, literals
from sluice.contracts.ids import GpuUuid
from sluice.contracts.messages import DeviceFilter
from sluice.contracts.messages.requests import ANY_DEVICE
from sluice.contracts.reasons import RefusalReason, shorten
from sluice.contracts.request_syntax.source_text import SourceValue, did_you_mean
from sluice.contracts.request_syntax.values import LIST_MAX
from sluice.mig.catalog import normalized_name
from sluice.mig.model import GpuModel
from sluice.mig.model_names import is_meant, suggestions
from sluice.mig.profile_name import ProfileName, ProfileNameError


@lru_cache(maxsize=512)
def filter_for(wanted: frozenset[str], others: frozenset[str], models: tuple[GpuModel, ...]) -> DeviceFilter | None:
    """The filter that admits every product in `wanted` and none of `others`; None where names cannot say that."""
    by_model = [model for model in models if wanted.issuperset(virtual_devices.products_of(model))]
    covered = {name for model in by_model for name in virtual_devices.products_of(model)}
    keys = (*(model.key for model in by_model), *sorted(wanted - covered))
    for names in (keys, tuple(sorted(wanted))):
        astray = tuple(sorted(each for each in others if any(is_meant(each, name) for name in names)))
        found = DeviceFilter(models=names, not_models=astray)
        exact = all(admits(found, each) for each in wanted) and not any(admits(found, each) for each in others)
        if len(names) <= LIST_MAX and len(astray) <= LIST_MAX and exact:
            return found
    return None


def admits(only: DeviceFilter, product: str) -> bool:
    if any(is_meant(product, part) for part in only.not_models):
        return False
    return not only.models or any(is_meant(product, part) for part in only.models)


SELECTORS_MAX = 16 * 1024
"""Characters of all selectors of a request, counted once for each UUID in them: each is evaluated on each device."""
PROFILES_MAX = 8
"""Profiles of one request that are all tried, smallest first. Of more, only the smallest of each model is."""
_ANOTHER = GpuUuid("GPU-ffffffff-ffff-ffff-ffff-ffffffffffff")
"""Any GPU that no selector names."""
_UUID = r"(?:'GPU-[0-9A-Za-z-]{1,64}'|\"GPU-[0-9A-Za-z-]{1,64}\")"
_ON_UUID = re.compile(
    rf"\.(?:uuid|parentUUID)\s*(?:(?:==|!=)\s*{_UUID}|in\s*\[\s*{_UUID}(?:\s*,\s*{_UUID})*\s*\])"
    rf"|{_UUID}\s*(?:==|!=)\s*[\w.\[\]'\"]*\.(?:uuid|parentUUID)\b"
)
_UUID_WORD = re.compile(r"\b(?:uuid|parentUUID)\b")
_WORD = re.compile(r"\w+")
_OF_MODELS = frozenset({"productName", "architecture", "cudaComputeCapability", "capacity"})


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of device: a profile, or a whole GPU (None), of the GPUs of a filter."""

    profile: str | None
    only: DeviceFilter


@dataclass(frozen=True, slots=True)
class _Devices:
    """The devices that match on one GPU, and what went wrong on the others."""

    matching: tuple[virtual_devices.VirtualDevice, ...]
    problem: tuple[str, CelError] | None
    """The first selector that cannot be evaluated on one of them."""


def shapes_of(
    selectors: Sequence[SourceValue], least: Mapping[str, int], models: tuple[GpuModel, ...], asked: SourceValue
) -> tuple[Shape, ...]:
    """The shapes that all selectors admit, smallest first; `least` in bytes and counts. Raises RequestSyntaxError."""
    texts = {each.text(): each for each in selectors}
    for text, written in texts.items():
        _check_words(text, written)
    uuids = tuple(dict.fromkeys(GpuUuid(each) for text in texts for each in literals(text) if each.startswith("GPU-")))
    uuids = uuids if any(_UUID_WORD.search(text) for text in texts) else ()
    size = sum(len(text) for text in texts) * (1 + len(uuids))
    if size > SELECTORS_MAX:
        why = f"the selectors of this request have {size} characters, counted for each UUID in them"
        raise asked.too_large(why, f"at most {SELECTORS_MAX}")
    named = tuple(chain.from_iterable(literals(text) for text in texts))
    known = {profile.name for model in models for profile in model.profiles}
    unlisted = dict.fromkeys(each for each in named if each not in known and _is_profile(each))
    pool = (*virtual_devices.virtual_devices(models), *map(virtual_devices.unlisted, unlisted))
    asked_least = tuple(sorted(least.items()))
    found = {uuid: _on_gpu(pool, tuple(texts), asked_least, uuid, named) for uuid in (_ANOTHER, *uuids)}
    matching, only = _by_uuid(found, asked)
    if not matching:
        _refuse_nothing(found.values(), texts, asked, models)
    depends = bool(least) or any(_OF_MODELS & set(_WORD.findall(text)) for text in texts)
    return _shapes(matching, pool, models, only, asked, depends=depends)


def _check_words(text: str, written: SourceValue) -> None:
    """Refuse what no virtual device can answer: facts of a node, and UUIDs but for comparing them."""
    for word in _WORD.findall(text):
        if word in virtual_devices.UNKNOWN and word not in {"index", "minor"}:
            why, right = virtual_devices.UNKNOWN[word]
            raise written.unsupported(f"Sluice cannot select by {word}: {why}", right)
    if _UUID_WORD.search(_ON_UUID.sub("", text)):
        why = "a UUID can only be compared as a whole"
        right = "uuid == 'GPU-...', !=, or in ['GPU-...', 'GPU-...']; parentUUID for MIG devices"
        raise written.unsupported(why, right)


def _is_profile(text: str) -> bool:
    try:
        name = ProfileName.parse(text)
    except ProfileNameError:
        return False
    return name.compute_slices == name.slices


@lru_cache(maxsize=256)
def _on_gpu(
    pool: tuple[virtual_devices.VirtualDevice, ...],
    texts: tuple[str, ...],
    least: tuple[tuple[str, int], ...],
    uuid: GpuUuid,
    domains: tuple[str, ...],
) -> _Devices:
    """The devices that match on the GPU of that UUID. A device with an error does not match."""
    matching: list[virtual_devices.VirtualDevice] = []
    problem: tuple[str, CelError] | None = None
    for device in pool:
        variable = device.as_variable(uuid, domains)
        text = ""
        try:
            for text in texts:
                if not holds(text, variable):
                    break
            else:
                if all(device.capacity.get(name, -1) >= size for name, size in least):
                    matching.append(device)
        except CelError as error:
            problem = problem or (text, error)
    return _Devices(tuple(matching), problem)


def _by_uuid(
    found: Mapping[GpuUuid, _Devices], written: SourceValue
) -> tuple[tuple[virtual_devices.VirtualDevice, ...], DeviceFilter]:
    """The matching devices, and the filter by UUID. Refuses a selector that wants another device of another GPU."""
    anywhere = found[_ANOTHER].matching
    elsewhere = {uuid: each.matching for uuid, each in found.items() if uuid != _ANOTHER}
    differing = [each for each in elsewhere.values() if each and each != (anywhere or each)]
    if differing or len({each for each in elsewhere.values() if each}) > 1:
        why = "it selects different devices on different GPUs"
        raise written.unsupported(why, "one request for each, or firstAvailable")
    if anywhere:
        return anywhere, DeviceFilter(not_uuids=tuple(uuid for uuid, each in elsewhere.items() if not each))
    wanted = tuple(uuid for uuid, each in elsewhere.items() if each)
    return next((each for each in elsewhere.values() if each), ()), DeviceFilter(uuids=wanted)


def _refuse_nothing(
    found: Iterable[_Devices], texts: Mapping[str, SourceValue], asked: SourceValue, models: tuple[GpuModel, ...]
) -> NoReturn:
    """Why no device matches: an error in a selector, or sizes and names that no GPU has."""
    problem = next((each.problem for each in found if each.problem is not None), None)
    if problem is not None:
        wrong, error = problem
        raise texts[wrong].wrong(*_about(error))
    named = [each for text in texts for each in literals(text)]
    models_near = [f"; did you mean {alike[0]}?" for each in named if (alike := suggestions(each, models))]
    profiles = tuple(dict.fromkeys(profile.name for model in models for profile in model.profiles))
    asked_for = [each for each in named if "gb" in each.casefold() and each not in profiles]
    near = [did_you_mean(each.casefold(), profiles) for each in asked_for]
    why = f"no GPU that Sluice knows has such a device{next(filter(None, (*near, *models_near)), '')}"
    right = "a profile or productName of docs/models.md; GPUs that are not in it by class sluice.dev and gpu-model"
    raise asked.wrong(RefusalReason.UNKNOWN_PROFILE, why, right)


def _about(error: CelError) -> tuple[RefusalReason, str, str]:
    known = (*virtual_devices.ATTRIBUTES, *virtual_devices.CAPACITIES)
    if error.missing in virtual_devices.UNKNOWN:
        why, right = virtual_devices.UNKNOWN[error.missing]
        return RefusalReason.UNSUPPORTED_KEY, f"no device has the attribute {error.missing}: {why}", right
    if error.missing:
        why = f"no device has {shorten(error.missing, 63)!r}{did_you_mean(error.missing, known)}"
        attributes, capacities = ", ".join(virtual_devices.ATTRIBUTES), ", ".join(virtual_devices.CAPACITIES)
        right = f"of {virtual_devices.NVIDIA}: attributes {attributes}; capacities {capacities}"
        return RefusalReason.UNKNOWN_KEY, why, right
    right = "an expression over device.driver, device.attributes and device.capacity that is true or false"
    return RefusalReason.INVALID_VALUE, f"it cannot be evaluated: {shorten(error.why, 200)}", right


def _shapes(
    matching: tuple[virtual_devices.VirtualDevice, ...],
    pool: tuple[virtual_devices.VirtualDevice, ...],
    models: tuple[GpuModel, ...],
    only: DeviceFilter,
    asked: SourceValue,
    *,
    depends: bool,
) -> tuple[Shape, ...]:
    """One shape for each profile, smallest first, whole GPUs last; without products that no filter can tell apart."""
    names = dict.fromkeys(each.name for each in sorted(matching, key=_size))
    if len(names) > PROFILES_MAX:
        smallest: dict[str, str | None] = {}
        for each in sorted(matching, key=_size):
            smallest.setdefault(each.product, each.name)
        names = {name: None for name in names if name in smallest.values()}
    shapes = []
    others_by_name = _products(set(pool).difference(matching))
    for name in names:
        found = frozenset(each.product for each in matching if each.name == name)
        others = frozenset(others_by_name.get(name, ()))
        alike = {normalized_name(each) for each in others}
        wanted = frozenset(each for each in found if normalized_name(each) not in alike)
        by_model: DeviceFilter | None = ANY_DEVICE
        if (depends or others) and wanted != {""}:
            by_model = filter_for(wanted, others, models) if wanted else None
        if by_model is not None:
            shapes.append(Shape(name, replace(only, models=by_model.models, not_models=by_model.not_models)))
    if not shapes:
        why = "no list of models is exactly those that match it"
        raise asked.unsupported(why, "a selector by whole product names, productName == '...'")
    return tuple(shapes)


def _products(devices: Iterable[virtual_devices.VirtualDevice]) -> dict[str | None, set[str]]:
    found: dict[str | None, set[str]] = {}
    for each in devices:
        found.setdefault(each.name, set()).add(each.product)
    return found


def _size(device: virtual_devices.VirtualDevice) -> tuple[bool, int, int, int, str]:
    """Instances before whole GPUs, small before large, plain before those with attributes such as `+me`."""
    profile = device.profile
    if profile is None:
        return device.name is None, 0, 0, 0, device.name or ""
    extras = len(ProfileName.parse(profile.name).attributes)
    return False, extras, profile.compute_slices, profile.memory_mib, profile.name
