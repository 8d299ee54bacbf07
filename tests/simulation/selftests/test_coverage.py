"""The report of what seeds have reached counts what was there, and names what never was."""

from pathlib import Path

import pytest
from simulation.harness import command
from simulation.harness.command import main
from simulation.harness.coverage import Coverage, expected
from simulation.plans.plan import draw_plan, with_cluster
from simulation.world.world import run_plan

MUST = (
    ("allocator: request", "waits", "accepted Grant"),
    ("allocator: request", "ready", "accepted Bound"),
    ("allocator: node", "pulled", "accepted NodeOpened"),
    ("agent: slice", "unknown", "Grant"),
    ("agent: slice", "making", "GpuInstanceCreated"),
    ("agent: slice", "unmaking", "ComputeInstanceDestroyed"),
    ("agent: slice", "unmaking", "JournalSaved"),
    ("pod-watcher: pod", "not said yet", "accepted AllocationRequested"),
    ("inventory: node", "never pulled", "PullSucceeded"),
)
"""Without these nothing was simulated."""
MUST_OF_CLUSTERS = (
    ("cluster: pod", "unknown", "PodSeen"),
    ("cluster: pod", "asked", "Bound"),
    ("cluster: pod", "bound", "PatchDone bind"),
    ("cluster: pod", "asked", "PatchDone condition"),
    ("cluster: pod", "ended", "accepted RequestWithdrawn"),
    ("cluster: all", "reads", "ListingEnded pods"),
    ("cluster: all", "works", "accepted SourceSynced"),
)
"""The same where the pods are those of a cluster."""


def test_what_a_seed_must_reach_is_counted_under_its_phase() -> None:
    """A report that counts in the wrong phase sends people to look for cases that are played all the time."""
    coverage = Coverage()
    outcome = run_plan(draw_plan(2), attach=coverage.listen_to)
    assert not outcome.violation
    assert [pair for pair in MUST if not coverage.reached[pair]] == []
    assert sum(coverage.reached.values()) <= outcome.handled
    assert set(MUST).isdisjoint(coverage.never())
    assert outcome.hash == run_plan(draw_plan(2)).hash


def test_what_a_cluster_must_reach_is_counted_too() -> None:
    """It would go unnoticed that watch gaps and refused calls are never played."""
    coverage = Coverage()
    assert not run_plan(with_cluster(draw_plan(2)), attach=coverage.listen_to).violation
    assert [pair for pair in MUST_OF_CLUSTERS if not coverage.reached[pair]] == []


def test_what_must_be_reached_is_expected() -> None:
    """Renamed phases or events would make everything look as if it were never reached."""
    pairs = list(expected())
    assert {*MUST, *MUST_OF_CLUSTERS} <= set(pairs)
    assert len(set(pairs)) == len(pairs)


def test_reports_of_processes_add_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run on several processes would show what one of them has seen."""
    monkeypatch.setattr(command, "CHUNK", 1)
    path = tmp_path / "report.txt"
    assert main(["--seeds", "2", "--from", "2", "--jobs", "2", "--quiet", "--report", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "seeds=2 violations=0"
    alone = Coverage()
    for seed in range(2, 4):
        run_plan(draw_plan(seed), attach=alone.listen_to)
    assert path.read_text(encoding="utf-8").splitlines() == alone.lines()
    assert (
        alone.lines()[-1] == f"pairs={len(alone.reached)} expected={len(list(expected()))} never={len(alone.never())}"
    )
