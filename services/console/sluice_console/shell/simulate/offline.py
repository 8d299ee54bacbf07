"""`sluice simulate` without a cluster: this process becomes the allocator's own simulation, which does the rest."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

PROGRAM = "sluice_allocator.offline"
"""Run as a program: services meet nowhere in Python."""


@dataclass(frozen=True, slots=True)
class OfflineRun:
    """What to simulate: the files, and how."""

    fleet: Path
    workload: Path
    out: Path
    placement: Path | None
    policy: str | None
    queue: bool
    seed: int


def become_simulation(run: OfflineRun) -> NoReturn:
    """Carry on as the simulation, with these streams; its exit code is this command's (2: something given is wrong)."""
    command = [sys.executable, "-m", PROGRAM]
    command += [f"--fleet={run.fleet}", f"--workload={run.workload}", f"--out={run.out}", f"--seed={run.seed}"]
    command += [f"--placement={run.placement}"] if run.placement is not None else []
    command += [f"--policy={run.policy}"] if run.policy is not None else []
    command += [] if run.queue else ["--no-queue"]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, command)  # noqa: S606  # no shell is wanted: the arguments are a list
