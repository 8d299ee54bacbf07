"""
The cases in the table of docs/protocol.md: interleavings that break a simpler rule, each with what would not survive.

`test_invariants` checks that the page cites each id once, and that what a row names is there.
"""

from dataclasses import dataclass
from pathlib import Path

PROTOCOL = Path(__file__).parents[3] / "docs" / "protocol.md"
BEGIN, END = "<!-- generated: cases -->", "<!-- end -->"


@dataclass(frozen=True, slots=True)
class Case:
    """One interleaving. `id` is never reused; `rule` is the law or section that covers it, empty where it is as above.

    `bugs` are names of planted bugs that break it, `test` is `path::name` of the test where no bug is planted.
    """

    id: str
    rule: str
    words: str
    bugs: tuple[str, ...] = ()
    test: str = ""


def _case(row: str) -> Case:
    """Of `| id | rule | case | planted bugs | played in |`."""
    number, rule, words, bugs, played_in = (cell.strip() for cell in row.strip("|").split("|"))
    if bugs:
        return Case(number, rule, words, tuple(bugs.split(", ")))
    return Case(number, rule, words, test=played_in.strip("`"))


_TABLE = PROTOCOL.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
CASES = tuple(_case(row) for row in _TABLE.splitlines() if row.startswith("| P-"))
