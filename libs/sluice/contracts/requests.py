"""
What a pod asks for, read from its annotations: the vocabulary `sluice.dev/<key>`.

Every value is checked here, before anything is asked of the allocator, and each refusal names the annotation, the
value as written and what would be right. Which profiles there are is not decided here (a live GPU may report some
that no catalog has); what contradicts itself on every known model is.

* `sluice.dev/<key>` speaks for the pod's only container, or for the first one when there are several.
* `<container>.sluice.dev/<key>` speaks for that container, and replaces `sluice.dev/<key>` there.
* A claim without any size (`profile`, `sm-count`, `sm-percentage`, `memory`) is a whole GPU each.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sluice.contracts.messages import Claim
from sluice.contracts.quantities import (
    MEMORY_ALLOWED,
    MEMORY_MIB_MAX,
    WHOLE_MAX,
    NotANumber,
    parse_memory_mib,
    parse_whole,
)
from sluice.contracts.refusals import Refusal, RefusalReason, shorten
from sluice.mig.catalog import catalog
from sluice.mig.model import GpuModel, Profile
from sluice.mig.profile import ProfileName, ProfileNameError

DOMAIN = "sluice.dev"
KEYS = ("profile", "sm-count", "sm-percentage", "memory", "gpus", "mode")
"""Every key that a person may write."""
MODES_TO_COME = ("mps", "fractional", "fastpod", "auto")
"""Modes that are designed and not built; a list of modes (`exclusive,mps`) is one of them."""
_GRANTED = "granted"
"""`<container>.granted.sluice.dev/<key>` is what Sluice tells a pod, never what a pod asks."""


@dataclass(frozen=True, slots=True)
class Unquoted:
    """A value of a manifest that is no string (`2`, `true`, `null`), as it was written."""

    text: str


Value = int | str
"""A checked value: numbers are whole, memory is in MiB."""


def is_ours(key: str) -> bool:
    """Whether an annotation's key belongs to Sluice."""
    prefix = key.partition("/")[0]
    return prefix == DOMAIN or prefix.endswith(f".{DOMAIN}")


def parse_claims(
    annotations: Mapping[str, object], containers: Sequence[str], *, max_gpus_per_node: int = 8
) -> tuple[Claim, ...] | Refusal:
    """
    The claims of a pod with these annotations and containers (names, in their order); () when it asks for nothing.

    The first annotation that is wrong refuses the whole pod. Never raises, whatever the annotations hold.
    """
    said: dict[str, dict[str, tuple[str, Value]]] = {name: {} for name in containers}
    overridden: dict[str, tuple[str, Value]] = {}
    for field, raw in annotations.items():
        if not is_ours(field):
            continue
        if not containers:
            return _refuse(RefusalReason.UNKNOWN_CONTAINER, field, raw, "the pod has no containers", "a container")
        place = _container_and_key(field, raw, containers)
        if isinstance(place, Refusal):
            return place
        container, key = place
        value = _value(field, key, raw, max_gpus_per_node)
        if isinstance(value, Refusal):
            return value
        target = overridden if container is None else said[container]
        target[key] = (field, value)
    if containers:
        said[containers[0]] = overridden | said[containers[0]]
    return _claims(said, max_gpus_per_node)


# -- one annotation -----------------------------------------------------------------------------------------------


def _container_and_key(field: str, raw: object, containers: Sequence[str]) -> tuple[str | None, str] | Refusal:
    """The container that a key speaks for (None: the pod's first) and what it says; or why it is no key."""
    prefix, _, key = field.partition("/")
    container = prefix.removesuffix(DOMAIN).removesuffix(".")
    if container == _GRANTED or container.endswith(f".{_GRANTED}"):
        why = "what was granted is written by Sluice, never asked for; remove it"
        return _refuse(RefusalReason.UNKNOWN_KEY, field, raw, why, _keys_allowed())
    if container and container not in containers:
        near = _nearest(container, containers)
        why = f"the pod has no container {shorten(container, 63)!r}{near}"
        return _refuse(RefusalReason.UNKNOWN_CONTAINER, field, raw, why, ", ".join(containers[:10]))
    if key not in KEYS:
        why = f"there is no such key{_nearest(key, KEYS, prefix=f'{prefix}/')}"
        return _refuse(RefusalReason.UNKNOWN_KEY, field, raw, why, _keys_allowed())
    return container or None, key


def _keys_allowed() -> str:
    return ", ".join(f"{DOMAIN}/{key}" for key in KEYS)


def _nearest(text: str, choices: Sequence[str], *, prefix: str = "") -> str:
    found = difflib.get_close_matches(text[:63], choices, n=1, cutoff=0.5)
    return f"; did you mean {prefix}{found[0]}?" if found else ""


def _value(field: str, key: str, raw: object, max_gpus_per_node: int) -> Value | Refusal:
    if not isinstance(raw, str):
        written = _as_written(raw)
        right = f'"{written}", in quotes' if isinstance(raw, Unquoted | int | float) else "a string"
        why = "the value of an annotation is a string: put it in quotes"
        return _refuse(RefusalReason.INVALID_VALUE, field, raw, why, shorten(right))
    return _READERS[key](field, raw, max_gpus_per_node)


def _whole(field: str, raw: str, least: int, most: int) -> int | Refusal:
    allowed = f"a whole number from {least} to {most}" if most < WHOLE_MAX else f"a whole number, at least {least}"
    number = parse_whole(raw)
    if isinstance(number, NotANumber):
        return _refuse(RefusalReason.INVALID_VALUE, field, raw, number.why, allowed)
    if not least <= number <= most:
        return _refuse(RefusalReason.OUT_OF_RANGE, field, raw, "out of range", allowed)
    return number


def _gpus(field: str, raw: str, max_gpus_per_node: int) -> Value | Refusal:
    return _whole(field, raw, 1, max_gpus_per_node)


def _sm_count(field: str, raw: str, _max_gpus_per_node: int) -> Value | Refusal:
    return _whole(field, raw, 1, WHOLE_MAX)


def _sm_percentage(field: str, raw: str, _max_gpus_per_node: int) -> Value | Refusal:
    return _whole(field, raw, 1, 100)


def _memory(field: str, raw: str, _max_gpus_per_node: int) -> Value | Refusal:
    size_mib = parse_memory_mib(raw)
    if isinstance(size_mib, NotANumber):
        return _refuse(RefusalReason.INVALID_VALUE, field, raw, size_mib.why, MEMORY_ALLOWED)
    if not 1 <= size_mib <= MEMORY_MIB_MAX:
        allowed = f"from 1Mi to {MEMORY_MIB_MAX // 1024**2}Ti"
        return _refuse(RefusalReason.OUT_OF_RANGE, field, raw, "out of range", allowed)
    return size_mib


def _profile(field: str, raw: str, _max_gpus_per_node: int) -> Value | Refusal:
    try:
        return str(ProfileName.parse(raw))
    except ProfileNameError:
        why = "no name of a MIG profile"
        return _refuse(RefusalReason.UNKNOWN_PROFILE, field, raw, why, "for instance 1g.5gb, 3g.20gb or 1g.5gb+me")


def _mode(field: str, raw: str, _max_gpus_per_node: int) -> Value | Refusal:
    if raw == "exclusive":
        return raw
    parts = [part.strip() for part in raw[:200].split(",")]
    if all(part in {"exclusive", *MODES_TO_COME} for part in parts):
        why = "this version gives exclusive slices only"
        return _refuse(RefusalReason.UNSUPPORTED_MODE, field, raw, why, "exclusive")
    return _refuse(RefusalReason.INVALID_VALUE, field, raw, "there is no such mode", "exclusive")


_READERS: Mapping[str, Callable[[str, str, int], Value | Refusal]] = {
    "profile": _profile,
    "sm-count": _sm_count,
    "sm-percentage": _sm_percentage,
    "memory": _memory,
    "gpus": _gpus,
    "mode": _mode,
}


# -- all of a pod -------------------------------------------------------------------------------------------------


def _claims(said: Mapping[str, Mapping[str, tuple[str, Value]]], max_gpus_per_node: int) -> tuple[Claim, ...] | Refusal:
    claims: list[Claim] = []
    for container, values in said.items():
        if not values:
            continue
        claim = _claim(container, {key: value for key, (_, value) in values.items()})
        fields = {key: field for key, (field, _) in values.items()}
        refusal = _contradiction(claim, fields)
        if refusal is not None:
            return refusal
        claims.append(claim)
        total = sum(each.gpus for each in claims)
        if total > max_gpus_per_node:
            field = fields.get("gpus", next(iter(fields.values())))
            why = f"with this container the pod asks for {total} devices on one node"
            allowed = f"1 to {max_gpus_per_node} over all containers"
            return _refuse(RefusalReason.TOO_LARGE, field, str(claim.gpus), why, allowed)
    return tuple(claims)


def _claim(container: str, values: Mapping[str, Value]) -> Claim:
    def number(key: str) -> int | None:
        value = values.get(key)
        return value if isinstance(value, int) else None

    profile = values.get("profile")
    return Claim(
        container=container,
        gpus=number("gpus") or 1,
        profile=profile if isinstance(profile, str) else None,
        sm_count=number("sm-count"),
        sm_percentage=number("sm-percentage"),
        memory_mib=number("memory"),
    )


_UNITS = {"memory": " MiB", "sm-count": " SMs", "sm-percentage": " %"}
_Known = tuple[GpuModel, Profile]
"""A profile as one model has it."""


def _contradiction(claim: Claim, fields: Mapping[str, str]) -> Refusal | None:
    """A profile with sizes that it has on no known model. A profile that no model has is the allocator's to judge."""
    if claim.profile is None:
        return None
    known: list[_Known] = [(m, profile) for m in catalog() if (profile := m.profile(claim.profile)) is not None]
    asked = {"memory": claim.memory_mib, "sm-count": claim.sm_count, "sm-percentage": claim.sm_percentage}
    sizes = {key: size for key, size in asked.items() if size is not None}
    if not known or any(all(size <= _amount(each, key) for key, size in sizes.items()) for each in known):
        return None
    most = {key: max(_amount(each, key) for each in known) for key in sizes}
    key = next((key for key, size in sizes.items() if size > most[key]), None)
    if key is None:
        key = next(iter(sizes))
        why, allowed = "which has not all of these sizes on any known GPU model", "fewer sizes, or another profile"
    else:
        why = "which has less on every known GPU model"
        allowed = f"at most {most[key]}{_UNITS[key]} with that profile, or another profile"
    return Refusal(
        reason=RefusalReason.CONTRADICTION,
        message=f"contradicts {fields['profile']} = {claim.profile!r}, {why}",
        field=fields[key],
        value=f"{sizes[key]}{_UNITS[key]}",
        allowed=allowed,
    )


def _amount(known: _Known, key: str) -> int:
    """What a profile has of one size. Percent are of the model's largest profile, in whole percent."""
    model, profile = known
    if key == "memory":
        return profile.memory_mib
    if key == "sm-count":
        return profile.multiprocessors
    return profile.multiprocessors * 100 // model.largest.multiprocessors


# -- refusing -----------------------------------------------------------------------------------------------------


def _refuse(reason: RefusalReason, field: str, raw: object, why: str, allowed: str) -> Refusal:
    return Refusal(
        reason=reason,
        message=why,
        field=shorten(field),
        value=shorten(_as_written(raw)),
        allowed=shorten(allowed, 400),
    )


def _as_written(raw: object) -> str:
    """An outside value in words, whatever it is; no text of it is longer than it was."""
    match raw:
        case str():
            return raw
        case Unquoted():
            return raw.text
        case None:
            return "null"
        case bool():
            return "true" if raw else "false"
        case int() if raw.bit_length() > 200:  # printing a long integer is quadratic, and refused by Python
            return "a very large number"
        case int() | float():
            return str(raw)
        case _:
            return f"a {type(raw).__name__}"
