"""The last line of a run says what was really done, and a run that did less than was asked for fails."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest
from factories.processes import heeding_ctrl_c
from simulation.harness import command, record
from simulation.harness.command import main
from simulation.world.world import Outcome

SIMULATION = Path(__file__).resolve().parents[1]
ENDS_S = 20.0
SLOW_SEEDS = """
import sys, time
sys.path.insert(0, sys.argv[1])
from simulation.harness import command
from simulation.world.world import Outcome

def slow(seed, *_args, **_options):
    time.sleep(0.02)
    return Outcome(seed)

command.run_bounded = slow
raise SystemExit(command.main(["--seeds", "100000", "--jobs", "2", "--hashes", "--quiet"]))
"""
"""The command with seeds that take a while and cost nothing."""


def fine(seed: int, *_args: object, **_options: object) -> Outcome:
    return Outcome(seed)


def dies_at_seven(seed: int, *_args: object, **_options: object) -> Outcome:
    """A process that is killed in the middle of its work, as by a kernel out of memory."""
    if seed == 7 + command.CHUNK:
        os.kill(os.getpid(), signal.SIGKILL)
    return fine(seed)


def interrupted_at_three(seed: int, *_args: object, **_options: object) -> Outcome:
    if seed == 3:
        raise KeyboardInterrupt
    return fine(seed)


def wrong_at_two(seed: int, *_args: object, **_options: object) -> Outcome:
    return Outcome(seed, "I1: a place with two owners" if seed == 2 else "")


Run = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command, seeds as they are given: its exit code, the lines that it prints, and its errors."""

    def play(seed_played: Callable[..., Outcome], *words: str) -> tuple[int, list[str], str]:
        monkeypatch.setattr(command, "run_bounded", seed_played)
        code = main(["--quiet", *words])
        said = capsys.readouterr()
        return code, said.out.splitlines(), said.err

    return play


@pytest.mark.parametrize(
    ("seed_played", "code", "line"),
    [
        pytest.param(fine, 0, "seeds=5 violations=0", id="all were run"),
        pytest.param(wrong_at_two, 1, "seeds=5 violations=1", id="one failed"),
        pytest.param(interrupted_at_three, 1, "seeds=3 violations=0", id="interrupted"),
    ],
)
def test_the_last_line_says_what_was_done(run: Run, seed_played: Callable[..., Outcome], code: int, line: str) -> None:
    """A build reads it: three seeds are not five, and a run with a violation reads otherwise than one without."""
    ended, said, _ = run(seed_played, "--seeds", "5", "--jobs", "1")
    assert (ended, said[-1]) == (code, line)


def test_a_process_that_dies_is_not_taken_for_seeds_that_passed(run: Run) -> None:
    """A build would be green with most of its seeds never run."""
    code, said, _ = run(dies_at_seven, "--seeds", "30", "--jobs", "2")
    count = int(said[-1].removeprefix("seeds=").partition(" ")[0])
    assert (code, said[-1]) == (1, f"seeds={count} violations=0")
    assert count < 30
    assert f"only {count} of 30 seeds were run" in said
    assert any(line.startswith("a process that ran seeds has died") for line in said)


def test_ctrl_c_ends_real_processes_and_says_what_was_done() -> None:
    """A long run that is stopped in the terminal still prints the line, fails, and leaves nothing running."""
    with heeding_ctrl_c():
        run = subprocess.Popen(
            [sys.executable, "-c", SLOW_SEEDS, str(SIMULATION.parent)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
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


def recorded(path: Path, *more: str, seeds: int = 5) -> list[str]:
    return ["--seeds", str(seeds), "--jobs", "1", "--record", str(path), *more]


def test_a_run_of_hours_goes_on_where_it_was_interrupted(run: Run, tmp_path: Path) -> None:
    """Seeds that are played twice are hours of waiting."""
    path, played = tmp_path / "run.json", list[int]()

    def counted(seed: int, *_args: object, **_options: object) -> Outcome:
        played.append(seed)
        return wrong_at_two(seed)

    code, said, _ = run(interrupted_at_three, *recorded(path))
    assert (code, said[-1]) == (1, "seeds=3 violations=0")
    code, said, _ = run(counted, *recorded(path))
    assert (code, said[-1]) == (0, "seeds=5 violations=0")
    assert played == [3, 4]


def test_what_a_run_found_is_not_forgotten_when_it_goes_on(run: Run, tmp_path: Path) -> None:
    """The second half would make the whole look clean."""
    assert run(wrong_at_two, *recorded(tmp_path / "run.json"))[0] == 1
    code, said, _ = run(wrong_at_two, *recorded(tmp_path / "run.json", seeds=9))
    assert (code, said[-1]) == (1, "seeds=9 violations=1")


def test_seeds_of_other_source_or_drawn_otherwise_do_not_count(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run would claim what another source has done."""
    path = tmp_path / "run.json"
    assert run(fine, *recorded(path))[0] == 0
    code, _, err = run(fine, *recorded(path, "--timed"))
    assert (code, "timed=True" in err) == (2, True)
    monkeypatch.setattr(record, "source_hash", lambda: "changed")
    code, _, err = run(fine, *recorded(path))
    assert (code, "was written by other source than this" in err) == (2, True)


def test_a_run_of_hours_says_at_once_that_its_record_cannot_be_kept(run: Run, tmp_path: Path) -> None:
    """Otherwise it would be found out after the hours."""
    garbled = tmp_path / "run.json"
    garbled.write_text("{", encoding="utf-8")
    absent = tmp_path / "no-such-folder" / "run.json"
    whys = {absent: "cannot be written: No such file or directory", garbled: "is no record of a run"}
    for path, why in whys.items():
        code, _, err = run(interrupted_at_three, *recorded(path))
        assert (code, why in err) == (2, True), err


def test_another_module_or_another_table_of_profiles_is_another_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a record would be about what is not there any more."""
    now = record.source_hash()
    assert now == record.source_hash()
    reads = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: reads(path) + (b"#" if path.name == "catalog.toml" else b""))
    other_table = record.source_hash()
    monkeypatch.setattr(Path, "read_bytes", lambda path: reads(path) + (b"#" if path.name == "entries.py" else b""))
    assert len({now, other_table, record.source_hash()}) == 3
