"""Reads last values before the core asks for them, to save a pod the wait before a first write (`ReadLast`).

A prefetched value is used once, and never after a new reading has begun: as if its answer had come late."""

import asyncio
from collections.abc import Callable, Iterable

from sluice.contracts.bus.events import Entry, Observed, ReadingCaughtUp, ReadingStarted, ReadLast
from sluice.runtime.bus import Bus, Reading

READS_MAX = 1_000
"""Prefetched values not used yet. Beyond that, values are read when requested."""

PredictRead = Callable[[Entry], ReadLast | None]
"""Predicts the subjects that a core will request for the first time after observing this entry."""


class Prefetch:
    """The prefetched reads of one core."""

    def __init__(self, bus: Bus, predict_read: PredictRead | None) -> None:
        self._bus = bus
        self._predict_read = predict_read
        self._live = False
        """Whether observed entries are new; those at the start of a reading are past, most of them answered."""
        self._looks: dict[str, asyncio.Task[Entry | None]] = {}

    def hear(self, batch: Iterable[Reading]) -> None:
        if self._predict_read is None:
            return
        for event in batch:
            match event:
                case ReadingStarted():
                    self._live = False
                    self.forget()
                case ReadingCaughtUp():
                    self._live = True
                case Observed(entry=entry) if self._live and len(self._looks) < READS_MAX:
                    foreseen = self._predict_read(entry)
                    if foreseen is not None and foreseen.subject not in self._looks:
                        look = self._bus.last(foreseen.stream, foreseen.subject)
                        self._looks[foreseen.subject] = asyncio.ensure_future(look)

    async def last(self, wanted: ReadLast) -> Entry | None:
        look = self._looks.pop(wanted.subject, None)
        return await (self._bus.last(wanted.stream, wanted.subject) if look is None else look)

    def forget(self) -> None:
        for look in self._looks.values():
            if not look.cancel() and not look.cancelled():
                look.exception()  # will not be requested
        self._looks.clear()
