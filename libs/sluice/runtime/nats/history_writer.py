"""
Copies accepted writes to HISTORY, for people. Best effort: a writer that dies first leaves a gap, nothing worse.

The server's RePublish keeps the guard headers, and HISTORY would refuse all but the first message of each subject.
Nothing ever waits for, or is decided from, what is recorded here.
"""

import asyncio
from collections import OrderedDict

from sluice.contracts.bus.events import Entry, Write
from sluice.contracts.bus.streams import UNRECORDED_KINDS
from sluice.contracts.bus.subjects import HISTORY_PREFIX
from sluice.contracts.ids import OperationId
from sluice.runtime.nats.connection import Connection

ORIGIN = "Sluice-Sequence"
"""The header with the sequence of the recorded message."""
UNSETTLED_MAX = 1_000
"""Unanswered writes that are remembered until they are seen to have landed."""


class HistoryWriter:
    """Writes of one connection that go to HISTORY."""

    def __init__(self, connection: Connection) -> None:
        """Start with nothing to record."""
        self._connection = connection
        self._unsettled: OrderedDict[OperationId, tuple[bytes, dict[str, str]]] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    async def landed(self, write: Write, sequence: int, data: bytes, headers: dict[str, str]) -> None:
        """A write was accepted."""
        self._unsettled.pop(write.operation, None)
        await self._record(write.subject, sequence, data, headers)

    def unsettled(self, write: Write, data: bytes, headers: dict[str, str]) -> None:
        """A write got no answer: it is recorded once observed."""
        self._unsettled[write.operation] = (data, headers)
        if len(self._unsettled) > UNSETTLED_MAX:
            self._unsettled.popitem(last=False)

    def seen(self, entry: Entry) -> None:
        """An entry was observed: perhaps an unanswered write of ours."""
        found = self._unsettled.pop(entry.operation, None) if self._unsettled else None
        if found is not None:
            task = asyncio.get_running_loop().create_task(self._record(entry.subject, entry.sequence, *found))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Stop recording."""
        for task in self._tasks:
            task.cancel()

    async def _record(self, subject: str, sequence: int, data: bytes, headers: dict[str, str]) -> None:
        if subject.split(".", 2)[1] in UNRECORDED_KINDS:
            return
        try:
            await self._connection.publish(HISTORY_PREFIX + subject, data, headers={**headers, ORIGIN: str(sequence)})
        except TimeoutError:
            return  # disconnected just now: a gap in what people can read
