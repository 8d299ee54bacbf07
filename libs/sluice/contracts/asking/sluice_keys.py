"""
Our own vocabulary: `sluice.dev/<key>` for the pod's main container, `<container>.sluice.dev/<key>` for another one.

Reads one container's keys into a claim, and refuses keys that contradict each other. What is of the pod at large is
only told apart here (`POD_KEYS`), and read by whoever reads the pod.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from msgspec.structs import replace

from sluice.contracts.asking import values
from sluice.contracts.asking.counting import devices_max
from sluice.contracts.asking.keys import SLUICE
from sluice.contracts.asking.pods import AskLimits, ContainerAsk
from sluice.contracts.asking.profiles import meant_profile
from sluice.contracts.asking.written import AskError, Written, nearest
from sluice.contracts.ids import GpuUuid
from sluice.contracts.messages import Claim, DeviceFilter
from sluice.contracts.messages.requests import Mode
from sluice.contracts.quantities import WHOLE_MAX
from sluice.contracts.refusals import RefusalReason, shorten
from sluice.mig.naming import is_meant
from sluice.mig.profile import ProfileName, ProfileNameError

SIZE_KEYS = ("profile", "sm-count", "sm-percentage", "memory", "sm-partition", "quota-request", "quota-limit", "shares")
FILTER_KEYS = ("gpu-model", "gpu-model-not", "gpu-uuid", "gpu-uuid-not", "numa-bind")
CONTAINER_KEYS = (*SIZE_KEYS, "gpus", "mode", *FILTER_KEYS)
DRIVER_CAPABILITIES = "driver-capabilities"
"""Stands beside any vocabulary: it says how a container uses what it asks for, in whichever words."""
LEEWAY_KEYS = ("preemptible", "movable", "substitute")
GROUP_KEYS = ("group", "group-size")
POD_KEYS = ("priority", "node-policy", "gpu-policy", *LEEWAY_KEYS, *GROUP_KEYS)
"""What is said of the whole pod, never of one container."""
KEYS = (*CONTAINER_KEYS, DRIVER_CAPABILITIES, *POD_KEYS)
"""Every key that a person may write."""
MODES: Mapping[str, Mode] = {
    "exclusive": "exclusive",
    "mps": "mps",
    "fractional": "fractional",
    "fastpod": "fractional",
}
"""The modes as people write them. `auto` is none: it stands for a choice."""
MODES_ALLOWED = "exclusive, mps, fractional (or fastpod), several of them in the order to be tried, or auto alone"
MODE_CHARACTERS_MAX = 100

_GRANTED = "granted"
"""`<container>.granted.sluice.dev/<key>` is what Sluice tells a pod, never what a pod asks."""
_SERVES: Mapping[str, tuple[Mode, ...]] = {
    "profile": ("exclusive",),
    "sm-count": ("exclusive",),
    "sm-percentage": ("exclusive",),
    "sm-partition": ("fractional",),
    "quota-request": ("fractional",),
    "quota-limit": ("fractional",),
}
"""Keys that say something in some modes only. `memory` does in every mode."""
_SHARES_EXCLUDE = ("gpus", *(key for key in SIZE_KEYS if key != "shares"))
_FRACTIONAL_BY = ("sm-partition", "quota-request", "quota-limit", "shares")
"""Without a mode, any of these means `fractional`."""

Said = Mapping[str, Written]
"""What one container says, by key."""
_Value = TypeVar("_Value")


# -- one key ------------------------------------------------------------------------------------------------------


def container_and_key(written: Written, containers: Mapping[str, None]) -> tuple[str | None, str]:
    """
    The container that a key speaks for (None: the pod, or its first one), and the key. Raises AskError.

    `containers` are the pod's, by name, in their order.
    """
    prefix, _, key = written.field.partition("/")
    container = prefix.removesuffix(SLUICE).removesuffix(".")
    if container == _GRANTED or container.endswith(f".{_GRANTED}"):
        why = "what was granted is written by Sluice, never asked for; remove it"
        raise written.wrong(RefusalReason.UNKNOWN_KEY, why, _listed(KEYS))
    if key not in KEYS:
        why = f"there is no such key{nearest(key, KEYS, prefix=f'{shorten(prefix, 80)}/')}"
        raise written.wrong(RefusalReason.UNKNOWN_KEY, why, _listed(KEYS))
    if not container:
        return None, key
    if key in POD_KEYS:
        why = "this is said of the whole pod, not of one container"
        raise written.wrong(RefusalReason.UNKNOWN_KEY, why, f"{SLUICE}/{key}")
    if container not in containers:
        names = list(containers)
        why = f"the pod has no container {shorten(container, 63)!r}{nearest(container, names)}"
        raise written.wrong(RefusalReason.UNKNOWN_CONTAINER, why, ", ".join(names[:10]) or "a container")
    return container, key


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(f"{SLUICE}/{key}" for key in keys)


# -- one container ------------------------------------------------------------------------------------------------


def claim_of(container: ContainerAsk, said: Said, limits: AskLimits) -> Claim:
    """The claim of a container that says at least one key. Raises AskError."""
    modes, snug = _modes(said)
    partition = _take(said, "sm-partition", lambda each: values.whole(each, 1, 100))
    percentage = _take(said, "sm-percentage", lambda each: values.whole(each, 1, 100))
    sm_count = _take(said, "sm-count", lambda each: values.whole(each, 1, WHOLE_MAX))
    profile = _take(said, "profile", _profile)
    if "fractional" in modes and partition is None:
        partition = percentage  # of a whole GPU, it is at least as much as of the largest profile
    elif "exclusive" in modes and percentage is None and sm_count is None and profile is None:
        percentage = partition  # an instance that is given instead of the share is as large a part
    memory_mib, memory_percentage = _memory(said)
    request, limit = _quotas(said)
    shares = _take(said, "shares", lambda each: values.decimal(each, 2, 1, limits.max_gpus_per_node * 100))
    _check_shares(said, modes)
    _check_modes(said, modes)
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
        only=_filter(said),
        numa_bind=_take(said, "numa-bind", values.truth) or False,
        uid=container.uid if modes != ("exclusive",) else None,
    )
    most = devices_max(claim, limits.max_gpus_per_node)
    return replace(claim, gpus=_take(said, "gpus", lambda each: values.whole(each, 1, most)) or 1)


def _take(said: Said, key: str, read: Callable[[Written], _Value]) -> _Value | None:
    written = said.get(key)
    return read(written) if written is not None else None


def _modes(said: Said) -> tuple[tuple[Mode, ...], bool]:
    """The modes in the order in which they are tried, and whether the choice is `auto`."""
    written = said.get("mode")
    if written is None:
        return (("fractional",) if any(key in said for key in _FRACTIONAL_BY) else ("exclusive",)), False
    text = written.text()
    if text == "auto":
        return _auto(said, written), True
    modes: list[Mode] = []
    for part in (each.strip() for each in text[:MODE_CHARACTERS_MAX].split(",")):
        if part == "auto":
            raise written.wrong(RefusalReason.INVALID_VALUE, "auto is no part of a list", MODES_ALLOWED)
        if part not in MODES:
            why = f"there is no mode {shorten(part, 30)!r}{nearest(part, (*MODES, 'auto'))}"
            raise written.wrong(RefusalReason.INVALID_VALUE, why, MODES_ALLOWED)
        if MODES[part] in modes:
            raise written.wrong(RefusalReason.INVALID_VALUE, f"{part} is there twice", MODES_ALLOWED)
        modes.append(MODES[part])
    return tuple(modes), False


def _auto(said: Said, mode: Written) -> tuple[Mode, ...]:
    """An instance where it fits snugly, else a share: of SMs where a part of them is known, else of memory."""
    if "shares" in said:
        return ("exclusive", "fractional")
    if "sm-partition" in said or ("sm-percentage" in said and "sm-count" not in said and "profile" not in said):
        return ("exclusive", "fractional")
    if "memory" not in said:
        why = "a share needs a size"
        raise mode.wrong(RefusalReason.CONTRADICTION, why, _listed(("memory", "sm-percentage", "sm-partition")))
    return ("exclusive", "mps")


def _check_shares(said: Said, modes: tuple[Mode, ...]) -> None:
    shares = said.get("shares")
    if shares is None:
        return
    for key in _SHARES_EXCLUDE:
        if key in said:
            why = "shares say it all: how much of how many GPUs"
            raise said[key].contradicts(shares, why, f"one of {_listed(('shares', key))}")
    if modes != ("fractional",):
        why = "shares of GPUs are fractional"
        raise said["mode"].contradicts(shares, why, "fractional, or no mode")


def _check_modes(said: Said, modes: tuple[Mode, ...]) -> None:
    """Every key must say something in one of the modes, and every mode must have what it needs."""
    implied = next((said[key] for key in _FRACTIONAL_BY if key in said), None)
    mode = said.get("mode", implied)
    if mode is None:
        return
    auto = mode.field.endswith("/mode") and mode.raw == "auto"
    for key, served in _SERVES.items():
        if key in said and not auto and not any(each in served for each in modes):
            why = f"it says nothing in mode {' or '.join(modes)}"
            raise said[key].contradicts(mode, why, f"mode {' or '.join(served)}, or no {SLUICE}/{key}")
    if auto and "fractional" not in modes:
        for key in ("quota-request", "quota-limit"):
            if key in said:
                raise said[key].contradicts(mode, "without a part of the SMs the share is one of memory", _PARTITION)
    if "fractional" in modes and not auto and not any(key in said for key in ("sm-partition", "shares")):
        raise mode.wrong(RefusalReason.CONTRADICTION, "a fractional share needs a part of the SMs", _PARTITION)
    if "mps" in modes and "memory" not in said:
        raise mode.wrong(RefusalReason.CONTRADICTION, "an MPS share needs an amount of memory", f"{SLUICE}/memory")


_PARTITION = f"{SLUICE}/sm-partition = 1 to 100 beside it"


def _profile(written: Written) -> str:
    values.refuse_compute_instance(written, written.text())
    try:
        return str(ProfileName.parse(written.text()))
    except ProfileNameError:
        allowed = "for instance 1g.5gb, 3g.20gb or 1g.5gb+me"
        why = f"not the name of a MIG profile{meant_profile(written.text())}"
        raise written.wrong(RefusalReason.UNKNOWN_PROFILE, why, allowed) from None


def _memory(said: Said) -> tuple[int | None, int | None]:
    """MiB and percent; at most one of them."""
    written = said.get("memory")
    if written is None:
        return None, None
    text = written.text()
    if not text.endswith("%"):
        return values.memory_mib(written), None
    try:
        return None, values.whole(Written(written.field, text[:-1]), 1, 100)
    except AskError as wrong:
        raise written.wrong(wrong.refusal.reason, wrong.refusal.message, "from 1% to 100%, in whole percent") from None


def _quotas(said: Said) -> tuple[int, int]:
    """Request and limit in thousandths of each time window. A limit alone is the request too."""
    request = _take(said, "quota-request", _part_of_time)
    limit = _take(said, "quota-limit", _part_of_time)
    if request is not None and limit is not None and request > limit:
        why = "what is sure cannot be more than what is allowed"
        raise said["quota-request"].contradicts(said["quota-limit"], why, "at most the limit")
    if limit is None:
        limit = 1000
    return (request if request is not None else limit), limit


def _part_of_time(written: Written) -> int:
    return values.decimal(written, 3, 1, 1000)


def _filter(said: Said) -> DeviceFilter:
    models, not_models = _names(said, "gpu-model"), _names(said, "gpu-model-not")
    if models and all(any(is_meant(model, part) for part in not_models) for model in models):
        raise said["gpu-model-not"].contradicts(said["gpu-model"], "no GPU is left", "models that are not wanted")
    uuids, not_uuids = _uuids(said, "gpu-uuid"), _uuids(said, "gpu-uuid-not")
    if uuids and all(uuid in not_uuids for uuid in uuids):
        raise said["gpu-uuid-not"].contradicts(said["gpu-uuid"], "no GPU is left", "GPUs that are not wanted")
    return DeviceFilter(models=models, not_models=not_models, uuids=uuids, not_uuids=not_uuids)


def _names(said: Said, key: str) -> tuple[str, ...]:
    return _listed_by(said, key, lambda each: values.names(each, "GPU models"))


def _uuids(said: Said, key: str) -> tuple[GpuUuid, ...]:
    return _listed_by(said, key, values.uuids)


def _listed_by(said: Said, key: str, read: Callable[[Written], tuple[_Value, ...]]) -> tuple[_Value, ...]:
    written = said.get(key)
    return read(written) if written is not None else ()
