"""The queue in front of a core: in order of arrival, bounded, and ticks pass it.

`ReadingStarted` explains every answer that arrived before it, so an answer may not overtake it."""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

E = TypeVar("E")

EVENTS_MAX = 20_000
"""Queued events before producers must wait. The last batch may exceed it."""


class Inbox(Generic[E]):
    """Events for one core, and the tick that is due. For tasks of one event loop."""

    def __init__(self, tick: E, *, events_max: int = EVENTS_MAX) -> None:
        self._tick = tick
        self._tick_due = False
        self._events: deque[E] = deque()
        self._events_max = events_max
        self._something = asyncio.Event()
        self._room = asyncio.Condition()

    def __len__(self) -> int:
        return len(self._events)

    async def offer(self, events: Iterable[E]) -> None:
        if len(self._events) >= self._events_max:
            async with self._room:
                await self._room.wait_for(lambda: len(self._events) < self._events_max)
        self.add(events)

    def add(self, events: Iterable[E]) -> None:
        """Add without waiting: for results, bounded by the number of instructions."""
        self._events.extend(events)
        self._something.set()

    def tick(self) -> None:
        self._tick_due = True
        self._something.set()

    async def filled(self) -> None:
        await self._something.wait()

    def take(self) -> E | None:
        if self._tick_due:
            self._tick_due = False
            return self._tick
        if self._events:
            return self._events.popleft()
        self._something.clear()
        return None

    async def admit_waiting(self) -> None:
        """Wake producers when there is room. Gives the event loop its turn."""
        if len(self._events) < self._events_max:
            async with self._room:
                self._room.notify_all()
        await asyncio.sleep(0)
