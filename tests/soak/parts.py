"""The parts of the soak, each on a node of its own: enumerated strikes, trouble, restarts, and the mixed bulk."""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

from nvml.build import NoCompilerError
from soak import plan
from soak.cycles import PLAIN, SHARED, Kind
from soak.damage import damage_every_record
from soak.life import QUICK, Place
from soak.machine import NODE, Machine, SimulatedMachine
from soak.mixed import BATCH, Mix
from soak.nvml_machine import NvmlSoakMachine
from soak.outcome import Counts, SoakFailureError
from soak.restarts import restarts
from soak.rig import Rig

from sluice.contracts.ids import NodeName

KEEP_WARM_S = 0.5
FORGETFUL = replace(QUICK, closing_ttl_s=1, tombstone_ttl_s=2.0)
"""For the bulk: tombstones go after a while, as they do in a long run."""
SHARES = 0.15
"""Of the bulk's slices; an MPS daemon's start is a hundred times dearer than an instance here."""
KILLS = 0.05
SAY_EVERY_S = 10.0
ON_NVML = 0.3
"""Of the bulk, where there is a C compiler."""


@dataclass(slots=True)
class Run:
    """One soak."""

    options: argparse.Namespace
    counts: Counts
    dice: Random
    say: Callable[[str], None]

    def kinds(self, of: tuple[Kind, ...] = (*PLAIN, *SHARED)) -> list[Kind]:
        return [kind for kind in of if kind.name in self.options.kinds]

    @contextmanager
    def rig(self, name: str, *, nvml: bool = False, sliced: int = 3, whole: int = 1) -> Iterator[Rig]:
        """A node of its own. Its directory stays when something is wrong, and is named."""
        base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        root = Path(tempfile.mkdtemp(prefix=f"soak-{name}-", dir=base))  # short: unix sockets have 107 bytes
        is_kept = False
        try:
            place = Place(root / "data", NodeName(NODE))
            place.data.mkdir()
            made = partial(NvmlSoakMachine, root) if nvml else partial(SimulatedMachine, place.hardware)
            machine: Machine = made(sliced=sliced, whole=whole)
            with Rig(root, machine, place, self.dice, self.counts, rest_s=self.options.rest_s) as rig:
                yield rig
        except SoakFailureError:
            is_kept = not self.options.planted
            raise
        finally:
            if is_kept:
                sys.stderr.write(f"kept: {root}\n")
            else:
                shutil.rmtree(root)


def kills(run: Run) -> None:
    """Every kind of cycle, killed at every step, on simulated devices."""
    with run.rig("kills") as rig:
        for kind in run.kinds():
            plan.kills_at_every_step(rig, kind, run.say, stride=run.options.stride)


def kills_on_nvml(run: Run) -> None:
    """The same through NVML, where our library for it can be built."""
    try:
        with run.rig("nvml", nvml=True) as rig:
            for kind in run.kinds():
                stride = max(run.options.stride, 2 if kind.mps else 1)  # MPS is the same on both machines
                plan.kills_at_every_step(rig, kind, lambda line: run.say(f"NVML: {line}"), stride=stride)
            plan.in_use_up_to(rig, run.say)
            damage_every_record(rig, run.say, stride=5 * run.options.stride)
    except NoCompilerError as error:
        run.say(f"not through NVML: {error}")


def trouble(run: Run) -> None:
    """Death all the time and at the start, revokes, IN_USE, lost GPUs, reboots, a bad ledger."""
    stride = run.options.stride
    with run.rig("trouble") as rig:
        plan.kills_while_starting(rig, run.say, stride=stride)
        plan.killed_while_a_daemon_starts(rig, run.say, stride=stride)
        plan.revoked_at_every_step(rig, run.say)
        plan.in_use_up_to(rig, run.say)
        for kind in run.kinds()[:: 1 if stride == 1 else 4]:
            plan.killed_all_the_time(rig, kind, run.say)
        for kind in run.kinds((PLAIN[1], *SHARED[:2])):
            plan.gpu_lost_at_every_step(rig, kind, run.say, stride=stride)
            plan.reboots_at_every_step(rig, kind, run.say, stride=stride)
        plan.in_bad_weather(rig, run.say)


def damage(run: Run) -> None:
    with run.rig("damage") as rig:
        damage_every_record(rig, run.say, stride=run.options.stride)


def restarted(run: Run) -> None:
    """Restarts under 28 slices and 8 daemons."""
    with run.rig("restarts", sliced=4, whole=0) as rig:
        restarts(rig, run.options.restarts, run.say)


def mixed(run: Run) -> None:
    """What is left of the cycles, partly through NVML."""
    left = run.options.cycles - run.counts.cycles
    try:
        with run.rig("nvml", nvml=True) as rig:
            _bulk(run, rig, run.counts.cycles + int(left * ON_NVML))
    except NoCompilerError as error:
        run.say(f"not through NVML: {error}")
    with run.rig("mixed") as rig:
        _bulk(run, rig, run.options.cycles)


def _bulk(run: Run, rig: Rig, upto: int) -> None:
    rig.config = FORGETFUL
    rig.restart(orderly=True)
    said_at = 0.0
    number = 0
    while run.counts.cycles < upto:
        number += 1
        rig.broker.weather = 0.1 if number % 3 == 0 else 0.0
        warm = KEEP_WARM_S if number % 4 >= 2 else 0.0
        if rig.config.keep_warm_s != warm:
            rig.config = replace(rig.config, keep_warm_s=warm)
            rig.restart(orderly=True)
        Mix(rig, shares=SHARES, kills=KILLS if number % 2 else 0.0).run(min(BATCH, upto - run.counts.cycles))
        if time.monotonic() > said_at + SAY_EVERY_S:
            said_at = time.monotonic()
            run.say(f"mixed, {rig.machine.name}: {run.counts.kills} kills, {run.counts.checks} comparisons")


PARTS: dict[str, Callable[[Run], None]] = {
    "kills": kills,
    "nvml": kills_on_nvml,
    "trouble": trouble,
    "damage": damage,
    "restarts": restarted,
    "mixed": mixed,
}
"""In the order in which they are run."""
