"""Our own vocabulary: `sluice.dev/<key>` for the pod's main container, `<container>.sluice.dev/<key>` for another one.

Pod-level keys (`POD_KEYS`) are only recognised here and parsed by `pod_options` and `pod_parser`."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from msgspec.structs import replace

from sluice.contracts.kube.quantities import WHOLE_MAX
from sluice.contracts.messages import Claim, DeviceFilter
from sluice.contracts.messages.requests import Mode
from sluice.contracts.reasons import RefusalReason, shorten
from sluice.contracts.request_syntax import values
from sluice.contracts.request_syntax.device_limit import devices_max
from sluice.contracts.request_syntax.keys import SLUICE
from sluice.contracts.request_syntax.mig_resources import meant_profile
from sluice.contracts.request_syntax.pod_request import ContainerRequest, RequestLimits
from sluice.contracts.request_syntax.source_text import RequestSyntaxError, SourceValue, did_you_mean
from sluice.mig.model_names import is_meant
from sluice.mig.profile_name import ProfileName, ProfileNameError

SIZE_KEYS = ("profile", "sm-count", "sm-percentage", "memory", "sm-partition", "quota-request", "quota-limit", "shares")
FILTER_KEYS = ("gpu-model", "gpu-model-not", "gpu-uuid", "gpu-uuid-not", "numa-bind")
CONTAINER_KEYS = (*SIZE_KEYS, "gpus", "mode", *FILTER_KEYS)
DRIVER_CAPABILITIES = "driver-capabilities"
"""Allowed beside any vocabulary: it says how a container uses its devices."""
LEEWAY_KEYS = ("preemptible", "movable", "substitute", "idle-after", "idle-protected")
GROUP_KEYS = ("group", "group-size")
POD_KEYS = ("priority", "node-policy", "gpu-policy", *LEEWAY_KEYS, *GROUP_KEYS)
"""Keys of the whole pod, never of one container."""
KEYS = (*CONTAINER_KEYS, DRIVER_CAPABILITIES, *POD_KEYS)
MODES: Mapping[str, Mode] = {
    "exclusive": "exclusive",
    "mps": "mps",
    "fractional": "fractional",
    "fastpod": "fractional",
}
"""The modes as people write them. `auto` is a choice, not a mode."""
MODES_ALLOWED = "exclusive, mps, fractional (or fastpod), several of them in the order to be tried, or auto alone"
MODE_CHARACTERS_MAX = 100

_GRANTED = "granted"
"""`<container>.granted.sluice.dev/<key>` is Sluice's output to a pod, never a request."""
_SERVES: Mapping[str, tuple[Mode, ...]] = {
    "profile": ("exclusive",),
    "sm-count": ("exclusive",),
    "sm-percentage": ("exclusive",),
    "sm-partition": ("fractional",),
    "quota-request": ("fractional",),
    "quota-limit": ("fractional",),
}
"""Keys that apply in some modes only. `memory` applies in every mode."""
_SHARES_EXCLUDE = ("gpus", *(key for key in SIZE_KEYS if key != "shares"))
_FRACTIONAL_BY = ("sm-partition", "quota-request", "quota-limit", "shares")
"""Without a mode, any of these implies `fractional`."""

SourceValues = Mapping[str, SourceValue]
_Value = TypeVar("_Value")


def container_and_key(written: SourceValue, containers: Mapping[str, None]) -> tuple[str | None, str]:
    """The container that a key applies to (None: pod or first one), and the key. Raises RequestSyntaxError."""
    prefix, _, key = written.field.partition("/")
    container = prefix.removesuffix(SLUICE).removesuffix(".")
    if container == _GRANTED or container.endswith(f".{_GRANTED}"):
        raise written.unknown("Sluice writes this key, it is never a request; remove it", _listed(KEYS))
    if key not in KEYS:
        why = f"there is no such key{did_you_mean(key, KEYS, prefix=f'{shorten(prefix, 80)}/')}"
        raise written.unknown(why, _listed(KEYS))
    if not container:
        return None, key
    if key in POD_KEYS:
        raise written.unknown("this key is for the whole pod, not for one container", f"{SLUICE}/{key}")
    if container not in containers:
        names = list(containers)
        why = f"the pod has no container {shorten(container, 63)!r}{did_you_mean(container, names)}"
        raise written.wrong(RefusalReason.UNKNOWN_CONTAINER, why, ", ".join(names[:10]) or "a container")
    return container, key


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(f"{SLUICE}/{key}" for key in keys)


def claim_of(container: ContainerRequest, given: SourceValues, limits: RequestLimits) -> Claim:
    """The claim of a container with at least one key. Raises RequestSyntaxError."""
    modes, snug = _modes(given)
    partition = _take(given, "sm-partition", lambda each: values.whole(each, 1, 100))
    percentage = _take(given, "sm-percentage", lambda each: values.whole(each, 1, 100))
    sm_count = _take(given, "sm-count", lambda each: values.whole(each, 1, WHOLE_MAX))
    profile = _take(given, "profile", _profile)
    if "fractional" in modes and partition is None:
        partition = percentage  # for a whole GPU, at least as much as the largest profile has
    elif "exclusive" in modes and percentage is None and sm_count is None and profile is None:
        percentage = partition  # an instance granted instead of the share is as large a part
    memory_mib, memory_percentage = _memory(given)
    request, limit = _quotas(given)
    shares = _take(given, "shares", lambda each: values.decimal(each, 2, 1, limits.max_gpus_per_node * 100))
    _check_shares(given, modes)
    _check_modes(given, modes)
    claim = Claim(
        container=container.name,
        modes=modes,
        snug=snug,
        profile=profile,
        sm_count=sm_count,
        sm_percentage=percentage,
        memory_mib=memory_mib,
        memory_percentage=memory_percentage,
        sm_partition=partition,
        quota_request_permille=request,
        quota_limit_permille=limit,
        shares_percent=shares,
        only=_filter(given),
        numa_bind=_take(given, "numa-bind", values.boolean) or False,
        uid=container.uid if modes != ("exclusive",) else None,
    )
    most = devices_max(claim, limits.max_gpus_per_node)
    return replace(claim, gpus=_take(given, "gpus", lambda each: values.whole(each, 1, most)) or 1)


def _take(given: SourceValues, key: str, read: Callable[[SourceValue], _Value]) -> _Value | None:
    written = given.get(key)
    return read(written) if written is not None else None


def _modes(given: SourceValues) -> tuple[tuple[Mode, ...], bool]:
    written = given.get("mode")
    if written is None:
        return (("fractional",) if any(key in given for key in _FRACTIONAL_BY) else ("exclusive",)), False
    text = written.text()
    if text == "auto":
        return _auto(given, written), True
    modes: list[Mode] = []
    for part in (each.strip() for each in text[:MODE_CHARACTERS_MAX].split(",")):
        if part == "auto":
            raise written.invalid("auto cannot be part of a list", MODES_ALLOWED)
        if part not in MODES:
            why = f"there is no mode {shorten(part, 30)!r}{did_you_mean(part, (*MODES, 'auto'))}"
            raise written.invalid(why, MODES_ALLOWED)
        if MODES[part] in modes:
            raise written.invalid(f"{part} is listed twice", MODES_ALLOWED)
        modes.append(MODES[part])
    return tuple(modes), False


def _auto(given: SourceValues, mode: SourceValue) -> tuple[Mode, ...]:
    """An instance where it fits snugly, else a share: of SMs where a part of them is known, else of memory."""
    if "shares" in given:
        return ("exclusive", "fractional")
    if "sm-partition" in given or ("sm-percentage" in given and "sm-count" not in given and "profile" not in given):
        return ("exclusive", "fractional")
    if "memory" not in given:
        raise mode.contradiction("a share needs a size", _listed(("memory", "sm-percentage", "sm-partition")))
    return ("exclusive", "mps")


def _check_shares(given: SourceValues, modes: tuple[Mode, ...]) -> None:
    shares = given.get("shares")
    if shares is None:
        return
    for key in _SHARES_EXCLUDE:
        if key in given:
            why = "shares alone says how much of how many GPUs"
            raise given[key].contradicts(shares, why, f"one of {_listed(('shares', key))}")
    if modes != ("fractional",):
        raise given["mode"].contradicts(shares, "shares of GPUs are fractional", "fractional, or no mode")


def _check_modes(given: SourceValues, modes: tuple[Mode, ...]) -> None:
    """Every key must apply in one of the modes, and every mode must have what it needs."""
    implied = next((given[key] for key in _FRACTIONAL_BY if key in given), None)
    mode = given.get("mode", implied)
    if mode is None:
        return
    auto = mode.field.endswith("/mode") and mode.raw == "auto"
    for key, served in _SERVES.items():
        if key in given and not auto and not any(each in served for each in modes):
            why = f"it has no effect in mode {' or '.join(modes)}"
            raise given[key].contradicts(mode, why, f"mode {' or '.join(served)}, or no {SLUICE}/{key}")
    if auto and "fractional" not in modes:
        for key in ("quota-request", "quota-limit"):
            if key in given:
                raise given[key].contradicts(mode, "without a part of the SMs the share is one of memory", _PARTITION)
    if "fractional" in modes and not auto and not any(key in given for key in ("sm-partition", "shares")):
        raise mode.contradiction("a fractional share needs a part of the SMs", _PARTITION)
    if "mps" in modes and "memory" not in given:
        raise mode.contradiction("an MPS share needs an amount of memory", f"{SLUICE}/memory")


_PARTITION = f"{SLUICE}/sm-partition = 1 to 100 beside it"


def _profile(written: SourceValue) -> str:
    values.refuse_compute_instance(written, written.text())
    try:
        return str(ProfileName.parse(written.text()))
    except ProfileNameError:
        allowed = "for instance 1g.5gb, 3g.20gb or 1g.5gb+me"
        why = f"not the name of a MIG profile{meant_profile(written.text())}"
        raise written.wrong(RefusalReason.UNKNOWN_PROFILE, why, allowed) from None


def _memory(given: SourceValues) -> tuple[int | None, int | None]:
    """MiB and percent; at most one of them."""
    written = given.get("memory")
    if written is None:
        return None, None
    text = written.text()
    if not text.endswith("%"):
        return values.memory_mib(written), None
    try:
        return None, values.whole(SourceValue(written.field, text[:-1]), 1, 100)
    except RequestSyntaxError as wrong:
        raise written.wrong(wrong.refusal.reason, wrong.refusal.message, "from 1% to 100%, in whole percent") from None


def _quotas(given: SourceValues) -> tuple[int, int]:
    request = _take(given, "quota-request", _part_of_time)
    limit = _take(given, "quota-limit", _part_of_time)
    if request is not None and limit is not None and request > limit:
        why = "the guaranteed part cannot exceed the limit"
        raise given["quota-request"].contradicts(given["quota-limit"], why, "at most the limit")
    if limit is None:
        limit = 1000
    return (request if request is not None else limit), limit


def _part_of_time(written: SourceValue) -> int:
    return values.decimal(written, 3, 1, 1000)


def _filter(given: SourceValues) -> DeviceFilter:
    models, not_models = _names(given, "gpu-model"), _names(given, "gpu-model-not")
    if models and all(any(is_meant(model, part) for part in not_models) for model in models):
        raise given["gpu-model-not"].contradicts(given["gpu-model"], "no GPU is left", "models that are not wanted")
    uuids, not_uuids = (_take(given, key, values.uuids) or () for key in ("gpu-uuid", "gpu-uuid-not"))
    if uuids and all(uuid in not_uuids for uuid in uuids):
        raise given["gpu-uuid-not"].contradicts(given["gpu-uuid"], "no GPU is left", "GPUs that are not wanted")
    return DeviceFilter(models=models, not_models=not_models, uuids=uuids, not_uuids=not_uuids)


def _names(given: SourceValues, key: str) -> tuple[str, ...]:
    return _take(given, key, lambda each: values.names(each, "GPU models")) or ()
