"""
Looks at a last value while it is not asked for yet, so that nobody waits for it when it is.

Who writes by a direct reading (`ReadLast`) has to look before it writes a subject for the first time, and asks when it
has something to say: by then a pod waits for the answer. What it is going to say is foreseen by what it hears.

A look that was begun early is taken once, by the first question for that subject, and never after a new reading has
begun. It is as if its answer had come late: nobody else writes there, or the guard of the write that follows refuses.
"""

import asyncio
from collections.abc import Callable, Iterable

from sluice.contracts.bus.events import Entry, Observed, ReadingCaughtUp, ReadingStarted, ReadLast
from sluice.runtime.bus import Bus, Reading

READS_MAX = 1_000
"""Looks that nobody has taken. What is foreseen beyond that is looked at when it is asked for."""

PredictRead = Callable[[Entry], ReadLast | None]
"""Says what is going to be asked for, for the first time, by a core that hears this entry."""


class Prefetch:
    """The looks of one core."""

    def __init__(self, bus: Bus, predict_read: PredictRead | None) -> None:
        """Without `predict_read` everything is looked at when it is asked for."""
        self._bus = bus
        self._predict_read = predict_read
        self._live = False
        """What is heard is said now. A reading's beginning tells of what was, and most of that has been said of."""
        self._looks: dict[str, asyncio.Task[Entry | None]] = {}

    def hear(self, batch: Iterable[Reading]) -> None:
        """Begin to look for what is foreseen; before the core is given the batch."""
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
                case _:
                    pass

    async def last(self, wanted: ReadLast) -> Entry | None:
        """The last value of one subject. Raises what the bus raises."""
        look = self._looks.pop(wanted.subject, None)
        return await (self._bus.last(wanted.stream, wanted.subject) if look is None else look)

    def forget(self) -> None:
        """What was looked for so far is of no use any more."""
        for look in self._looks.values():
            if not look.cancel() and not look.cancelled():
                look.exception()  # nobody is going to ask for it
        self._looks.clear()
