"""A short dose of the soak in every test run, and the proof that it can fail: each planted defect is found."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from soak.planted import PLANTED

SOAK = Path(__file__).parent
DOSE = float(os.environ.get("SOAK_IN_TESTS", "0.25"))
"""So much of the doses below is played. All of it in `.ci/run`."""
TIMEOUT_S = 150.0
"""Ten times what a dose takes on two cores that do nothing else."""
WITHOUT_KILLS = {"damage", "restarts"}
"""They end the agent by themselves; only kills that strike it at work are counted."""
DOSES = {
    "kills": "--parts kills --cycles 100 --kinds exclusive 'several devices' 'whole GPU' 'in use once'",
    "kills of shares": "--parts kills --cycles 8 --stride 11 --kinds neighbours 'daemon dies'",
    "NVML": "--parts nvml --cycles 30 --stride 4 --kinds exclusive 'foreign in the way'",
    "trouble": "--parts trouble --cycles 40 --stride 8 --kinds 'several devices' 'share of a GPU'",
    "damage": "--parts damage --cycles 18 --stride 29",
    "restarts": "--parts restarts --cycles 28 --restarts 10",
    "mixed": "--parts mixed --cycles 120",
}


def _soak(*options: str) -> tuple[subprocess.CompletedProcess, dict[str, int]]:
    done = subprocess.run(
        [sys.executable, str(SOAK), *options], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    last = done.stdout.splitlines()[-1] if done.stdout else ""
    said = re.fullmatch(r"cycles=(\d+) kills=(\d+) leaks=(\d+)", last)
    assert said is not None, done.stdout + done.stderr
    return done, dict(zip(("cycles", "kills", "leaks"), map(int, said.groups()), strict=True))


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 10)
@pytest.mark.parametrize("dose", list(DOSES))
def test_nothing_of_a_slice_is_lost_or_left_however_the_agent_dies(dose):
    """Users get what they were granted, and a node never fills up with orphans."""
    if dose == "NVML" and shutil.which("cc") is None:
        pytest.skip("there is no C compiler (cc) on PATH to build our NVML library with")
    options = shlex.split(DOSES[dose])
    at = options.index("--cycles") + 1
    asked = max(1, round(DOSE * int(options[at])))
    options[at] = str(asked)
    done, counts = _soak(*options)
    assert done.returncode == 0, done.stderr[-8000:]
    assert (counts["cycles"] >= asked, counts["leaks"]) == (True, 0)
    assert (counts["kills"] > 0) is (dose not in WITHOUT_KILLS)


@pytest.mark.timeout(TIMEOUT_S + 10)
@pytest.mark.parametrize("defect", list(PLANTED))
def test_a_planted_defect_is_found(defect):
    """A soak that cannot fail would say that all is well for ever."""
    done, counts = _soak("--cycles", "1", "--rest-s", "2", "--planted", defect, *PLANTED[defect][1])
    assert done.returncode == 1, done.stderr[-4000:]
    assert counts["leaks"] > 0 or "disturbed" in done.stderr


def test_fewer_cycles_than_asked_are_a_failure():
    """A run of ten thousand cycles that ended after ten reports a failure."""
    done, counts = _soak("--cycles", "1000", "--parts", "kills", "--kinds", "no room", "--stride", "50")
    assert (done.returncode, counts["leaks"]) == (1, 0)
    assert 0 < counts["cycles"] < 1000
