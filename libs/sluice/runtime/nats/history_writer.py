"""
Copies accepted writes to HISTORY, for people. Best effort: a writer that dies first leaves a gap, nothing worse.

The server's RePublish keeps the guard headers, and HISTORY would refuse all but the first message of each subject.
Nothing ever waits for, or is decided from, what is recorded here.
"""

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass

from sluice.contracts.bus.events import Entry, Write
from sluice.contracts.bus.streams import UNRECORDED_KINDS
from sluice.contracts.bus.subjects import HISTORY_PREFIX
from sluice.contracts.ids import OperationId
from sluice.runtime.nats.connection import Connection

ORIGIN = "Sluice-Sequence"
"""The header with the sequence of the recorded message."""
UNANSWERED_MAX = 1_000
"""Writes that are remembered until they are answered, or observed without an answer; and copies that wait."""


@dataclass(slots=True)
class _Unanswered:
    """A write whose answer is awaited or was lost, and the sequence at which it was observed meanwhile."""

    data: bytes
    headers: dict[str, str]
    lost: bool = False
    observed: int | None = None


class HistoryWriter:
    """
    Writes of one connection that go to HISTORY, each once.

    A write is known from before it is sent: a reader may observe it before its answer comes, or before the answer is
    given up. A copy that cannot be sent goes before the next one.
    """

    def __init__(self, connection: Connection) -> None:
        """Start with nothing to record."""
        self._connection = connection
        self._unanswered: OrderedDict[OperationId, _Unanswered] = OrderedDict()
        self._unsent: deque[tuple[str, bytes, dict[str, str]]] = deque(maxlen=UNANSWERED_MAX)
        self._tasks: set[asyncio.Task[None]] = set()

    def sent(self, write: Write, data: bytes, headers: dict[str, str]) -> None:
        """A write is about to be sent, perhaps again."""
        mine = self._unanswered.setdefault(write.operation, _Unanswered(data, headers))
        mine.lost = False
        if len(self._unanswered) > UNANSWERED_MAX:
            self._unanswered.popitem(last=False)

    async def landed(self, write: Write, sequence: int, data: bytes, headers: dict[str, str]) -> None:
        """A write was accepted."""
        self._unanswered.pop(write.operation, None)
        await self._record(write.subject, sequence, data, headers)

    def refused(self, write: Write) -> None:
        """A write was refused: perhaps because an earlier attempt of it, whose answer was lost, had landed."""
        if write.attempt == 1:
            self._unanswered.pop(write.operation, None)
        else:
            self.lost(write)

    def lost(self, write: Write) -> None:
        """A write got no answer: it is recorded once observed."""
        mine = self._unanswered.get(write.operation)
        if mine is not None:
            mine.lost = True
            if mine.observed is not None:
                self._record_soon(write.operation, write.subject, mine.observed, mine)

    def seen(self, entry: Entry) -> None:
        """An entry was observed: perhaps an unanswered write of ours."""
        mine = self._unanswered.get(entry.operation) if self._unanswered else None
        if mine is not None:
            mine.observed = entry.sequence
            if mine.lost:
                self._record_soon(entry.operation, entry.subject, entry.sequence, mine)

    def _record_soon(self, operation: OperationId, subject: str, sequence: int, mine: _Unanswered) -> None:
        del self._unanswered[operation]
        task = asyncio.get_running_loop().create_task(self._record(subject, sequence, mine.data, mine.headers))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Stop recording."""
        for task in self._tasks:
            task.cancel()

    async def _record(self, subject: str, sequence: int, data: bytes, headers: dict[str, str]) -> None:
        if subject.split(".", 2)[1] in UNRECORDED_KINDS:
            return
        self._unsent.append((HISTORY_PREFIX + subject, data, {**headers, ORIGIN: str(sequence)}))
        while self._unsent:
            copy = self._unsent.popleft()
            try:
                await self._connection.publish(copy[0], copy[1], headers=copy[2])
            except TimeoutError:  # disconnected just now
                self._unsent.appendleft(copy)
                return
