"""Parse one written value to one checked value, exactly. Every function raises `RequestSyntaxError`."""

import re
from collections.abc import Sequence

from sluice.contracts.ids import GpuUuid
from sluice.contracts.kube import quantities
from sluice.contracts.policy_names import invalid_gpu_policy_reason, invalid_node_policy_reason
from sluice.contracts.reasons import RefusalReason, shorten
from sluice.contracts.request_syntax.keys import SLUICE
from sluice.contracts.request_syntax.source_text import SourceValue, did_you_mean

LIST_MAX = 64
"""Names in one list. No node has as many GPUs, and there are fewer models."""
NAME_CHARACTERS_MAX = 128
_NODE_NAME_MAX = 253
_NODE_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")
_MEMORY_RANGE = f"from 1Mi to {quantities.MEMORY_MIB_MAX // 1024**2}Ti"


def whole(written: SourceValue, least: int, most: int) -> int:
    return _in_range(written, quantities.parse_whole(written.text()), least, most)


def amount(written: SourceValue, least: int, most: int, *, unit: str = "") -> int:
    """A whole amount of a resource, in any notation (`2`, `8k`, `2000m`); fractions and large ones are refused."""
    size = quantities.parse_quantity(written.number_text())
    if isinstance(size, quantities.NotANumber):
        raise written.invalid(size.why, _range(least, most, unit))
    if size.denominator != 1:
        raise written.invalid("not a whole number", _range(least, most, unit))
    return _in_range(written, size.numerator, least, most, unit)


def _in_range(written: SourceValue, number: int | quantities.NotANumber, least: int, most: int, unit: str = "") -> int:
    if isinstance(number, quantities.NotANumber):
        raise written.invalid(number.why, _range(least, most, unit))
    if not least <= number <= most:
        raise written.out_of_range("out of range", _range(least, most, unit))
    return number


def _range(least: int, most: int, unit: str) -> str:
    of = f" ({unit})" if unit else ""
    if most < quantities.WHOLE_MAX:
        return f"a whole number from {least} to {most}{of}"
    return f"a whole number, at least {least}{of}"


def decimal(written: SourceValue, places: int, least: int, most: int) -> int:
    """A decimal number, exactly, in units of its last allowed place; `least` and `most` are in these units."""
    scale = 10**places
    fewest = _decimal_text(least, scale)
    bounds = f"from {fewest} to {_decimal_text(most, scale)}" if most < quantities.WHOLE_MAX else f"at least {fewest}"
    allowed = f"{bounds}, at most {places} decimals"
    number = quantities.parse_decimal(written.text(), places)
    if isinstance(number, quantities.NotANumber):
        raise written.invalid(number.why, allowed)
    if not least <= number <= most:
        raise written.out_of_range("out of range", allowed)
    return number


def _decimal_text(size: int, scale: int) -> str:
    whole_part, rest = divmod(size, scale)
    digits = str(rest).rjust(len(str(scale)) - 1, "0").rstrip("0")
    return f"{whole_part}.{digits}" if digits else str(whole_part)


def memory_mib(written: SourceValue) -> int:
    size_mib = quantities.parse_memory_mib(written.text())
    if isinstance(size_mib, quantities.NotANumber):
        raise written.invalid(size_mib.why, quantities.MEMORY_ALLOWED)
    if not 1 <= size_mib <= quantities.MEMORY_MIB_MAX:
        raise written.out_of_range("out of range", _MEMORY_RANGE)
    return size_mib


def names(written: SourceValue, what: str) -> tuple[str, ...]:
    """A comma-separated list without blanks, each name once; an empty text is an empty list."""
    text = written.text()
    allowed = f"at most {LIST_MAX} names of {what}, separated by commas"
    if len(text) > LIST_MAX * NAME_CHARACTERS_MAX:
        raise written.too_large("too long", allowed)
    if not text.strip():
        return ()
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if "" in parts:
        raise written.invalid("an empty name in the list", allowed)
    if len(parts) > LIST_MAX or any(len(part) > NAME_CHARACTERS_MAX for part in parts):
        raise written.too_large("too many names, or a name too long", allowed)
    if not all(part.isprintable() for part in parts):
        raise written.invalid("a name with characters that cannot be printed", allowed)
    return parts


def uuids(written: SourceValue) -> tuple[GpuUuid, ...]:
    """A list of UUIDs of GPUs. MIG UUIDs are refused: an instance has none before it is created."""
    listed = names(written, "GPUs (UUIDs)")
    if any(part.upper().startswith("MIG-") for part in listed):
        why = "the UUID of a MIG instance; Sluice makes the instance, so only a GPU can be named"
        raise written.invalid(why, "the UUID of a GPU, GPU-...")
    return tuple(GpuUuid(part) for part in listed)


def boolean(written: SourceValue, true: Sequence[str] = ("true",), false: Sequence[str] = ("false",)) -> bool:
    text = written.text()
    if text not in true and text not in false:
        raise written.invalid("neither true nor false", '"true" or "false"')
    return text in true


def choice(written: SourceValue, choices: Sequence[str]) -> str:
    text = written.text()
    if text not in choices:
        raise written.invalid(f"there is no such choice{did_you_mean(text, choices)}", ", ".join(choices))
    return text


def refuse_compute_instance(written: SourceValue, text: str, prefix: str = "") -> None:
    """Refuse a compute instance, `1c.3g.20gb` (NVIDIA's MIG user guide): its memory is shared."""
    slices, _, instance = text.partition(".")
    if re.fullmatch(r"[0-9]{1,2}c", slices) and instance:
        why = f"compute-instance profiles are not supported; {shorten(instance, 40)} is the GPU instance around it"
        right = f"{prefix}{shorten(instance, 40)}, or a fractional share ({SLUICE}/sm-partition)"
        raise written.wrong(RefusalReason.UNKNOWN_PROFILE, why, right)


def node_name(written: SourceValue) -> str:
    text = written.text()
    if len(text) > _NODE_NAME_MAX or _NODE_NAME.fullmatch(text) is None:
        raise written.invalid("no name of a node", f"at most {_NODE_NAME_MAX} of a-z, 0-9, '-' and '.'")
    return text


def node_policy(written: SourceValue) -> str:
    """A policy for nodes by its name; empty is the pool's. Raises RequestSyntaxError."""
    policy = written.text()
    why = invalid_node_policy_reason(policy[:NAME_CHARACTERS_MAX])
    if why is not None:
        raise written.invalid(why, "the name of a policy for nodes")
    return policy


def gpu_policy(written: SourceValue) -> str:
    """A policy for GPUs, or a chain of them; empty is the pool's. Raises RequestSyntaxError."""
    policy = ",".join(names(written, "policies"))
    why = invalid_gpu_policy_reason(policy)
    if why is not None:
        raise written.invalid(why, "the name of a policy for GPUs, or a chain of names")
    return policy
