"""Broker and allocator in one: a small honest ledger, guarded writes, and NATS's bad weather; outlives the agent."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from factories.words import booking_of

from sluice.contracts import messages as msg
from sluice.contracts.bus import events as bus
from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, Incarnation, NodeName, OperationId
from sluice.runtime.bus import Answer, Reading

INCARNATION = Incarnation("1")
HISTORY_MAX = 64
"""Entries that bad weather may bring back."""


@dataclass(slots=True)
class Held:
    """One allocation in the ledger, from its grant to the moment when its entry is closed and forgotten."""

    booking: msg.Booking
    revision: int = 1
    revoked: bool = False
    closed: bool = False
    word: Any = None
    """The last the agent said of it."""

    @property
    def allocation(self) -> AllocationId:
        return self.booking.allocation

    @property
    def said(self) -> str:
        return type(self.word).__name__ if self.word is not None else ""

    @property
    def is_gone(self) -> bool:
        return isinstance(self.word, msg.SliceGone)

    @property
    def is_ready(self) -> bool:
        """Whether it is there, as its standing order wants it."""
        return isinstance(self.word, msg.SliceReady) and self.word.revision == self.revision


@dataclass(slots=True)
class Broker:
    """The streams of one node, and all allocations on it."""

    node: NodeName
    dice: Random
    weather: float = 0.0
    """How likely something goes wrong with each delivery, 0 to 1."""
    held: dict[AllocationId, Held] = field(default_factory=dict)
    weathered: int = 0
    """Times the weather was bad."""
    _book: dict[str, bus.Entry] = field(default_factory=dict)
    _state: dict[str, bus.Entry] = field(default_factory=dict)
    _past: list[bus.Entry] = field(default_factory=list)
    _sequence: int = 100
    _named: int = 0

    # -- the allocator's side: each returns what its reader will read ----------------------------------------------

    def grant(
        self, devices: tuple[msg.DeviceGrant, ...], *, owner: str, namespace: str = "team", after: tuple[str, ...] = ()
    ) -> tuple[Held, list[Reading]]:
        self._named += 1
        pod = {"owner": owner, "name": f"pod-{self._named}", "namespace": namespace, "source": "soak"}
        booking = booking_of(f"a{self._named}", self.node, devices, request=f"r{self._named}", **pod)
        held = self.held[booking.allocation] = Held(booking)
        waits = tuple(AllocationId(other) for other in after)
        return held, self._order(held, msg.Grant(revision=1, incarnation=INCARNATION, booking=booking, after=waits))

    def revoke(self, held: Held) -> list[Reading]:
        held.revision += 1
        held.revoked = True
        order = msg.Revoke(revision=held.revision, incarnation=INCARNATION, booking=held.booking, cause="pod gone")
        return self._order(held, order)

    def close(self, held: Held) -> list[Reading]:
        """It is gone: no reader waits for its messages."""
        held.closed = True
        about = {"allocation": held.allocation, "request": held.booking.request, "revision": held.revision}
        return self._order(held, msg.Closed(**about, node=self.node, cause="pod gone"))

    def forget(self, held: Held) -> None:
        del self.held[held.allocation]
        self._book.pop(subjects.ledger(self.node, held.allocation).subject, None)
        self._state.pop(subjects.slice_(self.node, held.allocation).subject, None)

    def _order(self, held: Held, message: msg.Grant | msg.Revoke | msg.Closed) -> list[Reading]:
        before = self._book.get(subjects.ledger(self.node, held.allocation).subject)
        entry = self._put(subjects.ledger(self.node, held.allocation).subject, message)
        batch: list[Reading] = [bus.Observed(bus.Stream.BOOK, entry)]
        if self._strikes():  # it comes twice, and an older one of the same subject after it
            batch += [bus.Observed(bus.Stream.BOOK, entry)]
            batch += [bus.Observed(bus.Stream.BOOK, before)] if before is not None else []
        if self._past and self._strikes():  # something that this reader was sent long ago comes again
            at = self.dice.randrange(len(batch) + 1)
            batch.insert(at, bus.Observed(bus.Stream.BOOK, self.dice.choice(self._past)))
        self._past = [*self._past[1 - HISTORY_MAX :], entry]
        if self._strikes():  # the durable starts over
            batch += self.reading()
        return batch

    def _put(self, subject: str, message: msg.AnyMessage) -> bus.Entry:
        self._sequence += 1
        entry = bus.Entry(subject, self._sequence, OperationId(f"soak-{self._sequence}"), message)
        self._book[subject] = entry
        return entry

    def _strikes(self) -> bool:
        bad = self.dice.random() < self.weather
        self.weathered += bad
        return bad

    # -- the bus's side -------------------------------------------------------------------------------------------

    def reading(self) -> list[Reading]:
        """The whole ledger as a reader gets it that begins now. What was on its way to an earlier one is lost."""
        self._past = []
        entries = sorted(self._book.values(), key=lambda entry: entry.sequence)
        observed = [bus.Observed(bus.Stream.BOOK, entry) for entry in entries]
        return [bus.ReadingStarted(bus.Stream.BOOK, INCARNATION), *observed, bus.ReadingCaughtUp(bus.Stream.BOOK)]

    def last(self, subject: str) -> bus.Entry | None:
        return self._state.get(subject)

    def write(self, write: bus.Write) -> tuple[Answer, list[Reading]]:
        """A guarded write of the agent's: the answer, and what its reader will read because of it."""
        current = self._state.get(write.subject)
        sequence = current.sequence if current is not None else 0
        if write.guard != write.subject:
            raise AssertionError(f"{write.subject} is written under the guard {write.guard}")
        if write.expected != sequence:
            return bus.WriteRefused(write.operation, sequence), []
        self._sequence += 1
        self._state[write.subject] = bus.Entry(write.subject, self._sequence, write.operation, write.message)
        heard = self._hear(write.message)
        if self._strikes():
            return bus.WriteUnknown(write.operation), heard
        return bus.WriteAccepted(write.operation, self._sequence), heard

    def _hear(self, message: msg.AnyMessage) -> list[Reading]:
        """What the allocator does about a message: a run that it does not know is opened."""
        if isinstance(message, msg.NodeChanged):
            address = subjects.head(self.node).subject
            head = self._book.get(address)
            if head is None or getattr(head.message, "agent_run", "") != message.agent_run:
                run = {"boot_id": message.boot_id, "agent_run": message.agent_run}
                opened = msg.NodeOpened(node=self.node, incarnation=INCARNATION, **run)
                return [bus.Observed(bus.Stream.BOOK, self._put(address, opened))]
            return []
        allocation = getattr(message, "allocation", None)
        if allocation in self.held:
            self.held[allocation].word = message
        return []
