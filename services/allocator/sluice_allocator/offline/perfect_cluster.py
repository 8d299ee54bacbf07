"""A perfect cluster around one allocator, as the protocol describes bus and agents: every write lands and every order
is carried out at once, while time stands still. Every decision is the core's."""

from collections import deque
from collections.abc import Callable, Iterable

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import (
    Entry,
    Observed,
    ReadingCaughtUp,
    ReadingStarted,
    Stream,
    Ticked,
    Write,
    WriteAccepted,
    stream_of,
)
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import AllocationId, Incarnation, OperationId
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.events import AgentEnsured, Continue, EnsureAgent, Event, LeaseChanged

INCARNATION = Incarnation("1")
OTHERS = OperationId("")  # the operation id of others' messages: the allocator only checks whether an id is its own
READ_AGAIN_AFTER = 20_000  # after so many expired values the allocator rereads the streams, to forget them

Hear = Callable[[msg.AnyMessage], None]  # receives every message that the allocator writes


class PerfectCluster:
    """The last values, the events queued for the allocator, and the agents' part."""

    def __init__(self, allocator: Allocator, hear: Hear) -> None:
        self._allocator, self._hear = allocator, hear
        self._values: dict[str, Entry] = {}
        self._events: deque[Event] = deque()
        self._sequences = dict.fromkeys(Stream, 0)
        self._ran_out = 0
        self._there: dict[AllocationId, None] = {}  # slices that are booked and not gone
        self._promised: dict[
            AllocationId, list[msg.Grant]
        ] = {}  # grants that wait for others, listed under one of those
        self._free: deque[msg.Grant] = deque()  # grants whose predecessors are gone; made once that is published
        self.now = 0.0

    def start(self, nodes: Iterable[tuple[msg.NodeSnapshot, msg.HostFacts]]) -> None:
        """Bring up the nodes, empty; the allocator becomes active and reads everything."""
        for snapshot, facts in nodes:
            for address, message in (
                (subjects.node(snapshot.node), _news(snapshot)),
                (subjects.inventory(snapshot.node), msg.NodeInventory(snapshot=snapshot, stale=False)),
                (subjects.host(snapshot.node), facts),
            ):
                self._put(address.subject, message)
        self._events.append(LeaseChanged(held=True))
        self._read_all()
        self.settle()

    def say(self, address: Address, message: msg.AnyMessage, *, last_word: bool = False) -> None:
        """Publish a value of a source or an agent; a `last_word` expires once it is read."""
        entry = self._put(address.subject, message)
        self._events.append(Observed(stream_of(address.kind), entry))
        if last_word:
            self._run_out(address.subject)

    def tick(self) -> None:
        self._events.append(Ticked())
        self.settle()

    def settle(self) -> None:
        while self._events or self._free or self._allocator.unfinished or self._is_littered():
            if not self._events and self._free:
                self._make(self._free.popleft())
                continue
            if not self._events and self._allocator.unfinished:
                self._events.append(Continue())
            elif not self._events:
                self._read_all()
            for instruction in self._allocator.handle(self._events.popleft(), self.now):
                if isinstance(instruction, EnsureAgent):
                    self._events.append(AgentEnsured(instruction.node))
                    continue
                assert isinstance(instruction, Write), instruction  # on a perfect bus nothing is reread
                self._land(instruction)

    def _put(self, subject: str, message: msg.AnyMessage, operation: OperationId = OTHERS) -> Entry:
        stream = stream_of(subjects.parse(subject).kind)
        self._sequences[stream] += 1
        entry = Entry(subject, self._sequences[stream], operation, message)
        self._values[subject] = entry
        return entry

    def _run_out(self, subject: str) -> None:
        del self._values[subject]
        self._ran_out += 1

    def _land(self, write: Write) -> None:
        landed = self._put(write.subject, write.message, write.operation)
        self._events.append(WriteAccepted(write.operation, landed.sequence))
        if write.ttl_s is not None:
            self._run_out(write.subject)
        self._agent_hears(write.message)
        self._hear(write.message)

    def _is_littered(self) -> bool:
        """Whether most of the allocator's remembered values have expired; rereading keeps its memory bounded."""
        return self._ran_out > max(READ_AGAIN_AFTER, 2 * len(self._values))

    def _read_all(self) -> None:
        self._ran_out = 0
        self._events += [ReadingStarted(stream, INCARNATION) for stream in (Stream.BOOK, Stream.STATE)]
        self._events += [Observed(stream_of(subjects.parse(s).kind), entry) for s, entry in self._values.items()]
        self._events += [ReadingCaughtUp(stream) for stream in (Stream.BOOK, Stream.STATE)]

    def _agent_hears(self, order: msg.AnyMessage) -> None:
        match order:
            case msg.Grant():
                self._there[order.booking.allocation] = None
                self._make(order)
            case msg.Revoke():
                booking = order.booking
                gone = msg.SliceGone(
                    allocation=booking.allocation, request=booking.request, revision=order.revision, cause=order.cause
                )
                self.say(subjects.slice_(booking.node, booking.allocation), gone)
                self._there.pop(booking.allocation, None)
                self._free += self._promised.pop(booking.allocation, ())
            case msg.Closed():
                last = msg.SliceGone(
                    allocation=order.allocation,
                    request=order.request,
                    revision=order.revision,
                    cause=order.cause,
                    closing=True,
                )
                self.say(subjects.slice_(order.node, order.allocation), last, last_word=True)

    def _make(self, grant: msg.Grant) -> None:
        """Publish that a slice is ready; or queue it under the first slice that has to go before."""
        booking = grant.booking
        if booking.allocation not in self._there:
            return  # revoked while it waited
        awaited = next((each for each in grant.after if each in self._there), None)
        if awaited is not None:
            self._promised.setdefault(awaited, []).append(grant)
            return
        ready = msg.SliceReady(
            allocation=booking.allocation,
            request=booking.request,
            revision=grant.revision,
            ticket="",
            devices=(),
            containers=(),
        )
        self.say(subjects.slice_(booking.node, booking.allocation), ready)


def _news(snapshot: msg.NodeSnapshot) -> msg.NodeChanged:
    return msg.NodeChanged(
        node=snapshot.node,
        endpoint="",
        boot_id=snapshot.boot_id,
        agent_run=snapshot.agent_run,
        generation=snapshot.generation,
        gpus=(),
    )
