"""
Numbers that people write in manifests, read exactly: whole numbers, and amounts of memory in MiB.

Amounts follow the Kubernetes quantity format (https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/)
with one difference: a whole number without a unit is MiB, the unit of everything in Sluice, not bytes. What is not a
number comes back as `NotANumber` with the cure, never as an exception, however long or strange the text is.
"""

import re
from dataclasses import dataclass

MEMORY_MIB_MAX = 16 * 1024 * 1024
"""16 TiB: far above any GPU. Larger amounts are slips of the pen."""
WHOLE_MAX = 999_999_999
"""Whole numbers are cut here, so that nobody has to calculate with a million digits."""
QUANTITY_CHARACTERS_MAX = 32

_MIB = 1024**2
_UNITS = {
    "Ki": 1024,
    "Mi": 1024**2,
    "Gi": 1024**3,
    "Ti": 1024**4,
    "Pi": 1024**5,
    "k": 1000,
    "M": 1000**2,
    "G": 1000**3,
    "T": 1000**4,
    "P": 1000**5,
}
_WHOLE = re.compile(r"[+-]?[0-9]+")
_QUANTITY = re.compile(r"(?P<sign>[+-]?)(?P<whole>[0-9]+)(?:\.(?P<part>[0-9]+))?(?P<unit>[A-Za-z]*)")
_MISSPELT = re.compile(r"[kmgtp](i?b|i)?", re.IGNORECASE)
MEMORY_ALLOWED = "for instance 8Gi or 8000Mi; a whole number without a unit is MiB"


@dataclass(frozen=True, slots=True)
class NotANumber:
    """Why a text is no such number, in a sentence."""

    why: str


def parse_whole(text: str) -> int | NotANumber:
    """
    A whole number in ASCII digits, with or without a sign.

    Numbers beyond plus or minus WHOLE_MAX come back as the next one beyond it: out of every range there is.
    """
    if _WHOLE.fullmatch(text) is None:
        return NotANumber("not a whole number")
    digits = text.lstrip("+-").lstrip("0") or "0"
    size = int(digits) if len(digits) <= len(str(WHOLE_MAX)) else WHOLE_MAX + 1
    return -size if text.startswith("-") else size


def parse_memory_mib(text: str) -> int | NotANumber:
    """
    An amount of memory in MiB, rounded up (nobody gets less than asked), cut one above MEMORY_MIB_MAX.

    Negative amounts come back as -1, zero as 0: whether that is allowed is the caller's question.
    """
    if len(text) > QUANTITY_CHARACTERS_MAX:
        return NotANumber(f"longer than {QUANTITY_CHARACTERS_MAX} characters")
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return NotANumber("not an amount of memory")
    unit, part = match["unit"], match["part"]
    if unit not in _UNITS and not (unit == "" and part is None):
        return NotANumber(_unit_advice(text, unit))
    scale: int = 10 ** len(part or "")
    size_bytes_scaled = int(match["whole"] + (part or "")) * (_UNITS[unit] if unit else _MIB)
    size_mib = min(-(-size_bytes_scaled // (scale * _MIB)), MEMORY_MIB_MAX + 1)
    return -1 if match["sign"] == "-" and size_mib else size_mib


def _unit_advice(text: str, unit: str) -> str:
    if not unit:
        return "a fraction needs a unit"
    meant = unit[0].upper() + "i"
    if _MISSPELT.fullmatch(unit):
        return f"{unit!r} is no unit of memory; did you mean {text.removesuffix(unit)}{meant}?"
    return f"{unit!r} is no unit of memory"
