"""MPS daemons of the soak: real processes of the stand-in, run by the agent's code, with switches in a file."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from soak import judge
from soak.life import Place
from soak.outcome import SoakFailureError

from sluice_node_agent.device.mps.daemons import MpsDaemons
from sluice_node_agent.device.processes import Processes
from sluice_node_agent.simulated.mps_program import SWITCHES_VARIABLE, install

TIMEOUT_S = 60.0
"""For each call, on a machine where everything waits for everything."""
SWITCHES = "mps-switches.json"
END_S = 60.0
"""For processes that were killed to be gone."""


def make_mps(place: Place, root: Path, environment: Mapping[str, str]) -> MpsDaemons:
    place.mps.mkdir(parents=True, exist_ok=True)
    control = root / "bin" / "nvidia-cuda-mps-control"
    if not control.exists():
        control = install(control.parent)
    told = {**environment, SWITCHES_VARIABLE: str(root / SWITCHES)}
    return MpsDaemons(place.mps, control, Processes(), timeout_s=TIMEOUT_S, environment=told)


@contextmanager
def failing(root: Path, switch: str) -> Iterator[None]:
    """While this lasts the stand-in fails in one way."""
    path = root / SWITCHES
    path.write_text(json.dumps({switch: True}), encoding="utf-8")
    try:
        yield
    finally:
        path.unlink()


def kill_daemons(mps: Path) -> int:
    """SIGKILL everything that works for a home below `mps`, until nothing is left; how many there were."""
    found: set[int] = set()
    deadline = time.monotonic() + END_S
    while left := {process.pid for process in judge.processes_of(mps, asking=True)}:
        if time.monotonic() > deadline:
            raise SoakFailureError(f"processes do not end: {left}")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        found |= left
        time.sleep(0.01)
    return len(found)
