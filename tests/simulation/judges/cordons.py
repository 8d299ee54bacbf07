"""Cordoned nodes and GPUs: when an operator cordons, and what must follow.

A process that read a cordon books nothing new there, by any way: grant, promise, preemption, move or job. A process
that has not read it yet may (no guard of a ledger covers the message, and of two allocators one reads later): its
grants stand, and in a drain their pods are evicted like all others. So a write is judged by what its process had read
at its first attempt.

Evicted pods of a drain are bound there. When all is calm no pod is left there, no order stands without a reason, and no
promise names a cordoned place. That no slice is revoked for it is "undisturbed".
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from simulation.judges.books import Books
from simulation.world.host import Host

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Observed, ReadingStarted, Stream, Write
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import GpuUuid, NodeName

if TYPE_CHECKING:
    from simulation.plans.plan import Plan

CORDONING_SEEDS = 0.3
"""In so many seeds an operator cordons, drains and uncordons."""
BEGIN_UNTIL_S = 28.0
SAID_UNTIL_S = 38.0
"""What an operator has said by then stands until the end of the seed."""
ORDER_IS_LATE_S = 25.0
"""A process may have been paused for so long between the end of a drain and its eviction order."""


@dataclass(frozen=True, slots=True)
class CordonSaid:
    """An operator says what of a node is not to be used; no GPUs are all of them, and `lifted` is an uncordon."""

    at: float
    node: str
    gpus: tuple[str, ...] = ()
    drain: bool = False
    lifted: bool = False

    @property
    def address(self) -> Address:
        return subjects.cordon(NodeName(self.node))

    @property
    def message(self) -> msg.Cordoned | msg.Uncordoned:
        if self.lifted:
            return msg.Uncordoned(node=NodeName(self.node))
        gpus = tuple(GpuUuid(gpu) for gpu in self.gpus)
        return msg.Cordoned(node=NodeName(self.node), gpus=gpus, why="maintenance", drain=self.drain)


def with_cordons(plan: "Plan", seeds: float = CORDONING_SEEDS) -> "Plan":
    """In some seeds nodes are taken out of use: drawn apart, so that all else of a seed stays what it is without."""
    dice = Random(f"cordons {plan.seed}")
    if dice.random() >= seeds:
        return plan
    chosen = dice.sample(plan.nodes, min(dice.choice((1, 1, 2, 3)), len(plan.nodes)))
    said = [each for node, gpus in chosen for each in _episode(node, len(gpus), dice)]
    return replace(plan, cordons=tuple(sorted(said, key=lambda each: each.at)))


def _episode(node: str, gpus: int, dice: Random) -> Iterator[CordonSaid]:
    """What is said of one node: a cordon, a drain, or first the one and then the other; and mostly its end."""
    at = 0.0 if dice.random() < 0.15 else dice.uniform(2.0, BEGIN_UNTIL_S)
    short = node.split(".", maxsplit=1)[0]
    some = (f"GPU-{short}-{dice.randrange(gpus)}",) if dice.random() < 0.4 else ()
    drains = dice.random() < 0.5
    yield CordonSaid(at, node, some, drains)
    if not drains and dice.random() < 0.5:
        at += dice.uniform(0.05, 6.0)
        yield CordonSaid(at, node, some, drain=True)
    at += dice.expovariate(1 / 6)
    if dice.random() < 0.6 and at < SAID_UNTIL_S:
        yield CordonSaid(at, node, lifted=True)


def names(word: object, booking: msg.Booking) -> bool:
    """Whether a message takes the place of a booking out of use."""
    if not isinstance(word, msg.Cordoned) or word.node != booking.node:
        return False
    return not word.gpus or any(device.gpu in word.gpus for device in booking.devices)


class CordonJudge:
    """Observes what lands, and what allocators read and send."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._words: dict[str, msg.Cordoned | msg.Uncordoned] = {}
        """The last message of each node."""
        self._drained: dict[str, list[tuple[msg.Cordoned, float]]] = {}
        """Of each node the drains that are over, and since when."""
        self._bound: dict[str, dict[str, None]] = {}
        """Of each request, to what it was ever bound."""
        self._told: dict[str, dict[str, msg.Cordoned | msg.Uncordoned]] = {}
        """Of each incarnation of an allocator, the newest message of each node that it has observed."""
        self._newest: dict[tuple[str, str], int] = {}
        """How new that is: a server that lags may show an older one again."""
        self._incarnations: dict[str, str] = {}
        self.orders = 0
        """Evictions ordered of pods on a drained place."""
        books.is_drained = self.was_drained

    # -- what happens -------------------------------------------------------------------------------------------------

    def landed(self, write: Write, _sequence: int) -> None:
        """A value is the last one of its subject now."""
        match write.message:
            case msg.Cordoned() | msg.Uncordoned() as word:
                self._end(word.node)
                self._words[word.node] = word
            case msg.Bound() as bound:
                self._bound.setdefault(bound.request, {})[bound.allocation] = None
            case msg.EvictionOrdered() as ordered:
                self.orders += self.was_drained(ordered.request)
            case _:
                pass

    def wiped(self) -> None:
        """A message is gone: a process that read it before may still act on it."""
        for node in list(self._words):
            self._end(node)

    def _end(self, node: str) -> None:
        before = self._words.pop(node, None)
        if isinstance(before, msg.Cordoned) and before.drain:
            self._drained.setdefault(node, []).append((before, self._books.clockwork.now))

    def was_drained(self, request: str) -> bool:
        """Whether a request is or was bound to a place that is drained, or was a moment ago."""
        return any(
            names(word, self._books.bookings[allocation])
            for allocation in self._bound.get(request, ())
            for word in self._drains_of(self._books.bookings[allocation].node)
        )

    def _drains_of(self, node: str) -> Iterator[msg.Cordoned]:
        word = self._words.get(node)
        if isinstance(word, msg.Cordoned) and word.drain:
            yield word
        for past, until in self._drained.get(node, ()):
            if self._books.clockwork.now - until <= ORDER_IS_LATE_S:
                yield past

    # -- what each process knows --------------------------------------------------------------------------------------

    def listener(self, host: Host) -> Callable[[object], None]:
        def hear(event: object) -> None:
            if isinstance(event, ReadingStarted) and event.stream is Stream.BOOK:
                if self._incarnations.get(host.run) != event.incarnation:
                    self._told[host.run] = {}  # of another incarnation of the broker: it knows nothing of this one
                    self._newest = {key: at for key, at in self._newest.items() if key[0] != host.run}
                self._incarnations[host.run] = event.incarnation
            elif isinstance(event, Observed) and isinstance(event.entry.message, (msg.Cordoned, msg.Uncordoned)):
                word, key = event.entry.message, (host.run, event.entry.message.node)
                if event.entry.sequence >= self._newest.get(key, 0):
                    self._newest[key] = event.entry.sequence
                    self._told.setdefault(host.run, {})[word.node] = word

        return hear

    def instructed(self, host: Host, instruction: object) -> None:
        """A core wants something: no new booking on what it knows to be cordoned."""
        if not isinstance(instruction, Write) or instruction.attempt > 1:
            return  # what is sent again was decided before, and its first attempt may land any time (W3)
        grant = instruction.message
        if not isinstance(grant, msg.Grant) or grant.adopted or grant.revision > 1:
            return  # of one that is changed nothing is put anywhere
        word = self._told.get(host.run, {}).get(grant.booking.node)
        if names(word, grant.booking):
            self._books.fail("cordoned", f"{host.name} books {grant.booking.allocation}, and had observed: {word}")

    # -- for the goals ------------------------------------------------------------------------------------------------

    def may_be_used(self, node: str, gpu: str) -> bool:
        """Whether an operator lets anything new come to a GPU."""
        word = self._words.get(node)
        return not isinstance(word, msg.Cordoned) or bool(word.gpus and gpu not in word.gpus)

    def unfinished(self, values: dict[str, msg.AnyMessage | None]) -> list[str]:
        """What is not yet as the operator wants it: pods that are still there, and pods evicted for nothing."""
        asked = {
            subject.rpartition(".")[2]: message
            for subject, message in values.items()
            if isinstance(message, msg.AllocationRequested)
        }
        missing = []
        for subject, message in values.items():
            request = subject.rpartition(".")[2]
            if isinstance(message, msg.Bound) and request in asked and self._drains(message):
                missing.append(f"{asked[request].name} is still on {message.node}, which is drained")
            elif isinstance(message, msg.EvictionOrdered) and not self._has_reason(request, values):
                missing.append(f"{request} is to be evicted, and for nothing: {message.cause}")
        return missing + self._promised()

    def _drains(self, bound: msg.Bound) -> bool:
        word = self._words.get(bound.node)
        return isinstance(word, msg.Cordoned) and word.drain and names(word, self._books.bookings[bound.allocation])

    def _has_reason(self, request: str, values: dict[str, msg.AnyMessage | None]) -> bool:
        """Whether an order still has a reason: a drain, a request to come in its stead, or a slice being taken back."""
        if self._books.loses_what_it_holds(request):
            return True
        bound = values.get(f"sluice.binding.{request}")
        if isinstance(bound, msg.Bound) and self._drains(bound):
            return True
        return any(
            isinstance(entry, msg.Grant) and entry.evict and any(self._is_of(each, request) for each in entry.after)
            for book in self._books.ledger.values()
            for entry in book.values()
        )

    def _is_of(self, allocation: str, request: str) -> bool:
        booking = self._books.bookings.get(allocation)
        return booking is not None and booking.request == request

    def _promised(self) -> list[str]:
        return [
            f"{allocation} is promised {word.node}, which is cordoned"
            for word in self._words.values()
            for allocation, entry in self._books.promises(word.node).items()
            if isinstance(entry, msg.Grant) and names(word, entry.booking)
        ]
