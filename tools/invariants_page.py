"""
The page docs/invariants.md, and the last column of the table of cases in docs/protocol.md.

Both repeat what tests/simulation declares: invariants, planted bugs and recorded runs.
"""

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from simulation.harness.cases import BEGIN, CASES, END, PROTOCOL, Case  # noqa: E402
from simulation.harness.invariants import ELSEWHERE, PLANTED, PLAYED, RULES  # noqa: E402
from simulation.harness.record import Record  # noqa: E402
from simulation.plans.variants import Variant  # noqa: E402
from simulation.planted.bug import PlantedBug  # noqa: E402

SIMULATION = ROOT / "tests" / "simulation"
RECORDS = SIMULATION / "records"
DAY_S = 86_400
WHOLE = ("PLANTED", "BUGS", "PLAYED")
"""Constants that have bugs of every kind."""

HEAD = """# Invariants, and the bugs that prove them

Generated from `tests/simulation` by `make docs`; do not edit.

Each invariant holds at every instant, or once all is calm, in every simulated run. Its judge shares no code with what
it judges. A violation begins with the invariant's id.

A planted bug replaces a rule by a simpler one. Its invariants (`caught_by` in `tests/simulation/planted`) must catch it
within 100 seeds (`tests/simulation/selftests/test_planted.py`). Bugs with a star are too rare for chance: a schedule or
a kept plan plays them ([cases of the protocol](protocol.md#cases)).

| id | statement | judged in | bugs |
|---|---|---|---|"""
UNNAMED = """
Without an id of their own:

| id | judged by |
|---|---|"""
RUNS = """
## Recorded runs

Each file of `tests/simulation/records` is one run, with the SHA-256 of all that decides how a seed goes; while that is
unchanged, `--record FILE` prints the run and plays nothing.

| seeds | from | events | days of virtual time | violations | source |
|---|---|---|---|---|---|"""
TABLE = """| id | rule | case | planted bug | played in |
|---|---|---|---|---|"""


def page() -> str:
    """The page of invariants."""
    elsewhere = (f"| {number} | {says} |" for number, says in ELSEWHERE)
    return "\n".join([HEAD, *_rules(), UNNAMED, *elsewhere, RUNS, *_runs(), ""])


def protocol() -> str:
    """The page of the protocol as it is, with where its planted bugs are played now."""
    before, rest = PROTOCOL.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n" + "\n".join([TABLE, *map(_case, CASES), END]) + after


def _rules() -> Iterator[str]:
    for rule in RULES:
        bugs = [bug in PLAYED for bug in PLANTED if rule.name in bug.caught_by]
        counts = filter(None, (f"{bugs.count(False) or ''}", f"{bugs.count(True) or ''}" + "*" * any(bugs)))
        yield f"| {rule.name} | {rule.says} | `{rule.judged_in}` | {', '.join(counts)} |"


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


def _case(case: Case) -> str:
    played = _unique(place for name in case.bugs for place in _played_in(name))
    assert played or not case.bugs, f"{case.id}: nothing plays {case.bugs}"
    places = [*played, *(f"`{test}`" for test in case.tests)]
    numbers = ", ".join((case.id, *case.covers))
    return f"| {numbers} | {case.rule} | {case.words} | {', '.join(case.bugs)} | {', '.join(places)} |"


def _played_in(name: str) -> list[str]:
    """Where the bug of this name is played on purpose, or that random seeds find it."""
    (bug,) = (bug for bug in PLANTED if bug.name == name)
    places = [f"`{path}`" for path in _schedules().get(name, [])]
    return places or (["seeds"] if bug not in PLAYED else [])


@cache
def _schedules() -> dict[str, list[str]]:
    """The kept plans and schedules that play each bug, by its name."""
    found: dict[str, list[str]] = {}
    for path in sorted((SIMULATION / "kept").glob("*.json")):
        found.setdefault(msgspec.json.decode(path.read_bytes())["catches"], []).append(f"kept/{path.name}")
    for path in sorted((SIMULATION / "schedules").rglob("test_*.py")):
        for name in _named(ast.parse(path.read_text(encoding="utf-8")), _constants()):
            found.setdefault(name, []).append(str(path.relative_to(SIMULATION)))
    return found


def _named(tree: ast.Module, constants: dict[str, list[str]]) -> set[str]:
    """Names of bugs that a module plays: by their text, by a constant, or by a family in a decorator."""
    names = {bug.name for bug in PLANTED}
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    decorators = [each for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for each in node.decorator_list]
    families = {node.id for each in decorators for node in ast.walk(each) if isinstance(node, ast.Name)}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    played = [
        name for constant in used for name in constants.get(constant, []) if _single(constant) or constant in families
    ]
    return (texts & names) | set(played)


@cache
def _constants() -> dict[str, list[str]]:
    """Names of the bugs that each constant of the simulator's modules has: one, or a family."""
    found: dict[str, list[str]] = {}
    for module in tuple(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("simulation."):
            for constant, value in vars(module).items():
                bugs = value if isinstance(value, tuple | list) else (value,)
                if constant not in WHOLE and bugs and all(isinstance(bug, PlantedBug) for bug in bugs):
                    found[constant] = [bug.name for bug in bugs]
    return found


def _single(constant: str) -> bool:
    return len(_constants()[constant]) == 1


def _unique(places: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(places))
