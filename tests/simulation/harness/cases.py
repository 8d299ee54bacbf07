"""
The cases in the table of docs/protocol.md: interleavings that break a simpler rule, each with what would not survive.

`test_invariants` checks that the page cites each row once, that no number is lost, and that what a row names is there.
"""

from dataclasses import dataclass
from pathlib import Path

PROTOCOL = Path(__file__).parents[3] / "docs" / "protocol.md"
BEGIN, END = "<!-- generated: cases -->", "<!-- end -->"


@dataclass(frozen=True, slots=True)
class Case:
    """One interleaving. `id` is never reused; `rule` is the law or section that covers it, empty where it is as above.

    `covers` are the ids of cases that had rows of their own, until the same mechanism covered them. `bugs` are names of
    planted bugs that break it, `tests` are `path::name` of tests where no bug is planted.
    """

    id: str
    covers: tuple[str, ...]
    rule: str
    words: str
    bugs: tuple[str, ...]
    tests: tuple[str, ...]


def _case(row: str) -> Case:
    """Of `| id, those it covers | rule | case | planted bugs | played in |`."""
    numbers, rule, words, bugs, played_in = (cell.strip() for cell in row.strip("|").split("|"))
    number, *covers = numbers.split(", ")
    tests = tuple(place.strip("`") for place in played_in.split(", ") if "::" in place)
    return Case(number, tuple(covers), rule, words, tuple(bugs.split(", ")) if bugs else (), tests)


_TABLE = PROTOCOL.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
CASES = tuple(_case(row) for row in _TABLE.splitlines() if row.startswith("| P-"))
