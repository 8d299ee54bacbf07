"""A short dose of chaos in every test run, and the proof that it can fail."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from chaos.command import verdict
from chaos.plan import KINDS, Plan
from chaos.planted import PLANTED
from chaos.recorder import Word, line_of, read_words
from chaos.run import Done

CHAOS = Path(__file__).parent
TIMEOUT_S = 420.0
"""Several times what the longest dose takes on two cores that do nothing else."""
LAST_LINE = re.compile(r"kills=(\d+) violations=(\d+) recovery_p99_s=(?:\d+\.\d\d|nan)")
BROKERS, SERVICES, AGENTS = ["b1", "b2", "b3"], ["s", "a"], ["a"]
KILLS = int(os.environ.get("KILLS_IN_TESTS", "6"))
"""A dose for a normal test run; fifty in `make doses`, any number in `make chaos`."""
DOSE = (*["broker-kill"] * KILLS, "link-cut", "broker-wipe", "disk-full", "journal-wipe")
FIRST, *OTHERS = PLANTED
"""One is found in each run, all in `make doses`."""


def chaos(kills: str, *options: str) -> tuple[subprocess.CompletedProcess, int, int]:
    """Run it as a person does; kills and violations of its last line."""
    command = [sys.executable, str(CHAOS), "--kills", kills, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    said = LAST_LINE.fullmatch(done.stdout.splitlines()[-1] if done.stdout else "")
    assert said is not None, done.stdout + done.stderr[-8000:]
    return done, int(said[1]), int(said[2])


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 10)
def test_no_slice_is_given_twice_or_leaked_whatever_is_killed():
    """Each pod has one slice while it lives, and nothing is left after it: many killed brokers, and some worse."""
    done, kills, wrong = chaos(str(len(DOSE)), "--kinds", *DOSE)
    assert (done.returncode, kills, wrong) == (0, len(DOSE), 0), done.stderr[-8000:]


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 10)
@pytest.mark.parametrize("defect", [FIRST, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in OTHERS)])
def test_a_planted_defect_is_found(tmp_path, defect):
    """Chaos that cannot fail would say that all is well for ever."""
    done, kills, wrong = chaos("1", "--kinds", "journal-wipe", "--planted", defect, "--dir", str(tmp_path))
    assert (done.returncode, kills) == (1, 1), done.stderr[-8000:]
    assert wrong > 0


def test_fewer_faults_than_asked_or_a_violation_is_a_failure():
    """A run of a thousand kills that ended after ten reports a failure."""
    done = Done(1, "broker-kill", "broker-1", 1.0, 2.0, 3.0, recovery_s=0.5, wiped=False)
    assert verdict([done], [], 1) == ("kills=1 violations=0 recovery_p99_s=0.50", 0)
    assert verdict([done], [], 2) == ("kills=1 violations=0 recovery_p99_s=0.50", 1)
    assert verdict([done], ["a leak"], 1) == ("kills=1 violations=1 recovery_p99_s=0.50", 1)
    assert verdict([], [], 1) == ("kills=0 violations=0 recovery_p99_s=nan", 1)


def test_a_seed_draws_the_same_faults_again_and_in_time_every_kind():
    """A failure could not be played again, or a kind of fault be left out silently."""

    def drawn(seed: int, count: int):
        plan = Plan(seed, brokers=BROKERS, services=SERVICES, agents=AGENTS)
        return [plan.next() for _ in range(count)]

    assert drawn(1, 20) == drawn(1, 20) != drawn(2, 20)
    assert {fault.kind for fault in drawn(1, 2000)} == set(KINDS)
    with pytest.raises(ValueError, match="server-cut cannot be done with 1 server"):
        Plan(1, brokers=["b1"], services=SERVICES, agents=AGENTS, kinds=["server-cut"])


def test_a_word_of_which_only_the_copy_was_seen_is_not_taken_for_later_than_the_next_one(tmp_path):
    """Two streams have two clocks: a slice that was ready and then gone was said to have come back."""
    ready, gone = (71, "ready", "SliceReady"), (72, "gone", "SliceGone")
    seen = [(5.911784, False, *gone), (5.912110, True, *ready), (5.922678, True, *gone)]
    words = [Word(*when, "sluice.slice.n.a", operation, {"type": kind}) for *when, operation, kind in seen]
    (tmp_path / "words.jsonl").write_text("".join(map(line_of, words)))
    assert [word.message["type"] for word in read_words(tmp_path / "words.jsonl")] == ["SliceReady", "SliceGone"]
