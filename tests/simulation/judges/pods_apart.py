"""Pods that may not be beside each other, judged by what a process wrote and had read; shares no code."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING

from simulation.judges.books import Books
from simulation.plans.pods import Pod, Terms
from simulation.world.host import Host

from sluice.contracts import messages as msg
from sluice.contracts.bus.events import Observed, ReadingStarted, Stream, Write
from sluice.contracts.ids import operation_parts

if TYPE_CHECKING:
    from simulation.plans.plan import Plan

APART_SEEDS = 0.15
APART_PODS = 0.5
SAID = (
    Terms("web", apart_from="web"),
    Terms("web", apart_from="web"),
    Terms("db", apart_from="web"),
    Terms("web"),
    Terms("llm", spread=True),
    Terms("llm", spread=True),
    Terms(port=8000),
    Terms(port=8000),
)
"""One per host; one that keeps others out; one that only others keep out; spread over hosts; a port."""
TAKEN_IN_S = 2.0
"""So long after a process observed a node it counts for spreading: a core takes in a few nodes at a time."""

UNSENT_S = 2.0
"""So long a decided grant may wait for the answer to an earlier write of its node's ledger."""

UNSURE_S = 0.005
"""When a grant was decided that waited for such an answer is known to so much, by what was sent meanwhile."""


def with_apart(plan: "Plan", seeds: float = APART_SEEDS) -> "Plan":
    """In some seeds some pods say so: drawn apart, so that all else of a seed stays what it is without."""
    dice = Random(f"apart {plan.seed}")
    if dice.random() >= seeds:
        return plan
    pods = tuple(
        replace(life, pod=replace(life.pod, terms=dice.choice(SAID))) if dice.random() < APART_PODS else life
        for life in plan.pods
    )
    return replace(plan, pods=pods)


def clash(one: Pod, other: Pod) -> bool:
    """Whether two pods may not be on one host."""
    mine, theirs = one.terms, other.terms
    if mine.port and mine.port == theirs.port:
        return True
    if one.namespace != other.namespace:
        return False
    return bool(
        (mine.apart_from and mine.apart_from == theirs.app) or (theirs.apart_from and theirs.apart_from == mine.app)
    )


@dataclass(slots=True)
class Told:
    """What one incarnation of a process has observed since it began to read, and what it wanted to book."""

    state: str = ""
    requests: dict[str, msg.AllocationRequested] = field(default_factory=dict)
    """Those of this incarnation of STATE: a copy of an earlier one's is not read (P-063)."""
    ledger: dict[str, msg.Booking] = field(default_factory=dict)
    nodes: dict[str, float] = field(default_factory=dict)
    """Nodes with an inventory, and since when."""
    shut: dict[str, None] = field(default_factory=dict)
    """Nodes of which the API server says that they are cordoned, or not there."""
    sent: dict[str, msg.Booking] = field(default_factory=dict)
    heard_at: dict[str, float] = field(default_factory=dict)
    """Since when each request is known."""
    operations: dict[int, float] = field(default_factory=dict)
    """When each write was sent first: it was decided before any that has a later number."""


class ApartJudge:
    """Observes what allocators read and send."""

    def __init__(self, books: Books) -> None:
        """Start without messages."""
        self._books = books
        self._told: dict[str, Told] = {}

    def listener(self, host: Host) -> Callable[[object], None]:
        def hear(event: object) -> None:
            told = self._told.setdefault(host.run, Told())
            if isinstance(event, ReadingStarted):
                if event.stream is Stream.BOOK:
                    told.ledger.clear()
                else:
                    told.state = event.incarnation
                    told.requests.clear()
                    told.heard_at.clear()
                    told.nodes.clear()
                    told.shut.clear()
            elif isinstance(event, Observed):
                self._hear(told, event.entry.subject, event.entry.message)

        return hear

    def _hear(self, told: Told, subject: str, message: object) -> None:
        match message:
            case msg.AllocationRequested() if message.incarnation in {"", told.state}:
                told.requests[subject.rpartition(".")[2]] = message
                told.heard_at.setdefault(subject.rpartition(".")[2], self._books.clockwork.now)
            case msg.RequestWithdrawn():
                told.requests.pop(subject.rpartition(".")[2], None)
            case msg.Grant() | msg.Revoke():
                told.ledger[message.booking.allocation] = message.booking
            case msg.Closed():
                told.ledger.pop(message.allocation, None)
            case msg.NodeInventory(removed=True):
                told.nodes.pop(message.snapshot.node, None)
            case msg.NodeRemoved():
                told.nodes.pop(message.node, None)
            case msg.NodeInventory():
                told.nodes.setdefault(message.snapshot.node, self._books.clockwork.now)
            case msg.HostFacts(cordoned=True):
                told.shut[subject] = None
            case msg.HostFacts():
                told.shut.pop(subject, None)
            case _:
                pass

    def instructed(self, host: Host, instruction: object) -> None:
        """A core wants something: no new booking on a host with a pod that must stay apart."""
        if not isinstance(instruction, Write) or instruction.attempt > 1:
            return  # what is sent again was decided before
        told, grant = self._told.setdefault(host.run, Told()), instruction.message
        _, number = operation_parts(instruction.operation)
        told.operations[number] = self._books.clockwork.now
        if not isinstance(grant, msg.Grant) or grant.adopted or grant.revision > 1:
            return
        booking = grant.booking
        asked = told.requests.get(booking.request)
        pod = self._pod(asked.name) if asked is not None else None
        if pod is not None and pod.terms != Terms():
            self._check(host, told, grant, pod, number)
        told.sent[booking.allocation] = booking

    def _check(self, host: Host, told: Told, grant: msg.Grant, pod: Pod, number: int) -> None:
        booking, now = grant.booking, self._books.clockwork.now
        decided = min(at for later, at in told.operations.items() if later >= number)
        known_until = decided - UNSURE_S if decided < now else now
        there = [
            self._pod(told.requests[other.request].name)
            for other in self._known(host.run, told, booking.node)
            if told.heard_at.get(other.request, known_until) < known_until
            and self._stands(other)
            and other.request != booking.request
            and other.allocation not in grant.after
        ]
        known = [each for each in there if each is not None]
        beside = next((each for each in known if clash(pod, each)), None)
        if beside is not None:
            text = f"{host.name} books {booking.allocation} of {pod.name} on {booking.node}, beside {beside.name}"
            self._books.fail("apart", text)
        if pod.terms.spread and self._knows_all(told):
            mine = 1 + sum(_is_like(pod, each) for each in known)
            unsent = self._unsent(told, number)
            least = min(self._most(told, node, pod, unsent) for node in self._books.machines)
            if mine - least > 1:
                text = f"{host.name} books the {mine}th of {pod.terms.app} on {booking.node}, and some host has {least}"
                self._books.fail("apart", text)

    def _known(self, run: str, told: Told, node: str) -> Iterator[msg.Booking]:
        """What a process knows to be booked on a node: what it read, and what it wrote itself that has landed."""
        for allocation, entry in self._books.ledger.get(node, {}).items():
            if not isinstance(entry, msg.Closed) and (allocation in told.ledger or f"_{run}_" in allocation):
                yield entry.booking

    def _stands(self, booking: msg.Booking) -> bool:
        """Whether it is still asked for, and not gone: a process that has not observed its end may still count it."""
        return booking.request not in self._books.ended and booking.allocation not in self._books.gone

    def _knows_all(self, told: Told) -> bool:
        """Whether it has taken in all hosts there are: what it does not know is no domain."""
        since = [told.nodes.get(node) for node in self._books.machines]
        now = self._books.clockwork.now
        return not told.shut and all(at is not None and now - at > TAKEN_IN_S for at in since)

    def _unsent(self, told: Told, number: int) -> int:
        """How many writes were decided shortly before this one and are not sent: they wait for their node's ledger."""
        then = self._books.clockwork.now - UNSENT_S
        first = max((each for each, at in told.operations.items() if at < then), default=0) + 1
        return sum(each not in told.operations for each in range(first, number))

    def _most(self, told: Told, node: str, pod: Pod, unsent: int) -> int:
        """The most pods like this one that it may believe to be on a node: of its job, all are decided at once, and
        each of the `unsent` writes may be one's grant."""
        booked = {**told.ledger, **told.sent}
        booked |= {allocation: each.booking for allocation, each in self._open_entries(node)}
        names = [self._name(told, each.request) for each in booked.values() if each.node == node]
        placed = {each.request for each in booked.values()}
        names += self._to_be_sent(told, pod, placed)
        waiting = [asked.name for request, asked in told.requests.items() if request not in placed]
        others = self._like(pod, (each for each in waiting if each not in {pod.name, *names}))
        return self._like(pod, names) + min(unsent, others)

    def _like(self, pod: Pod, names: Iterable[str]) -> int:
        return sum(each is not None and _is_like(pod, each) for each in map(self._pod, names))

    def _to_be_sent(self, told: Told, pod: Pod, booked: set[str]) -> list[str]:
        """The other pods of its job that have no booking yet: theirs may follow, and be on any node."""
        groups = {asked.group.name for asked in told.requests.values() if asked.name == pod.name and asked.group}
        others = (asked for request, asked in told.requests.items() if request not in booked)
        return [one.name for one in others if one.name != pod.name and one.group and one.group.name in groups]

    def _open_entries(self, node: str) -> Iterator[tuple[str, msg.Grant | msg.Revoke]]:
        for allocation, entry in self._books.ledger.get(node, {}).items():
            if not isinstance(entry, msg.Closed):
                yield allocation, entry

    def _name(self, told: Told, request: str) -> str:
        asked = told.requests.get(request) or self._books.requests.get(request)
        return asked.name if asked is not None else ""

    def _pod(self, name: str) -> Pod | None:
        """A pod as it was written last; what it says of others is the same in all its texts."""
        return next(reversed(self._books.folder.written.get(name, {})), None)

    # -- for the goals ------------------------------------------------------------------------------------------------

    def lets(self, pod: Pod, node: str) -> bool:
        """Whether the pods that are booked now would let one more be on a node."""
        on = {each: self._others(pod, each) for each in self._books.machines}
        if any(clash(pod, other) for other in on[node]):
            return False
        counts = {each: sum(_is_like(pod, other) for other in others) for each, others in on.items()}
        return not pod.terms.spread or counts[node] + 1 - min(counts.values()) <= 1

    def _others(self, pod: Pod, node: str) -> list[Pod]:
        found = []
        for allocation, entry in self._open_entries(node):
            asked = self._books.requests.get(entry.booking.request)
            other = self._pod(asked.name) if asked is not None else None
            if other is not None and other.name != pod.name and allocation not in self._books.gone:
                found.append(other)
        return found


def _is_like(pod: Pod, other: Pod) -> bool:
    return (pod.namespace, pod.terms.app) == (other.namespace, other.terms.app)
