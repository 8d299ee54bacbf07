"""The library in real processes, beside a real scheduler: what a program does must go on as if it were not there."""

import pytest
from factories.waiting import wait_until
from quota.rig import Rig

WAYS_TO_LAUNCH = 12


def serve(rig: Rig, *, request: float = 0.5, memory: int = 0) -> None:
    rig.start_scheduler()
    rig.add("a", request=request, memory=memory)


@pytest.mark.parametrize(
    "name", ["capture", "threads", "contexts", "forks", "memory", "closes-all", "keeps-errno", "cancels"]
)
def test_a_program_does_not_notice_the_library(rig: Rig, name: str) -> None:
    """A program that works without the quota would fail, hang or crash with it."""
    serve(rig, memory=64 << 20 if name == "memory" else 0)
    process = rig.start("a", "behaviours", name)
    assert process.hear() == "ok", process.errors()
    assert process.ended() == 0, process.errors()
    assert rig.scheduler.ask("usage")["a"]["hellos"] >= (2 if name == "forks" else 1)


@pytest.mark.parametrize("way", ["dlsym", "runtime", "per-thread"])
def test_a_program_that_loads_cuda_itself_is_held_to_its_quota(rig: Rig, way: str) -> None:
    """Everything that uses the CUDA runtime would have no quota at all."""
    serve(rig)
    process = rig.start("a", "unlinked", way)
    assert process.hear() == "ok", process.errors()
    used = rig.scheduler.ask("usage")["a"]
    assert used["hellos"] == 1
    assert used["tokens"] > 0
    assert rig.judge.look().kernels["a"] == 60


def test_who_asks_for_the_next_of_a_name_is_answered_for_itself(rig: Rig) -> None:
    """Other preloaded libraries (a malloc, a tracer) would find themselves, and recurse until the stack is full."""
    rig.add("a", request=1.0)
    assert rig.start("a", "unlinked", "next").hear() == "ok"


def test_every_way_to_launch_waits_for_a_token(rig: Rig) -> None:
    """A program that launches by graphs, cooperatively or by an old call would take the whole device."""
    rig.add("a", request=1.0)
    waiting = [
        rig.start("a", "behaviours", "launch", number, SLUICE_QUOTA_FAIL="closed", SLUICE_QUOTA_LOG="2")
        for number in range(WAYS_TO_LAUNCH)
    ]
    for process in waiting:
        wait_until(lambda process=process: "No such file" in process.errors(), "it waits at the gate")
    assert rig.judge.look().pending["a"] + rig.judge.look().kernels["a"] == 0
    rig.start_scheduler()
    for process in waiting:
        assert process.hear() == "ok", process.errors()
    assert rig.judge.look().kernels["a"] == WAYS_TO_LAUNCH


def test_without_a_socket_the_library_does_nothing(rig: Rig) -> None:
    """A pod of another mode, or one whose mount is not there, would wait for a scheduler that will never be."""
    process = rig.start("a", "behaviours", "threads", LD_PRELOAD=str(rig.built.library), SLUICE_QUOTA_SOCKET="",
                        SLUICE_QUOTA_FAIL="closed", SLUICE_QUOTA_LOG="2", quota=False)  # fmt: skip
    assert process.hear() == "ok"
    assert process.errors() == ""


def test_a_setting_that_cannot_be_is_said_in_words(rig: Rig) -> None:
    """A misspelt fail mode would be taken for another, silently."""
    serve(rig)
    process = rig.start("a", "behaviours", "keeps-errno", SLUICE_QUOTA_FAIL="shut", SLUICE_QUOTA_PATIENCE_MS="2s")
    assert process.hear() == "ok"
    assert "SLUICE_QUOTA_FAIL is 'shut'; it must be open or closed. open is taken" in process.errors()
    assert "SLUICE_QUOTA_PATIENCE_MS is '2s'; it must be a whole number from 500 to 3600000. 2000 is taken" in (
        process.errors()
    )
