"""What one core wants on the bus, under which guards, and in which order: everything but the sending.

`keep` makes a message the last value of a subject, again whenever the value differs; `commit` writes once, if nothing
under the guard has changed since the core read it, and ends in exactly one `Settled`."""

from collections import OrderedDict
from typing import Literal

from sluice.contracts.bus.events import Entry, Stream, stream_of
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import OperationId, RunId, operation_id
from sluice.contracts.messages import AnyMessage
from sluice.contracts.outbox.bus_view import BusView
from sluice.contracts.outbox.guard_queue import EXPLAINED_BY_READING, GuardQueue, KeptValue, QueuedWrite


class Intents:
    """What is wanted, and which part of it waits to be sent."""

    def __init__(self, run: RunId, reading: Literal["stream", "last"]) -> None:
        self._run = run
        self._reading = reading
        self._number = 0
        self._queues: dict[str, GuardQueue] = {}
        self._kept: dict[str, KeptValue] = {}
        self._committing: dict[str, int] = {}
        self._ready: OrderedDict[str, None] = OrderedDict()
        """Guards with something to send now; taking the first key of a plain dict walks over all that were removed."""
        self._view = BusView()
        self._landed: dict[str, OperationId] = {}
        """For direct readers: the own write that landed last at each subject."""

    def commit(
        self, address: Address, message: AnyMessage, *, request: str = "", ttl_s: int | None = None
    ) -> OperationId:
        """Write `message` once, guarded by what is known now or when its turn comes. Ends in one `Settled`."""
        in_flight = self._new_write(address, message, request, ttl_s, "commit")
        self._queue(address).commits[in_flight.operation] = in_flight
        self._committing[address.subject] = self._committing.get(address.subject, 0) + 1
        self._ready[address.guard] = None
        return in_flight.operation

    def cancel(self, address: Address, operation: OperationId) -> bool:
        """Cancel a commit that was not sent. False when it is too late: then its `Settled` will come."""
        queue = self._queues.get(address.guard)
        if queue is None or queue.commits.pop(operation, None) is None:
            return False
        self._end_committing(address.subject)
        if self._reading == "stream" and queue.idle:
            del self._queues[queue.guard]
        return True

    def keep(self, address: Address, message: AnyMessage, *, request: str = "", ttl_s: int | None = None) -> None:
        """Keep `message` as the last value. With a TTL it is written once and then forgotten."""
        known = self._kept.get(address.subject)
        if known is not None and known.message == message and (known.request, known.ttl_s) == (request, ttl_s):
            return
        kept = self._kept[address.subject] = KeptValue(address, message, request, ttl_s)
        self._mark(kept)

    def forget(self, address: Address) -> None:
        """Stop keeping a subject. Its value on the bus stays."""
        self._kept.pop(address.subject, None)
        queue = self._queues.get(address.guard)
        if queue is not None:
            queue.dirty.pop(address.subject, None)

    @property
    def keeps_anything(self) -> bool:
        return bool(self._kept)

    def kept(self, address: Address) -> AnyMessage | None:
        kept = self._kept.get(address.subject)
        return kept.message if kept is not None else None

    def busy(self, address: Address) -> bool:
        return address.subject in self._committing

    def current(self, address: Address) -> Entry | None:
        return self._view.current[stream_of(address.kind)].get(address.subject)

    def knows(self, stream: Stream, subject: str) -> bool:
        return subject in self._view.current[stream]

    def recheck(self) -> None:
        """Compare everything kept with the bus again (direct reading: after every reconnect)."""
        for kept in self._kept.values():
            queue = self._queue(kept.address)
            queue.applied = None
            queue.reading = False
            if queue.in_flight is not None and queue.in_flight.refused_at is not None:
                queue.in_flight.refused_at = EXPLAINED_BY_READING  # the refusing entry may be gone from the stream
            self._view.current[queue.stream].pop(kept.address.subject, None)
            self._mark(kept)

    def _queue(self, address: Address) -> GuardQueue:
        queue = self._queues.get(address.guard)
        if queue is None:
            stream = stream_of(address.kind)
            queue = GuardQueue(address.guard, stream, self._guard_of(stream, address.guard))
            self._queues[address.guard] = queue
        return queue

    def _guard_of(self, stream: Stream, guard: str) -> int | None:
        return self._view.guard(stream, guard) if self._reading == "stream" else None

    def _new_write(
        self, address: Address, message: AnyMessage, request: str, ttl_s: int | None, kind: Literal["commit", "keep"]
    ) -> QueuedWrite:
        self._number += 1
        return QueuedWrite(operation_id(self._run, self._number), address, message, request, ttl_s, kind)

    def _mark(self, kept: KeptValue) -> None:
        self._queue(kept.address).dirty[kept.address.subject] = None
        self._ready[kept.address.guard] = None

    def _next_dirty(self, queue: GuardQueue) -> QueuedWrite | None:
        while queue.dirty:
            subject = next(iter(queue.dirty))
            del queue.dirty[subject]
            kept = self._kept.get(subject)
            current = self._view.current[queue.stream].get(subject)
            if kept is None:
                continue
            if current is None or current.message != kept.message or not self._is_last(kept, current):
                return self._new_write(kept.address, kept.message, kept.request, kept.ttl_s, "keep")
            if kept.ttl_s is not None:
                del self._kept[subject]  # a closing message has landed
        return None

    def _is_last(self, kept: KeptValue, current: Entry) -> bool:
        """Whether a value found is the last: a direct read proves nothing (servers lag), an own write does."""
        is_own = self._landed.get(kept.address.subject) == current.operation
        return self._reading == "stream" or kept.ttl_s is not None or is_own

    def _end_committing(self, subject: str) -> None:
        self._committing[subject] -= 1
        if not self._committing[subject]:
            del self._committing[subject]

    def _drop_if_idle(self, queue: GuardQueue) -> None:
        """Drop an idle queue: memory grows with work only. A direct reader forgets guards it does not keep."""
        if not queue.idle or (self._reading == "last" and queue.guard in self._kept):
            return
        if self._reading == "last":
            self._view.current[queue.stream].pop(queue.guard, None)
            self._landed.pop(queue.guard, None)
        self._queues.pop(queue.guard, None)
