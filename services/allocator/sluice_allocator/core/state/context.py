"""The context of all parts of the core: facts, cluster, outbox, queue, and unsettled writes. Each feature extends it by
its own state and its part in a grant (`QuotaContext` ...). `changed_*`: to be looked at before `handle` returns."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from sluice.contracts.bus import subjects
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import AllocationId, Incarnation, NodeName, OperationId, RequestId, RunId, allocation_id
from sluice.contracts.messages import AllocationRequested, AnyMessage, Booking, Grant, NodeSnapshot, Pending, Revoke
from sluice.contracts.outbox import Outbox
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice.contracts.resize import counted_booking, max_sizes, same_places
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.key_index import drop, put
from sluice_allocator.core.placement import ClusterState, NoPlace, Place, PlaceRequest, find_place_on
from sluice_allocator.core.queue.backoff import RequestBackoff
from sluice_allocator.core.queue.capacity_offers import CapacityOffers
from sluice_allocator.core.queue.pending_queue import PendingQueue
from sluice_allocator.core.state.bus_cache import BusCache, request_of
from sluice_allocator.core.state.conditions import Conditions, NodeWaits


class Resizing(msgspec.Struct, frozen=True):
    """A resize that is being written: the new booking, and what counts until the ledger has answered."""

    booking: Booking
    counted: Booking


class Unsent(msgspec.Struct):
    """A commit that may still be taken back, with what it was decided on."""

    address: Address
    operation: OperationId
    message: AnyMessage


@dataclass(eq=False)
class Context:
    """One process's facts and pending decisions."""

    run: RunId
    rules: SchedulerConfig
    outbox: Outbox
    now: float = 0.0  # the time of the event being handled
    facts: BusCache = field(default_factory=BusCache)
    offers: CapacityOffers = field(default_factory=CapacityOffers)  # what was freed or became usable, to be offered
    conditions: Conditions = field(default_factory=Conditions)  # what is looked at again as time passes
    node_waits: NodeWaits = field(default_factory=NodeWaits)  # requests whose node may show a slice of theirs
    committing: dict[RequestId, AllocationId] = field(default_factory=dict)  # decided, not settled: both are taken
    assumed: dict[AllocationId, None] = field(default_factory=dict)  # the allocations of `committing`
    resizing: dict[AllocationId, Resizing] = field(default_factory=dict)
    undecided: dict[OperationId, Unsent] = field(default_factory=dict)  # commits without a settled result
    undecided_under: dict[str, dict[OperationId, None]] = field(default_factory=dict)  # the same by their guard
    changed_requests: OrderedDict[RequestId, None] = field(default_factory=OrderedDict)
    changed_nodes: OrderedDict[NodeName, None] = field(default_factory=OrderedDict)
    strays: OrderedDict[AllocationId, None] = field(default_factory=OrderedDict)  # reported, not in the ledger
    to_try: OrderedDict[RequestId, None] = field(default_factory=OrderedDict)  # joined the queue, not tried yet
    to_tell: OrderedDict[RequestId, None] = field(default_factory=OrderedDict)  # get the reasons of their shape's first
    unopened: dict[NodeName, None] = field(default_factory=dict)  # not adopted for their inventory: ledgers are watched
    shown: dict[NodeName, NodeSnapshot] = field(default_factory=dict)  # the snapshot that the cluster shows, per node
    consumers_wanted: list[NodeName] = field(default_factory=list)  # the shell shall create their agents' consumers
    ensured: dict[NodeName, Incarnation] = field(default_factory=dict)  # the broker's, in which each consumer was made
    numbered: int = 0

    def __post_init__(self) -> None:
        self.cluster = ClusterState(self.rules.placing)
        self.queue = PendingQueue(self.rules.waiting_max)
        self.backoff = RequestBackoff(self.rules)

    @property
    def nothing_else_to_do(self) -> bool:
        """Whether nothing is left to look at, to offer or to try."""
        left = self.changed_requests or self.changed_nodes or self.strays or self.to_try or self.to_tell or self.offers
        return not (left or self.cluster.peers.woken or self.queue.has_news)

    def touch(self, request: RequestId) -> None:
        """What is known or decided of a request changed."""

    def commit(self, address: Address, message: AnyMessage, request: RequestId | str, ttl_s: int | None = None) -> None:
        """Write a decision under a guard that covers the known facts."""
        operation = self.outbox.commit(address, message, request=request, ttl_s=ttl_s)
        self.undecided[operation] = Unsent(address, operation, message)
        put(self.undecided_under, address.guard, operation)

    def settle(self, operation: OperationId) -> None:
        unsent = self.undecided.pop(operation, None)
        if unsent is not None:
            drop(self.undecided_under, unsent.address.guard, operation)

    def booking_of(self, request: RequestId, asked: AllocationRequested, place: Place) -> Booking:
        self.numbered += 1
        return Booking(
            allocation=allocation_id(request, self.run, self.numbered),
            request=request,
            request_revision=asked.revision,
            source=asked.source,
            owner=asked.owner,
            namespace=asked.namespace,
            name=asked.name,
            node=place.node,
            devices=place.devices,
            room=asked.host.room,
            instead_of=place.instead_of,
            resource_claims=asked.resource_claims,
        )

    def place_in(
        self, booked: Booking, request: RequestId, asking: PlaceRequest, *, own: Iterable[AllocationId]
    ) -> Place | None:
        """A place on a booking's node as if that were free. The pods of `own` count for no term."""
        snapshot = self.shown.get(booked.node)
        if snapshot is None or self.cluster.booking(booked.allocation) is None:
            return None
        trial = self.cluster.alone(snapshot)
        trial.unbook(booked.allocation)
        with self.cluster.peers.without(own):
            return find_place_on(trial, asking, booked.node, self.backoff.avoided(request, self.now))

    def assume(self, booking: Booking) -> None:
        """Count a place as taken that the ledger lacks: it may never be had."""
        self.cluster.book(booking)
        self.assumed[booking.allocation] = None

    def unassume(self, booking: Booking) -> bool:
        """A place is given up before it was ordered. True when that freed something."""
        self.assumed.pop(booking.allocation, None)
        return self.cluster.unbook(booking.allocation)

    def grant(self, booking: Booking, after: tuple[AllocationId, ...] = (), *, evict: bool = False) -> None:
        """Book a place and order its slice, assumed until the ledger has it; with `after`, when those are gone."""
        self.assume(booking)
        self.committing[booking.request] = booking.allocation
        self.touch(booking.request)
        grant = Grant(revision=1, incarnation=self.facts.incarnation, booking=booking, after=after, evict=evict)
        self.commit(subjects.ledger(booking.node, booking.allocation), grant, booking.request)

    def counted(self, entry: Grant | Revoke) -> Booking:
        """What an entry counts: its booking, or the largest of the sizes while its shares are resized."""
        booked = counted_booking(entry, self.facts.slices.get(entry.booking.allocation))
        resizing = self.resizing.get(booked.allocation) if self.resizing else None
        if resizing is None or not same_places(booked.devices, resizing.counted.devices):
            return booked
        # another allocator may have enlarged it meanwhile: its write is read, and ours not answered yet
        return msgspec.structs.replace(booked, devices=max_sizes(booked.devices, resizing.counted.devices))

    def roll_back(self, message: Grant) -> None:
        """A grant did not get into the ledger: its place is free, unless the ledger says otherwise."""
        booking = message.booking
        entry = self.facts.ledger.get(booking.allocation)
        was_booked = self.cluster.booking(booking.allocation) is not None
        if self.resizing.pop(booking.allocation, None) and isinstance(entry, Grant | Revoke) and was_booked:
            self.cluster.book(self.counted(entry))
            self.offers.freed(booking.node)
        if booking.allocation not in self.facts.ledger and self.cluster.unbook(booking.allocation):
            self.offers.freed(booking.node)
        self.end_assuming(booking)
        self.changed_nodes[booking.node] = None

    def priority_of(self, namespace: str, asked: int) -> int:
        """The priority that a request of a namespace counts with: what it asks for, up to its namespace's ceiling."""
        quota = self.facts.quotas.get(namespace)
        return asked if quota is None or quota.priority_max is None else min(asked, quota.priority_max)

    def end_assuming(self, booking: Booking) -> None:
        """A grant is settled: the ledger decides from now on."""
        self.assumed.pop(booking.allocation, None)
        if self.committing.get(booking.request) == booking.allocation:
            del self.committing[booking.request]
        self.changed_requests[booking.request] = None
        self.touch(booking.request)

    def take_back(self, guard: str) -> None:
        """Another process wrote under `guard`: decisions that were made before and not sent are made again. Without
        this a queued grant would go out under a guard that covers an entry it never considered."""
        for operation in list(self.undecided_under.get(guard, ())):
            self._take_back(self.undecided[operation])

    def take_back_grants(self, allocations: set[AllocationId]) -> None:
        """The facts behind these grants changed: those not sent yet are decided again."""
        for unsent in list(self.undecided.values()) if allocations else ():
            if isinstance(unsent.message, Grant) and unsent.message.booking.allocation in allocations:
                self._take_back(unsent)

    def take_back_all(self) -> None:
        """This process becomes standby, or guards start over: drop all decisions that are not sent."""
        for unsent in list(self.undecided.values()):
            self._take_back(unsent)

    def look_again(self, address: Address) -> None:
        """A message that was to be written here is not: what it follows from is looked at again."""
        if address.kind == "binding":
            self.changed_requests[RequestId(address.key[0])] = None
            return
        self.changed_nodes[NodeName(address.key[0])] = None
        entry = self.facts.ledger.get(AllocationId(address.key[1]))
        if entry is not None:
            self.changed_requests[request_of(entry)] = None

    def _take_back(self, unsent: Unsent) -> None:
        if not self.outbox.cancel(unsent.address, unsent.operation):
            return
        self.settle(unsent.operation)
        match unsent.message:
            case Grant(adopted=False) as grant:
                self.roll_back(grant)
            case _:
                self.look_again(unsent.address)


def publish_wait(ctx: Context, request: RequestId, asked: AllocationRequested, why: NoPlace, *, is_news: bool) -> None:
    """Publish why a request waits: news at once, else at a bounded rate."""
    if ctx.backoff.admit_pending(request, ctx.now, is_news=is_news):
        pending = Pending(request=request, request_revision=asked.revision, message=why.message, reasons=why.reasons)
        ctx.outbox.keep(subjects.waiting(request), pending, request=request)


def say_why(ctx: Context, request: RequestId, asked: AllocationRequested, message: str, reason: ReasonCount) -> None:
    """Publish why the pod is not bound; the same reason, and over another allocator's, at a bounded rate."""
    kept = ctx.outbox.kept(subjects.waiting(request))
    is_first = kept is not None or request not in ctx.facts.waiting
    is_new = kept.message != message if isinstance(kept, Pending) else is_first
    is_loss = reason.reason is not WaitReason.NODE_NOT_OPEN
    publish_wait(ctx, request, asked, NoPlace(message, (reason,)), is_news=is_loss and is_new)
