"""Parse numbers in manifests exactly: whole numbers, decimals, quantities, and memory in MiB.

`parse_quantity` reads what the API server reads
(https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/); for `parse_memory_mib` a whole
number without a unit is MiB, not bytes. Invalid text comes back as `NotANumber`, however long or strange it is."""

import re
from dataclasses import dataclass
from fractions import Fraction

MEMORY_MIB_MAX = 16 * 1024 * 1024
"""16 TiB: far above any GPU. Larger amounts are mistakes."""
BARE_MIB_MIN = 320
"""Smaller whole numbers without a unit are suspicious: the largest GPU of the catalog has 288 GB."""
WHOLE_MAX = 999_999_999
"""Whole numbers are capped here, to avoid arithmetic on a million digits."""
_INT32_MAX = 2**31 - 1
QUANTITY_CHARACTERS_MAX = 32

EXPONENT_MAX = 30
"""The largest exponent (`1e30`). No node has more, and larger ones would be slow to compute."""

_MIB = 1024**2
_UNITS = {f"{prefix}i": 1024**n for n, prefix in enumerate("KMGTPE", 1)}
_UNITS |= {prefix: 1000**n for n, prefix in enumerate("kMGTPE", 1)}
_PARTS = {"n": Fraction(1, 1000**3), "u": Fraction(1, 1000**2), "m": Fraction(1, 1000)}
_WHOLE = re.compile(r"[+-]?[0-9]+")
_QUANTITY = re.compile(r"(?P<sign>[+-]?)(?P<whole>[0-9]+)(?:\.(?P<part>[0-9]+))?(?P<unit>[A-Za-z]*)")
_DECIMAL = re.compile(r"(?P<sign>[+-]?)(?P<whole>[0-9]+)(?:\.(?P<part>[0-9]+))?")
_API_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?P<point>\.?)(?P<part>[0-9]*)"
    r"(?:[eE](?P<exponent>[+-]?[0-9]+)|(?P<unit>[KMGTPE]i|[numkMGTPE])?)"
)
_MISSPELT = re.compile(r"[kmgtp](i?b|i)?", re.IGNORECASE)
MEMORY_ALLOWED = "for instance 8Gi or 8000Mi; a whole number without a unit is MiB"


@dataclass(frozen=True, slots=True)
class NotANumber:
    """Why a text is invalid, in a sentence."""

    why: str


def parse_whole(text: str, most: int = WHOLE_MAX) -> int | NotANumber:
    """A whole number in ASCII digits, with or without a sign; beyond `most`, `most` + 1 with its sign."""
    if _WHOLE.fullmatch(text) is None:
        return NotANumber("not a whole number")
    digits = text.lstrip("+-").lstrip("0") or "0"
    size = int(digits) if len(digits) <= len(str(most)) else most + 1
    return -size if text.startswith("-") else size


def parse_int32(text: str) -> int | NotANumber:
    """A whole number of 32 bits with sign. Priorities of Kubernetes exceed WHOLE_MAX."""
    size = parse_whole(text, _INT32_MAX + 1)
    if isinstance(size, NotANumber):
        return size
    return size if -_INT32_MAX - 1 <= size <= _INT32_MAX else NotANumber("out of range")


def parse_decimal(text: str, places: int) -> int | NotANumber:
    """A number with at most `places` decimals, in units of the last: exact. Beyond WHOLE_MAX it is WHOLE_MAX + 1."""
    match = _DECIMAL.fullmatch(text)
    if match is None:
        return NotANumber("not a number like 0.5")
    part = match["part"] or ""
    if len(part) > places:
        return NotANumber(f"more than {places} digits after the point")
    size = parse_whole(match["whole"] + part.ljust(places, "0"))
    return -size if match["sign"] == "-" and isinstance(size, int) else size


def parse_quantity(text: str) -> Fraction | NotANumber:
    """An amount as the Kubernetes API server reads it (`2`, `1500m`, `8Gi`, `1e3`), exactly."""
    if len(text) > QUANTITY_CHARACTERS_MAX:
        return NotANumber(f"longer than {QUANTITY_CHARACTERS_MAX} characters")
    match = _API_QUANTITY.fullmatch(text)
    if match is None or not (match["whole"] or match["part"]):
        return NotANumber("not a quantity")
    exponent = parse_whole(match["exponent"] or "0")
    if isinstance(exponent, NotANumber) or abs(exponent) > EXPONENT_MAX:
        return NotANumber(f"its exponent is beyond {EXPONENT_MAX}")
    unit = match["unit"] or ""
    factor = _PARTS[unit] if unit in _PARTS else Fraction(_UNITS.get(unit, 1))
    size = Fraction(int((match["whole"] + match["part"]) or "0"), 10 ** len(match["part"]))
    size *= factor * Fraction(10) ** exponent
    return -size if match["sign"] == "-" else size


def parse_memory_mib(text: str) -> int | NotANumber:
    """An amount of memory in MiB, rounded up; one above MEMORY_MIB_MAX for more, -1 for less than zero."""
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


def suspicious_memory(text: str) -> str:
    """Why an amount without a unit (MiB) is probably a mistake: `10` most likely means GiB. Empty if plausible."""
    size = parse_whole(text)
    if isinstance(size, NotANumber) or not 0 < size < BARE_MIB_MIN:
        return ""
    return f"{text} without a unit is {size} MiB; did you mean {size}Gi? (write {size}Mi to confirm)"


def _unit_advice(text: str, unit: str) -> str:
    if not unit:
        return "a fraction needs a unit"
    meant = unit[0].upper() + "i"
    if _MISSPELT.fullmatch(unit):
        return f"{unit!r} is no unit of memory; did you mean {text.removesuffix(unit)}{meant}?"
    return f"{unit!r} is no unit of memory"
