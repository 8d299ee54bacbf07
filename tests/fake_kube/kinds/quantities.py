"""Kubernetes quantities as exact fractions; the fake's own reading, so that Sluice's parser is not borrowed."""

import re
from fractions import Fraction

_SUFFIXES = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{letter: Fraction(1000 ** (power + 1)) for power, letter in enumerate("kMGTPE")},
    **{f"{letter}i": Fraction(1024 ** (power + 1)) for power, letter in enumerate("KMGTPE")},
}
_TEXT = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)$")


def parse(value: object) -> Fraction:
    """`500m`, `8Gi`, `2`, `1e3` as a number. Raises ValueError: for what is no quantity."""
    found = _TEXT.match(str(value))
    if found is None:
        raise ValueError("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")
    number = Fraction(found[1])
    return number * Fraction(10) ** int(found[2][1:]) if found[2] else number * _SUFFIXES[found[3] or ""]
