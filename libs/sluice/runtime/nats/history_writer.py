"""
Copies what landed to HISTORY, for people. Best effort: a writer that dies in between leaves a gap, and that is all.

The server could do it, but its RePublish keeps the guard headers and HISTORY would refuse all but the first word of
each subject. Nothing may ever wait for, or be decided from, what is recorded here.
"""

import asyncio
from collections import OrderedDict

from sluice.contracts.bus.events import Entry, Write
from sluice.contracts.bus.streams import UNRECORDED_KINDS
from sluice.contracts.bus.subjects import HISTORY_PREFIX
from sluice.contracts.ids import OperationId
from sluice.runtime.nats.connection import Connection

ORIGIN = "Sluice-Sequence"
"""The header that names the sequence at which a recorded word landed."""
UNSETTLED_MAX = 1_000
"""Writes without an answer that are remembered until they are seen to have landed."""


class HistoryWriter:
    """What one connection wrote, on its way to HISTORY."""

    def __init__(self, connection: Connection) -> None:
        """Nothing to record yet."""
        self._connection = connection
        self._unsettled: OrderedDict[OperationId, tuple[bytes, dict[str, str]]] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    async def landed(self, write: Write, sequence: int, data: bytes, headers: dict[str, str]) -> None:
        """A write was accepted."""
        self._unsettled.pop(write.operation, None)
        await self._record(write.subject, sequence, data, headers)

    def unsettled(self, write: Write, data: bytes, headers: dict[str, str]) -> None:
        """A write got no answer: it is recorded when it is seen."""
        self._unsettled[write.operation] = (data, headers)
        if len(self._unsettled) > UNSETTLED_MAX:
            self._unsettled.popitem(last=False)

    def seen(self, entry: Entry) -> None:
        """An entry was read: perhaps a write of ours that got no answer."""
        found = self._unsettled.pop(entry.operation, None) if self._unsettled else None
        if found is not None:
            task = asyncio.get_running_loop().create_task(self._record(entry.subject, entry.sequence, *found))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Record nothing more."""
        for task in self._tasks:
            task.cancel()

    async def _record(self, subject: str, sequence: int, data: bytes, headers: dict[str, str]) -> None:
        if subject.split(".", 2)[1] in UNRECORDED_KINDS:
            return
        try:
            await self._connection.publish(HISTORY_PREFIX + subject, data, headers={**headers, ORIGIN: str(sequence)})
        except TimeoutError:
            return  # disconnected just now: a gap in what people can read
