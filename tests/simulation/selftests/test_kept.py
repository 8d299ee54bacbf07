"""Cases that once went wrong, made small and kept as plans: what was mended stays mended, however seeds are drawn."""

from pathlib import Path

import pytest
from simulation.plans.plan_file import read_plan
from simulation.planted.bug import planted
from simulation.planted.node.sizes import SIZE_BUGS
from simulation.planted.protocol import BUGS
from simulation.planted.rare import RARE_BUGS
from simulation.world.world import run_plan

CASES = sorted((Path(__file__).resolve().parents[1] / "kept").glob("*.json"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_what_was_mended_stays_mended(path: Path) -> None:
    """The plan passes, and still shows the bug that it was kept for when that is put back."""
    kept = read_plan(path)
    violation = run_plan(kept.plan).violation
    assert not violation, f"{kept.about}\nagain: {violation}\nplay it: .venv/bin/python tests/simulation --plan {path}"
    bug = next((bug for bug in (*BUGS, *SIZE_BUGS, *RARE_BUGS) if bug.name == kept.catches), None)
    assert bug is not None, f"{path.name} names {kept.catches!r}, and no planted bug is called so"
    with planted(bug):
        found = run_plan(kept.plan).violation
    assert found.partition(":")[0] in bug.caught_by, f"{bug.name} is not seen any more: {found or 'nothing fails'}"


def test_there_are_kept_cases() -> None:
    """A moved folder would leave nothing to play, unnoticed."""
    assert len(CASES) >= 2
