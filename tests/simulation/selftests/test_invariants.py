"""The pages of invariants and protocol are complete: every rule, every planted bug, every case."""

import re
from pathlib import Path

from simulation.harness.cases import CASES
from simulation.harness.invariants import PLANTED, RULES

ROOT = Path(__file__).parents[3]
PROSE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8").split("## The laws")[1].split("## Cases")[0]
_CITED = re.compile(r"P-(\d{3})(?:\s+to\s+P-(\d{3}))?")
_RULE = re.compile(r"""(?:\.fail\(|ViolationError\(|\.until\()\s*"([^"]+)\"""")


def test_the_protocol_cites_each_case_once() -> None:
    """A rule whose case is cited by no sentence could be dropped unnoticed."""
    cited = [number for first, last in _CITED.findall(PROSE) for number in range(int(first), int(last or first) + 1)]
    assert sorted(cited) == sorted(int(case.id.removeprefix("P-")) for case in CASES)


def test_no_case_is_lost() -> None:
    """Code and notes name cases by number: each is a row, or covered by the rule of one."""
    numbers = [int(each.removeprefix("P-")) for case in CASES for each in (case.id, *case.covers)]
    assert sorted(numbers) == list(range(1, max(numbers) + 1))


def test_what_a_case_names_is_there() -> None:
    """A bug that was renamed, a test that was removed: the case would be covered by nothing."""
    names = {bug.name for bug in PLANTED}
    assert [name for case in CASES for name in case.bugs if name not in names] == []
    for case in CASES:
        assert case.bugs or case.tests, case
        for file, _, name in (test.partition("::") for test in case.tests):
            assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), case


def test_every_rule_is_judged_and_every_judged_rule_is_told() -> None:
    """The reader of a violation looks its name up."""
    judged = {
        name
        for path in sorted(Path(__file__).parents[1].rglob("*.py"))
        if not path.name.startswith("test_") and "planted" not in path.parts
        for name in _RULE.findall(path.read_text(encoding="utf-8"))
        if " seeds" not in name
    }
    told = [rule.name for rule in RULES]
    assert sorted(set(told)) == sorted(told)
    assert judged - set(told) == set()
    assert {name for bug in PLANTED for name in bug.caught_by} <= set(told)
    assert [rule.name for rule in RULES if not (ROOT / "tests" / "simulation" / rule.judged_in).exists()] == []


def test_bugs_have_names_of_their_own() -> None:
    """Two of one name are one row of the page."""
    names = [bug.name for bug in PLANTED]
    assert sorted(set(names)) == sorted(names)
    assert len(names) >= 25
