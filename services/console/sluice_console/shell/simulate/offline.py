"""`sluice simulate` without a cluster: this process becomes the allocator's simulation."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

PROGRAM = "sluice_allocator.offline"
"""Run as a program: services do not import each other."""


@dataclass(frozen=True, slots=True)
class OfflineRun:
    """The files to simulate, and the options."""

    fleet: Path
    workload: Path
    out: Path
    placement: Path | None
    policy: str | None
    queue: bool
    seed: int


def become_simulation(run: OfflineRun) -> NoReturn:
    """Become the simulation, with these streams and its exit code (2: an invalid input)."""
    command = [sys.executable, "-m", PROGRAM]
    command += [f"--fleet={run.fleet}", f"--workload={run.workload}", f"--out={run.out}", f"--seed={run.seed}"]
    command += [f"--placement={run.placement}"] if run.placement is not None else []
    command += [f"--policy={run.policy}"] if run.policy is not None else []
    command += [] if run.queue else ["--no-queue"]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, command)  # noqa: S606  # no shell is wanted: the arguments are a list
