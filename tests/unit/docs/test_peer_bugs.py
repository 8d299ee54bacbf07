"""The page about other systems' faults names what is there: each test exists, and no number is only in a test."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "peer-bugs.md"
_NUMBER = r"(?:#\d+|B\d+|\d+(?:\.\d+)+|\d+(?![\w.]))"
_ROW = re.compile(r"^\| (?P<numbers>[^|]*) \| (?P<lost>[^|]+) \| (?P<tests>[^|]+) \|$")
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")

NAMED = {
    "HAMi": ("#2923", "#1491", "#2592", "#2812", "#2232", "#1655"),
    "InstaSlice": ("#75", "#76", "#150", "#122", "#211", "#409", "#663"),
    "DRA driver": ("#840", "#1100", "#1452", "#1278", "#149", "#473"),
    "KAI": ("#2153",),
    "FaST-GShare": tuple(f"3.6.{number}" for number in range(1, 14)),
    "kubelet": ("#102880",),
    "tensor-fusion": (
        *(f"#{number}" for number in (479, 791, 796, 365, 218, 179, 656, 700, 716, 767, 520, 547, 555, 551)),
        *(f"B{number}" for number in range(1, 11)),
    ),
    "mig-adapter": ("1", "2", "3", "4", "5", "6", "7", "8", "10"),
}
"""The faults that cost users a device, or gave one to two of them: these may never drop out of the page."""


@cache
def _rows() -> dict[str, dict[str, str]]:
    """What the page says: by peer and number, the cell of its tests, or why there are none."""
    found: dict[str, dict[str, str]] = {}
    peer = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            peer = line[3:]
        elif (row := _ROW.match(line)) and not set(row["numbers"]) <= {"-", " "} and row["numbers"] != "number":
            for number in row["numbers"].split(", "):
                found.setdefault(peer, {})[number] = row["tests"]
    return found


@cache
def _named_in_tests() -> set[tuple[str, str]]:
    """Every peer with every number that a docstring of a test names."""
    peers = "|".join(sorted(map(re.escape, _rows()), key=len, reverse=True))
    mention = re.compile(rf"(?<![\w.-])({peers}) ({_NUMBER}(?:, {_NUMBER})*)")
    found = set()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if mention.search(text) else ():
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                for peer, numbers in mention.findall(ast.get_docstring(node) or ""):
                    found |= {(peer, number) for number in numbers.split(", ")}
    return found


@pytest.mark.parametrize("peer", sorted(_rows()))
def test_every_fault_has_a_test_that_is_there_or_a_reason_for_none(peer: str) -> None:
    """A fault whose test was renamed or removed would come back, and the page would still say that it cannot."""
    for number, tests in _rows()[peer].items():
        named = _TEST.findall(tests)
        assert named or tests.startswith("not ours"), f"{peer} {number} names no test"
        for file, name in named:
            text = (ROOT / file).read_text(encoding="utf-8")
            assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), f"{peer} {number}: no {file}::{name}"


def test_every_number_in_a_test_is_on_the_page() -> None:
    """A reader who looks a peer's fault up would not find that it is covered."""
    rows = _rows()
    named = _named_in_tests()
    assert len(named) > 60, "the search finds nothing any more"
    assert sorted(f"{peer} {number}" for peer, number in named if number not in rows[peer]) == []


def test_what_cost_users_a_device_elsewhere_is_all_there() -> None:
    rows = _rows()
    missing = [f"{peer} {number}" for peer, numbers in NAMED.items() for number in numbers if number not in rows[peer]]
    assert missing == []


def test_a_fault_that_is_told_as_ours_names_it_in_its_test() -> None:
    """Of the faults above each has a test that says so itself, not only a row of the page."""
    named = _named_in_tests()
    wanted = {(peer, number) for peer, numbers in NAMED.items() for number in numbers}
    rows = _rows()
    here = {(peer, number) for peer, number in wanted if not rows[peer][number].startswith("not ours")}
    assert sorted(f"{peer} {number}" for peer, number in here - named) == []
