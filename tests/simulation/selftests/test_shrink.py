"""A failing seed is made small without becoming another failure, and a plan in a file is the plan."""

from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from simulation.harness import command
from simulation.harness.command import main
from simulation.harness.shrink import shrink, what_fails
from simulation.plans.plan import Plan, draw_plan
from simulation.plans.plan_file import Kept, PlanFileError, read_plan, write_plan
from simulation.planted.bug import planted
from simulation.planted.protocol import BUGS
from simulation.world.world import run_plan

FULL = 14
"""A seed with faults, weather and many pods."""


def never_ends() -> bool:
    return True


def test_what_a_violation_does_not_need_is_left_out() -> None:
    """A developer would read forty pods and ten faults, of which two matter."""
    plan = draw_plan(FULL)
    fault, life = plan.faults[len(plan.faults) // 2], plan.pods[-3]

    def play(tried: Plan) -> str:
        needed = fault in tried.faults and any(each.pod == life.pod for each in tried.pods) and tried.weather.twice >= 0
        return f"I1: of {len(tried.pods)} pods" if needed else ""

    least = shrink(plan, "I1: of 40 pods", play, never_ends)
    assert least.plan.faults == (fault,)
    assert [each.pod for each in least.plan.pods] == [life.pod]
    assert (least.plan.pods[0].edited_at, least.plan.pods[0].spoiled_at, least.plan.pods[0].removed_at) == (None,) * 3
    assert len(least.plan.nodes) == 1 or fault.target in {node for node, _ in least.plan.nodes}
    assert least.plan.weather == replace(plan.weather, **dict.fromkeys(_chances(plan), 0.0))
    assert least.whole
    assert least.violation == "I1: of 1 pods"


def _chances(plan: Plan) -> list[str]:
    names = ("ack_lost", "request_lost", "late", "twice", "stall", "redelivered", "pull_failed", "slow_device")
    return [name for name in (*names, "hasty_end") if hasattr(plan.weather, name)]


def test_another_violation_is_not_taken_for_the_same() -> None:
    """A plan that shrinks into another failure hides the one under search."""
    plan = draw_plan(FULL)

    def play(tried: Plan) -> str:
        return "I1: a place with two owners" if len(tried.pods) == len(plan.pods) else "I4: no agent answers"

    assert len(shrink(plan, "I1: a place with two owners", play, never_ends).plan.pods) == len(plan.pods)
    assert what_fails("raised: KeyError('a') at core.py:12") == what_fails("raised: KeyError('b') at core.py:12")
    assert what_fails("raised: KeyError('a') at core.py:12") != what_fails("raised: KeyError('a') at core.py:13")


def test_shrinking_ends_when_its_time_is_over() -> None:
    """A run of thousands of seeds would hang at its first failing one."""
    plan = draw_plan(FULL)
    turns = iter([True] * 5)
    least = shrink(plan, "I1", lambda _plan: "I1", lambda: next(turns, False))
    assert least.tries == 5
    assert not least.whole


def test_a_planted_bug_is_shrunk_to_a_plan_that_still_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a failing seed to a file that fails as well, by the command that people use; without the bug it passes."""
    bug = next(bug for bug in BUGS if bug.name == "free at revoke")
    monkeypatch.setattr(command, "monotonic", count(step=0.25).__next__)  # what a try takes, on any machine
    with planted(bug):
        plain = (seed for seed in range(40) if not draw_plan(seed).cluster)
        seed = next(seed for seed in plain if run_plan(draw_plan(seed)).violation.startswith("I1"))
        words = ["--seeds", "1", "--from", str(seed), "--jobs", "1", "--shrink-s", "8", "--keep", str(tmp_path)]
        assert main(words) == 1
        said = capsys.readouterr().out.splitlines()
        assert said[-1] == "seeds=1 violations=1"
        path = tmp_path / f"seed-{seed}.json"
        kept = read_plan(path)
        assert len(kept.plan.pods) < len(draw_plan(seed).pods)
        assert main(["--plan", str(path), "--quiet"]) == 1
    assert main(["--plan", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "seeds=1 violations=0"


@pytest.mark.parametrize("seed", range(60))
def test_a_plan_in_a_file_is_the_plan(seed: int, tmp_path: Path) -> None:
    """A kept case that came back changed would pass for ever without looking at what it was kept for."""
    plan = draw_plan(seed)
    write_plan(tmp_path / "plan.json", Kept("about", plan, "a bug"))
    assert read_plan(tmp_path / "plan.json") == Kept("about", plan, "a bug")


def test_a_file_that_is_no_plan_is_said_to_be_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong file is reported by name with its error, and no seed counts as run."""
    path = tmp_path / "plan.json"
    path.write_text('{"about": "x", "plan": {"seed": "one", "nodes": []}}', encoding="utf-8")
    with pytest.raises(PlanFileError, match=r"plan\.json is no plan of this simulator: .*seed"):
        read_plan(path)
    assert main(["--plan", str(tmp_path / "missing.json")]) == 2
    told = capsys.readouterr()
    assert "missing.json cannot be read: No such file or directory" in told.err
    assert "seeds=" not in told.out
