"""Parse and check the limits of a namespace as people write them, in a command or a file."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sluice.contracts.kube.names import DNS_LABEL
from sluice.contracts.kube.quantities import WHOLE_MAX, NotANumber, parse_int32, parse_quantity, parse_whole
from sluice.contracts.messages import Amounts
from sluice.contracts.reasons import shorten

UNLIMITED = "unlimited"
NAMESPACE_MAX = 63
"""The longest Kubernetes namespace (a DNS label)."""
_NAMESPACE = re.compile(DNS_LABEL)
DIMENSIONS = ("gpus", "memory", "compute-slices")
"""The names of the dimensions, in the order of `Amounts`."""
PRIORITY_MAX = "priority-max"
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class GuaranteeAboveTotal:
    """A namespace's guarantee exceeds its limit in one dimension."""

    dimension: str
    guaranteed: int
    total: int


def parse_limit(dimension: str, text: str) -> int | NotANumber | None:
    """One limit (memory in MiB, rounded down; None: no limit), or what would be right instead."""
    if text == UNLIMITED:
        return None
    number = parse_whole(text)
    if isinstance(number, NotANumber) and dimension == "memory":
        size = parse_quantity(text)
        number = size if isinstance(size, NotANumber) else size // _MIB
    if isinstance(number, NotANumber) or not 0 <= number <= WHOLE_MAX:
        return NotANumber(_RIGHT_MEMORY if dimension == "memory" else _RIGHT_NUMBER)
    return number


def parse_priority_max(text: str) -> int | NotANumber | None:
    """The highest priority that counts; None is no ceiling. An invalid one comes back with what would be right."""
    if text == UNLIMITED:
        return None
    number = parse_int32(text)
    return NO_CEILING if isinstance(number, NotANumber) else number


NO_CEILING = NotANumber(f"a whole number of 32 bits, or {UNLIMITED}")
_RIGHT_NUMBER = f"a whole number from 0 to {WHOLE_MAX}, or {UNLIMITED}"
_RIGHT_MEMORY = f"an amount like 64Gi, 65536Mi or 65536 (MiB), or {UNLIMITED}"


def invalid_namespace_reason(namespace: str) -> str:
    """Why no namespace can have this name (its limit would never apply or expire); empty when one can."""
    if _NAMESPACE.fullmatch(namespace):
        return ""
    return f"{shorten(repr(namespace))} is no namespace: small letters, digits and '-', at most {NAMESPACE_MAX}"


def guarantee_above_total(total: Amounts, guaranteed: Amounts) -> GuaranteeAboveTotal | None:
    for dimension, most, sure in zip(DIMENSIONS, _each(total), _each(guaranteed), strict=True):
        if most is not None and sure is not None and sure > most:
            return GuaranteeAboveTotal(dimension, sure, most)
    return None


def _each(amounts: Amounts) -> Iterator[int | None]:
    yield from (amounts.gpus, amounts.memory_mib, amounts.compute_slices)
