"""
Copies accepted writes to HISTORY, for people. Best effort: a writer that dies first leaves a gap.

Agents have no right to: allocators copy what they read of them, within a budget for each node. The server's RePublish
keeps the guard headers, and HISTORY would refuse all but the first message of each subject.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from sluice.contracts.bus.events import Entry, Write
from sluice.contracts.bus.streams import AGENTS_MESSAGES, UNRECORDED_KINDS
from sluice.contracts.bus.subjects import HISTORY_PREFIX
from sluice.contracts.ids import OperationId
from sluice.runtime.bounded_dict import BoundedDict
from sluice.runtime.nats.client import Msg
from sluice.runtime.nats.connection import Connection
from sluice.runtime.nats.wire_format import stored_ns_of

ORIGIN = "Sluice-Sequence"
"""The header with the sequence of the recorded message."""
UNANSWERED_MAX = 1_000
"""Writes that are remembered until they are answered, or observed without an answer; and copies that wait."""

NEW_S = 60.0
"""What agents wrote longer ago than this, by clocks that may differ, was copied before this process started."""
BUDGETED_KINDS = frozenset({"slice", "node", "inventory"})
"""Kinds by node whose content an agent decides."""
BUDGET_BYTES = 8 * 1024**2
BUDGET_BYTES_PER_S = 1_000
"""What may be copied about one node: at once, and from then on, 0.6 GB in the week that HISTORY keeps."""
BUDGETS_MAX = 16_384
"""Nodes with a budget of their own; beyond that those seen longest ago start afresh."""


class Budget:
    """How many bytes may be copied about each node."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left: BoundedDict[str, tuple[float, float]] = BoundedDict(BUDGETS_MAX)

    def takes(self, node: str, size_bytes: int) -> bool:
        """Whether so much may be copied about a node now; it counts then."""
        now = self._clock()
        left, at = self._left.get(node, (BUDGET_BYTES, now))
        left = min(BUDGET_BYTES, left + (now - at) * BUDGET_BYTES_PER_S)
        fits = size_bytes <= left
        self._left.put(node, (left - size_bytes if fits else left, now))
        return fits


@dataclass(slots=True)
class _Unanswered:
    data: bytes
    headers: dict[str, str]
    lost: bool = False
    observed: int | None = None


class HistoryWriter:
    """Writes of one connection that go to HISTORY, each once. Known before they are sent: a reader may come first."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._unanswered: OrderedDict[OperationId, _Unanswered] = OrderedDict()
        self._unsent: deque[tuple[str, bytes, dict[str, str]]] = deque(maxlen=UNANSWERED_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._copied = 0
        """The latest of agents' messages that was copied, or was there at the start."""
        self._budget = Budget()

    def sent(self, write: Write, data: bytes, headers: dict[str, str]) -> None:
        if isinstance(write.message, AGENTS_MESSAGES):
            return
        mine = self._unanswered.setdefault(write.operation, _Unanswered(data, headers))
        mine.lost = False
        if len(self._unanswered) > UNANSWERED_MAX:
            self._unanswered.popitem(last=False)

    async def landed(self, write: Write, sequence: int, data: bytes, headers: dict[str, str]) -> None:
        self._unanswered.pop(write.operation, None)
        if isinstance(write.message, AGENTS_MESSAGES):
            return
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
        mine = self._unanswered.get(entry.operation) if self._unanswered else None
        if mine is not None:
            mine.observed = entry.sequence
            if mine.lost:
                self._record_soon(entry.operation, entry.subject, entry.sequence, mine)

    def read_of_agent(self, entry: Entry, message: Msg) -> None:
        """Copy an entry that an agent wrote since this start, once; the server drops copies of other allocators."""
        stored_ns = stored_ns_of(message.reply)
        if not stored_ns or entry.sequence <= self._copied or not isinstance(entry.message, AGENTS_MESSAGES):
            return
        self._copied = entry.sequence
        if time.time_ns() - stored_ns > NEW_S * 1e9:
            return
        headers = {name: value for name, value in (message.headers or {}).items() if not name.startswith("Nats-")}
        headers["Nats-Msg-Id"] = f"STATE.{entry.sequence}"
        self._soon(entry.subject, entry.sequence, message.data, headers)

    def _record_soon(self, operation: OperationId, subject: str, sequence: int, mine: _Unanswered) -> None:
        del self._unanswered[operation]
        self._soon(subject, sequence, mine.data, mine.headers)

    def _soon(self, subject: str, sequence: int, data: bytes, headers: dict[str, str]) -> None:
        task = asyncio.get_running_loop().create_task(self._record(subject, sequence, data, headers))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _record(self, subject: str, sequence: int, data: bytes, headers: dict[str, str]) -> None:
        kind, of = subject.split(".", 3)[1:3]
        if kind in UNRECORDED_KINDS or (kind in BUDGETED_KINDS and not self._budget.takes(of, len(data))):
            return
        self._unsent.append((HISTORY_PREFIX + subject, data, {**headers, ORIGIN: str(sequence)}))
        while self._unsent:
            copy = self._unsent.popleft()
            try:
                await self._connection.publish(copy[0], copy[1], headers=copy[2])
            except TimeoutError:  # disconnected just now
                self._unsent.appendleft(copy)
                return
