"""
The page docs/invariants.md: what the simulator's judges hold to, and the bugs that prove that they can.

It tells what tests/simulation declares, and decides nothing.
"""

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from simulation.harness.invariants import CASES, ELSEWHERE, LAWS, PLANTED, PLAYED, RULES, Case  # noqa: E402
from simulation.harness.record import Record  # noqa: E402
from simulation.plans.variants import Variant  # noqa: E402

RECORDS = ROOT / "tests" / "simulation" / "records"
DAY_S = 86_400

HEAD = """# Invariants, and the bugs that prove them

Generated from `tests/simulation` by `make docs`; do not edit.

What must hold at every instant, and what once all is calm. The judges share no code with what they judge. A violation
begins with the name of its rule. The numbers are those of the list of invariants that the tests began with; what has
none was added later.
"""
RUNS = """
## Runs that were recorded

What one and the same source has played: each file of `tests/simulation/records` has the SHA-256 of all that decides how
a seed goes. While that is the same, `--record` with the file says what was played, and plays nothing. CI plays 2,000
others at each change, always the same. What earlier runs found, and what became of it: `tests/simulation/README.md`.

| seeds | from | events | days of virtual time | violations | source |
|---|---|---|---|---|---|"""
BUGS = """
## Planted bugs

Each replaces a rule of the system by the simpler one that somebody might write instead. It must be caught by one of its
rules within 100 seeds (`tests/simulation/selftests/test_planted.py`), in a run that passes without it; those with a
star are too rare for chance, and a schedule plays them.

| planted | what a user loses | caught by |
|---|---|---|"""
TOLD = """
## Cases of the protocol

Each *case* of [protocol.md](protocol.md), and the planted bugs, or the test, that would not survive it.

| case | planted |
|---|---|"""


def page() -> str:
    """The whole page."""
    told = (_case(case) for case in (*CASES, *LAWS))
    return "\n".join([HEAD, *_rules(), RUNS, *_runs(), BUGS, *_bugs(), TOLD, *told, ""])


def _rules() -> Iterator[str]:
    yield "| rule | what it says | judged in | bugs planted for it |\n|---|---|---|---|"
    for rule in RULES:
        count = sum(rule.name in bug.caught_by for bug in PLANTED)
        yield f"| {rule.name} | {rule.says} | `{rule.judged_in}` | {count or 'none'} |"
    yield "\nWithout a name of their own in a violation:\n\n| number | how it is judged |\n|---|---|"
    for number, says in ELSEWHERE:
        yield f"| {number} | {says} |"


def _runs() -> Iterator[str]:
    for path in sorted(RECORDS.glob("*.json")):
        run = msgspec.json.decode(path.read_bytes(), type=Record)
        days = round(run.virtual_s / DAY_S)
        what = f"{run.seeds:,} {_kind(run.asked.variant)} | {run.asked.first:,} | {run.events:,} | {days:,}"
        yield f"| {what} | {len(run.violations)} | `{run.source[:12]}` |"


def _kind(variant: Variant) -> str:
    """How seeds were drawn, by the options that are not what they are by default."""
    chosen = {name: value for name, value in asdict(variant).items() if value}
    without = [f"without {kind}" for kind in chosen.pop("without", ())]
    return ", ".join([*chosen, *without]) or "plain"


def _bugs() -> Iterator[str]:
    for bug in PLANTED:
        star = "*" if bug in PLAYED else ""
        yield f"| {bug.name}{star} | {bug.loses} | {', '.join(bug.caught_by)} |"


def _case(case: Case) -> str:
    return f"| {case.words} | {', '.join(case.bugs) or f'`{case.test}`'} |"
