"""
Limits of a namespace as people write them, in a command or a file: which texts are amounts, and which make sense.

Where they were written, and who says them on the bus, is the business of the reader.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sluice.contracts.kube.quantities import WHOLE_MAX, NotANumber, parse_quantity, parse_whole
from sluice.contracts.messages import Amounts
from sluice.contracts.reasons import shorten

UNLIMITED = "unlimited"
"""What is written to say that there is no limit."""
NAMESPACE_MAX = 63
"""The length of a Kubernetes namespace at most (a DNS label)."""
DIMENSIONS = ("gpus", "memory", "compute-slices")
"""What limits are of, as people name it, in the order of `Amounts`."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class GuaranteeAboveTotal:
    """More of one dimension is guaranteed to a namespace than it may have."""

    dimension: str
    guaranteed: int
    total: int


def parse_limit(dimension: str, text: str) -> int | NotANumber | None:
    """
    One limit; None is no limit. Memory comes in MiB, rounded down: nobody gets more than was written.

    What is no limit comes back with what would be right.
    """
    if text == UNLIMITED:
        return None
    number = parse_whole(text)
    if isinstance(number, NotANumber) and dimension == "memory":
        size = parse_quantity(text)
        number = size if isinstance(size, NotANumber) else size // _MIB
    if isinstance(number, NotANumber) or not 0 <= number <= WHOLE_MAX:
        return NotANumber(_RIGHT_MEMORY if dimension == "memory" else _RIGHT_NUMBER)
    return number


_RIGHT_NUMBER = f"a whole number from 0 on, or {UNLIMITED}"
_RIGHT_MEMORY = f"an amount like 64Gi, 65536Mi or 65536 (MiB), or {UNLIMITED}"


def invalid_namespace_reason(namespace: str) -> str:
    """Why nobody can be in such a namespace, for a limit of nobody would be kept for ever; empty when it can be one."""
    plain = namespace.replace("-", "a")
    right = plain.isascii() and plain.isalnum() and plain == plain.lower() and len(namespace) <= NAMESPACE_MAX
    if right and not namespace.startswith("-") and not namespace.endswith("-"):
        return ""
    return f"{shorten(repr(namespace))} is no namespace: small letters, digits and '-', at most {NAMESPACE_MAX}"


def guarantee_above_total(total: Amounts, guaranteed: Amounts) -> GuaranteeAboveTotal | None:
    """Where more is guaranteed than may be had."""
    for dimension, most, sure in zip(DIMENSIONS, _each(total), _each(guaranteed), strict=True):
        if most is not None and sure is not None and sure > most:
            return GuaranteeAboveTotal(dimension, sure, most)
    return None


def _each(amounts: Amounts) -> Iterator[int | None]:
    yield from (amounts.gpus, amounts.memory_mib, amounts.compute_slices)
