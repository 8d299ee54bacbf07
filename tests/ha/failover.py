"""
How long no pod is granted a slice when the leader dies, or is frozen and wakes up later as if nothing had happened.

One at a time: the process that works in a role is struck, a pod is created at the same moment, and the time runs until
it is bound. A frozen one is thawed when another has taken over; it must do no harm: the history says.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from factories.system import violations_at
from ha.pods import Pods
from ha.system import System

FROZEN_FOR_S = 2.0
"""How long a frozen one stays so after another has taken over."""
BOUNDS_S = {1: 10.0, 3: 20.0}
"""What a failover may take at most, by the number of brokers."""
WAYS = (
    ("allocator", "kill"),
    ("pod-watcher", "kill"),
    ("inventory", "kill"),
    ("allocator", "freeze"),
    ("pod-watcher", "freeze"),
)
KEPT_MAX = 12
"""Pods that are there at once; the oldest goes."""


@dataclass(frozen=True, slots=True)
class Struck:
    """One failover: who, how, and how long until the next request was granted."""

    service: str
    way: str
    took_s: float


@dataclass
class Outcome:
    """What a run came to."""

    struck: list[Struck] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


async def failovers(
    system: System, kills: int, say: Callable[[str], None], ways: Sequence[tuple[str, str]] = WAYS
) -> Outcome:
    """Strike `kills` times, each way in turn."""
    outcome, pods, kept = Outcome(), Pods(system), []
    slices: dict[str, str] = {}
    first = await pods.create()
    kept.append(first)
    slices[first] = (await pods.bound(first)).allocation
    for number in range(kills):
        service, way = ways[number % len(ways)]
        victim = await system.working(service)
        begun = time.monotonic()
        (victim.kill if way == "kill" else victim.freeze)()
        name = await pods.create()
        slices[name] = (await pods.bound(name)).allocation
        outcome.struck.append(Struck(service, way, time.monotonic() - begun))
        say(f"{number + 1}. {victim.name} {way}: {outcome.struck[-1].took_s:.2f} s")
        if way == "freeze":
            await asyncio.sleep(FROZEN_FOR_S)
            victim.thaw()
        else:
            victim.start()
        await system.stands_by(victim)
        kept.append(name)
        if len(kept) > KEPT_MAX:
            gone = kept.pop(0)
            slices.pop(gone)
            await pods.delete(gone)
    for name in kept:
        found = (await pods.bound(name)).allocation
        if found != slices[name]:
            outcome.wrong.append(f"{name} had slice {slices[name]} and has {found}")
    await pods.delete(*kept)
    await pods.all_gone()
    outcome.wrong += await violations_at(system.broker.url, sources_killed=True)
    return outcome
