"""The last line of a run says what was really done, and a run that did less than was asked for fails."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest
from factories.processes import heeding_ctrl_c
from simulation import command
from simulation.command import main
from simulation.world import Outcome

HERE = Path(__file__).resolve().parent
ENDS_S = 20.0
SLOW_SEEDS = """
import sys, time
sys.path.insert(0, sys.argv[1])
from simulation import command
from simulation.world import Outcome

def slow(seed, *_args, **_options):
    time.sleep(0.02)
    return Outcome(seed), None

command.run_bounded = slow
raise SystemExit(command.main(["--seeds", "100000", "--jobs", "2", "--hashes", "--quiet"]))
"""
"""The command with seeds that take a while and cost nothing."""


def fine(seed: int, *_args: object, **_options: object) -> command.Done:
    """A seed in which nothing is wrong."""
    return Outcome(seed), None


def dies_at_seven(seed: int, *_args: object, **_options: object) -> command.Done:
    """A process that is killed in the middle of its work, as by a kernel out of memory."""
    if seed == 7 + command.CHUNK:
        os.kill(os.getpid(), signal.SIGKILL)
    return fine(seed)


def interrupted_at_three(seed: int, *_args: object, **_options: object) -> command.Done:
    """Somebody types Ctrl-C."""
    if seed == 3:
        raise KeyboardInterrupt
    return fine(seed)


def wrong_at_two(seed: int, *_args: object, **_options: object) -> command.Done:
    """One seed breaks an invariant."""
    return Outcome(seed, "I1: a place with two owners" if seed == 2 else ""), None


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    """What the run says at the very end."""
    return capsys.readouterr().out.splitlines()[-1]


def test_all_seeds_were_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The line that a build reads."""
    monkeypatch.setattr(command, "run_bounded", fine)
    assert main(["--seeds", "5", "--jobs", "1"]) == 0
    assert last_line(capsys) == "seeds=5 violations=0"


def test_a_violation_fails_the_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that found something must not look like one that did not."""
    monkeypatch.setattr(command, "run_bounded", wrong_at_two)
    assert main(["--seeds", "5", "--jobs", "1", "--quiet"]) == 1
    assert last_line(capsys) == "seeds=5 violations=1"


def test_a_process_that_dies_is_not_taken_for_seeds_that_passed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A build would be green with most of its seeds never run."""
    monkeypatch.setattr(command, "run_bounded", dies_at_seven)
    assert main(["--seeds", "30", "--jobs", "2", "--quiet"]) == 1
    said = capsys.readouterr().out.splitlines()
    count = int(said[-1].removeprefix("seeds=").partition(" ")[0])
    assert said[-1] == f"seeds={count} violations=0"
    assert count < 30
    assert f"only {count} of 30 seeds were run" in said
    assert any(line.startswith("a process that ran seeds has died") for line in said)


def test_an_interrupted_run_says_how_far_it_came(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three seeds are not five."""
    monkeypatch.setattr(command, "run_bounded", interrupted_at_three)
    assert main(["--seeds", "5", "--jobs", "1", "--quiet"]) == 1
    assert last_line(capsys) == "seeds=3 violations=0"


def test_ctrl_c_ends_real_processes_and_says_what_was_done() -> None:
    """Who stops a long run in the terminal still gets the line, a failing exit code, and nothing left running."""
    with heeding_ctrl_c():
        run = subprocess.Popen(
            [sys.executable, "-c", SLOW_SEEDS, str(HERE.parent)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
    assert run.stdout is not None
    began = monotonic()
    try:
        assert run.stdout.readline().startswith("seed 0 ")
        os.killpg(run.pid, signal.SIGINT)
        rest, _ = run.communicate(timeout=ENDS_S)
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        run.stdout.close()
    assert monotonic() - began < 2 * ENDS_S
    line = rest.splitlines()[-1]
    count = int(line.removeprefix("seeds=").partition(" ")[0])
    assert line == f"seeds={count} violations=0"
    assert 1 <= count < 100_000
    assert run.returncode == 1
