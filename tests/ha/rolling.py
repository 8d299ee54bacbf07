"""
Every service is replaced by another version while pods come and go all the time, and then back: an upgrade and a
way back.

The new one is started first and the old one told to end when the new one is ready; of an agent, which holds its node's
devices alone, the old one ends first. Each pod must be answered once, and with a slice.
"""

import asyncio
import itertools
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from factories.processes import Process
from factories.system import violations_at
from ha.pods import Pods
from ha.system import NEXT_VERSION, TWICE, System

from sluice_console.core.process_plan import SERVICES

OWN = (sys.executable, "-m")
PAUSE_S = 0.35
"""Between two pods, on average."""
ALIVE_MAX = 16


@dataclass
class Outcome:
    """What a rolling upgrade came to. `waits_s` has the time of every pod until it was bound."""

    replaced: int = 0
    waits_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


async def upgrade(
    system: System,
    rounds: int,
    say: Callable[[str], None],
    names: Sequence[str] | None = None,
    *,
    other: Path | None = None,
) -> Outcome:
    """
    Replace every process, or those named, `rounds` times: to another version, back to this one, and so on.

    The other version is the one of the checkout `other`, which has a `.venv`; without it, a next one made of this one.
    """
    outcome, pods = Outcome(), Pods(system)
    async with coming_and_going(pods, outcome):
        for turn in range(rounds):
            for name in names or list(system.services):
                began = time.monotonic()
                await _replace(system, name, _program(other) if turn % 2 == 0 else OWN)
                outcome.replaced += 1
                say(f"{name} replaced in {time.monotonic() - began:.2f} s, {len(outcome.waits_s)} pods bound so far")
    await judge(pods, outcome)
    return outcome


async def judge(pods: Pods, outcome: Outcome) -> None:
    """When all pods are gone: each got an answer and a slice, and no rule was broken."""
    await pods.all_gone()
    outcome.wrong += await violations_at(pods.system.broker.url, sources_killed=True)
    if len(outcome.waits_s) != pods.number:
        outcome.wrong.append(f"{pods.number} pods were created and {len(outcome.waits_s)} bound")


def _program(other: Path | None) -> tuple[str, ...]:
    if other is None:
        return (sys.executable, str(NEXT_VERSION))
    python = other / ".venv/bin/python"
    assert python.exists(), f"no {python}: `make setup` in {other} makes it"
    return (str(python), "-m")


async def _replace(system: System, name: str, program: Sequence[str]) -> None:
    old = system.services[name]
    service = next(service for service in SERVICES if name.startswith(service))
    log = old.log.with_name(f"{name}-{next(_numbers)}.log")
    new = replace(old, command=(*program, SERVICES[service]), log=log, lives=0, _popen=None)
    if service not in TWICE:
        await asyncio.to_thread(_end, old)
    new.start()
    await system.stands_by(new)
    if service in TWICE:
        await asyncio.to_thread(_end, old)
    system.services[name] = new


_numbers = itertools.count(2)


def _end(process: Process) -> None:
    """In order, as an orchestrator does; who does not end with 0 has not."""
    process.stop()
    assert process.code == 0, f"{process.name} ended with {process.code}: {process.log.read_text()[-3000:]}"


@asynccontextmanager
async def coming_and_going(pods: Pods, outcome: Outcome) -> AsyncIterator[None]:
    """Pods are created, and deleted some time after they were bound, until the context ends; then all go."""
    dice, stop = random.Random(7), asyncio.Event()

    async def one(name: str) -> None:
        await pods.bound(name)
        outcome.waits_s.append(time.monotonic() - pods.since[name])
        await asyncio.sleep(dice.uniform(0.1, 2.0))
        await pods.delete(name)

    async def come() -> None:
        async with asyncio.TaskGroup() as lives:
            alive: set[asyncio.Task[None]] = set()
            while not stop.is_set():
                alive = {task for task in alive if not task.done()}
                if len(alive) < ALIVE_MAX:
                    alive.add(lives.create_task(one(await pods.create())))
                await asyncio.sleep(dice.expovariate(1 / PAUSE_S))

    task = asyncio.create_task(come())
    try:
        yield
    finally:
        stop.set()
        await task
