"""A process that exits by itself fails a run, and a dead one is not killed: without a system, on small processes."""

import json
import sys
import time
from dataclasses import asdict

import pytest
from chaos import faults
from chaos.deaths import LATE_S, Deaths, notes, violations
from chaos.faults import Faults, NotDoneError
from chaos.judging import judge
from chaos.plan import BY_NAME, Fault
from chaos.run import FAULTS, SUMMARY, TRUTH, WORDS, Outcome
from chaos.system import System
from factories.processes import Process

END = "raise SystemExit(1)"
STAY = "import time; time.sleep(600)"


@pytest.fixture
def process(tmp_path):
    made = Process("allocator-2", (sys.executable, "-S", "-c", END), {}, tmp_path / "log")
    yield made
    made.kill()


def life(process: Process) -> None:
    process.start()
    process._popen.wait(60)


def written(deaths: Deaths) -> list[dict]:
    return json.loads(json.dumps([asdict(death) for death in deaths.seen]))


def test_a_service_that_dies_again_and_again_by_itself_is_a_violation_in_the_runs_files(process, tmp_path):
    """An allocator that stands by and ended in every run was a note beside `violations=0`, and exit 0."""
    deaths = Deaths()
    for at in (1.0, 2.0):
        life(process)
        assert deaths.note(process, at)
        assert not deaths.note(process, at), "one life ends once"
    for name in (WORDS, TRUTH, FAULTS):
        (tmp_path / name).touch()
    (tmp_path / SUMMARY).write_text(json.dumps(asdict(Outcome(deaths=deaths.seen, ended_at=3.0))))
    (wrong,) = judge(tmp_path)
    assert wrong.startswith("allocator-2 ended by itself 2 times with exit code 1")
    assert not notes(deaths.seen)


def test_an_agent_without_a_disk_may_end_and_no_later_life_of_it(process):
    """The one end that is designed would fail every run, or excuse an agent that never comes back after it."""
    deaths = Deaths()
    with deaths.allowed(process):
        life(process)
        deaths.note(process, time.time())
        life(process)
    deaths.note(process, time.time())  # it began without a disk, and was seen to have ended when there was room again
    assert not violations(written(deaths))
    assert notes(deaths.seen) == ["allocator-2 ended by itself 2 times with exit code 1, as it must without a disk"]
    life(process)
    deaths.note(process, time.time())
    assert len(violations(written(deaths))) == 1


def test_a_life_that_a_full_disk_did_not_end_has_no_excuse_for_ever(process):
    """An agent that was started while its disk was full could crash much later, and no test would notice."""
    deaths = Deaths()
    with deaths.allowed(process):
        life(process)
    deaths.note(process, time.time() + 2 * LATE_S)
    assert len(violations(written(deaths))) == 1


def test_an_end_of_another_kind_is_not_excused_by_a_full_disk(process):
    """An agent that ends in order, or is killed by its own library, has not said that its disk is full."""
    deaths = Deaths()
    process.command = (sys.executable, "-S", "-c", "raise SystemExit(0)")
    with deaths.allowed(process):
        life(process)
        deaths.note(process, 1.0)
    assert len(violations(written(deaths))) == 1


@pytest.mark.parametrize("kind", ["service-kill", "service-restart", "service-freeze", "journal-wipe", "disk-full"])
async def test_a_fault_whose_victim_does_not_run_is_not_done(process, tmp_path, monkeypatch, kind):
    """Kills that hit no process were counted, so `kills=1000` could mean far fewer."""
    monkeypatch.setattr(faults, "RUNS_WITHIN_S", 0.0)
    system = System(tmp_path / "run", 1)
    system.services[process.name] = process
    life(process)
    fault = Fault(1, BY_NAME[kind], process.name, 0.0, 0.0, 0.0)
    with pytest.raises(NotDoneError, match="allocator-2 does not run"):
        await Faults(system, lambda _: None).do(fault)


async def test_who_is_about_to_be_started_again_is_waited_for_and_then_killed(process, tmp_path, monkeypatch):
    """A run would end early because a service was just between two starts."""
    process.command = (sys.executable, "-S", "-c", STAY)
    system = System(tmp_path / "run", 1)
    system.services[process.name] = process

    async def start(_: float) -> None:
        if not process.lives:
            process.start()

    monkeypatch.setattr(faults.asyncio, "sleep", start)
    await Faults(system, lambda _: None).do(Fault(1, BY_NAME["service-kill"], process.name, 0.0, 0.0, 0.0))
    assert not system.died(), "who was killed has not died by itself"


def test_one_that_ends_just_before_it_is_killed_was_not_killed(process):
    """The kill of a corpse is none, and its death stays its own."""
    life(process)
    with pytest.raises(NotDoneError, match="had ended with exit code 1"):
        faults._kill(process)
