"""
The state that all parts of the core share: the facts, the fleet, the queue, and the pending writes.

`changed_*` collect what has to be looked at before `handle` returns.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

import msgspec

from sluice.contracts.bus import subjects
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import AllocationId, NodeName, OperationId, RequestId, RunId, allocation_id
from sluice.contracts.messages import AnyMessage, Booking, Grant, NodeSnapshot, Revoke
from sluice.contracts.outbox import Outbox
from sluice.contracts.resize import counted_booking, max_sizes, same_places
from sluice_allocator.core.capacity.memory import NodePools
from sluice_allocator.core.evictions.sparing import Sparing
from sluice_allocator.core.groups.gangs import Gangs
from sluice_allocator.core.limits.over_quota import OverQuota
from sluice_allocator.core.moves.memory import Moves
from sluice_allocator.core.opening import Opening
from sluice_allocator.core.placement import Fleet
from sluice_allocator.core.removals import Removals
from sluice_allocator.core.reopening import Reopening
from sluice_allocator.core.rules import Rules
from sluice_allocator.core.sizes.adjustments import Adjustments
from sluice_allocator.core.unentered import Unentered
from sluice_allocator.core.unheard import Unheard
from sluice_allocator.core.waiting.aging import Aging, Promised
from sluice_allocator.core.waiting.attempts import Attempts
from sluice_allocator.core.waiting.overs import Overs
from sluice_allocator.core.waiting.queue import WaitingQueue
from sluice_allocator.core.waiting.wakes import Wakes
from sluice_allocator.core.world import World, request_of


class Unsent(msgspec.Struct):
    """A commit that may still be taken back, with what it was decided on."""

    address: Address
    operation: OperationId
    message: AnyMessage


@dataclass(slots=True)
class Desk:
    """One process's facts and pending decisions."""

    run: RunId
    rules: Rules
    outbox: Outbox
    attempts: Attempts
    world: World = field(default_factory=World)
    fleet: Fleet = field(init=False)
    queue: WaitingQueue = field(init=False)
    committing: dict[RequestId, AllocationId] = field(default_factory=dict)
    """Grants that are decided and not settled: place and request both count as taken."""
    assumed: dict[AllocationId, None] = field(default_factory=dict)
    """The allocations of `committing`."""
    undecided: dict[OperationId, Unsent] = field(default_factory=dict)
    """Commits without a settled result."""
    undecided_under: dict[str, dict[OperationId, None]] = field(default_factory=dict)
    """The same by their guard."""
    changed_requests: OrderedDict[RequestId, None] = field(default_factory=OrderedDict)
    changed_nodes: OrderedDict[NodeName, None] = field(default_factory=OrderedDict)
    differing: dict[RequestId, float] = field(default_factory=dict)
    """Since when a binding's strings differ from its slice's without proof that the slice's are newer."""
    opening: Opening = field(default_factory=Opening)
    """Nodes that are not open, and the requests that wait for them because they may have a slice there."""
    reopening: Reopening = field(default_factory=Reopening)
    """Nodes whose heads another allocator wrote for a different run of the agent."""
    strays: OrderedDict[AllocationId, None] = field(default_factory=OrderedDict)
    """Slices that are reported and not in the ledger: to be looked at."""
    to_try: OrderedDict[RequestId, None] = field(default_factory=OrderedDict)
    """Requests that joined the queue and were not tried yet."""
    to_tell: OrderedDict[RequestId, None] = field(default_factory=OrderedDict)
    """
    Requests that a pass over the whole fleet tries through the first of their shape: they get its reasons afterwards.
    """
    unopened: dict[NodeName, None] = field(default_factory=dict)
    """Nodes with an inventory that are not open for it: changes of their ledgers are looked at."""
    removals: Removals = field(default_factory=Removals)
    """Removed nodes, and since when that is known."""
    unentered: Unentered = field(default_factory=Unentered)
    """Open nodes whose agents report slices without ledger entries."""
    unheard: Unheard = field(default_factory=Unheard)
    """Nodes whose heads were closed for a removal that this process has not read yet."""
    shown: dict[NodeName, NodeSnapshot] = field(default_factory=dict)
    """The snapshot that the fleet shows, per node."""
    wakes: Wakes = field(default_factory=Wakes)
    """Where something was freed or became usable: offered to waiting requests."""
    over_quota: OverQuota = field(default_factory=OverQuota)
    """Requests to try again because their namespaces released something."""
    overs: Overs = field(default_factory=Overs)
    """Requests published as no longer waiting, although another allocator publishes that they wait."""
    unrefused: Overs = field(default_factory=Overs)
    """Requests whose refusal was waived, although another allocator may refuse them again."""
    orders: Overs = field(default_factory=Overs)
    """Requests whose eviction was ordered or lifted, although another allocator publishes the opposite."""
    aging: Aging = field(default_factory=Aging)
    """When waiting requests are old enough for a reservation."""
    promised: Promised = field(default_factory=Promised)
    """How many GPUs are reserved."""
    sparing: Sparing = field(init=False)
    """Evictions under way, and pods exempt for a while."""
    gangs: Gangs = field(default_factory=Gangs)
    """Groups whose pods are granted together."""
    moves: Moves = field(default_factory=Moves)
    """Movable pods, and moves under way."""
    adjustments: Adjustments = field(default_factory=Adjustments)
    """Resizes of shares that are pending."""
    node_pools: NodePools = field(default_factory=NodePools)
    """Pools that an autoscaler can grow."""
    numbered: int = 0
    now: float = 0.0
    """The time of the event being handled."""

    def __post_init__(self) -> None:
        """An empty fleet and an empty queue under the rules of this process."""
        self.queue = WaitingQueue(self.rules.waiting_max)
        self.fleet = Fleet(self.rules.placing)
        self.sparing = Sparing(self.rules)

    @property
    def nothing_else_to_do(self) -> bool:
        """Whether nothing is left to look at, to offer or to try."""
        left = self.changed_requests or self.changed_nodes or self.strays or self.to_try or self.to_tell or self.wakes
        together = self.gangs.dirty or self.gangs.trial
        left = left or self.sparing.look
        woken = self.over_quota.woken or self.fleet.peers.woken
        return not (left or together or woken or self.queue.has_news)

    def commit(self, address: Address, message: AnyMessage, request: RequestId | str, ttl_s: int | None = None) -> None:
        """Write a decision under a guard that covers the known facts."""
        operation = self.outbox.commit(address, message, request=request, ttl_s=ttl_s)
        self.undecided[operation] = Unsent(address, operation, message)
        self.undecided_under.setdefault(address.guard, {})[operation] = None

    def settle(self, operation: OperationId) -> None:
        """A commit has its result."""
        unsent = self.undecided.pop(operation, None)
        if unsent is not None:
            under = self.undecided_under[unsent.address.guard]
            del under[operation]
            if not under:
                del self.undecided_under[unsent.address.guard]

    def new_allocation(self, request: RequestId) -> AllocationId:
        """A new allocation id."""
        self.numbered += 1
        return allocation_id(request, self.run, self.numbered)

    def assume(self, booking: Booking) -> None:
        """Count a place as taken, and as filling no guarantee: the ledger lacks it, so it may never be had."""
        self.fleet.book(booking)
        self.assumed[booking.allocation] = None
        if booking.namespace in self.world.quotas:
            self.sparing.leaves(booking.namespace, booking.allocation)

    def grant(self, booking: Booking, after: tuple[AllocationId, ...] = (), *, evict: bool = False) -> None:
        """
        Book a place and order its slice: assumed at once, certain when the ledger has it.

        With `after` the slice is made when those are gone, whose pods are evicted or waited for.
        """
        self.assume(booking)
        self.committing[booking.request] = booking.allocation
        self.gangs.touch(booking.request)
        if after:
            self.sparing.take(booking.allocation, after)
            for each in after:
                self.fleet.spare(each)
                victim = self.fleet.booking(each) if evict else None
                if victim is not None:  # at once: what is decided in the same event must not count on it
                    self.sparing.leaves(victim.namespace, each)
            if not evict:
                self.promised.count(booking.allocation, self.fleet.models_of(booking))
        grant = Grant(revision=1, incarnation=self.world.incarnation, booking=booking, after=after, evict=evict)
        self.commit(subjects.ledger(booking.node, booking.allocation), grant, booking.request)

    def counted(self, entry: Grant | Revoke) -> Booking:
        """What an entry counts: its booking, or the largest of the sizes while its shares are resized."""
        booked = counted_booking(entry, self.world.slices.get(entry.booking.allocation))
        on_its_way = self.adjustments.on_their_way.get(booked.allocation) if self.adjustments.on_their_way else None
        if on_its_way is None or not same_places(booked.devices, on_its_way.adjusted.counted.devices):
            return booked
        # another allocator may have enlarged it meanwhile: its write is read, and ours not answered yet
        return msgspec.structs.replace(booked, devices=max_sizes(booked.devices, on_its_way.adjusted.counted.devices))

    def roll_back(self, message: Grant) -> None:
        """A grant did not get into the ledger: its place is free, unless the ledger says otherwise."""
        booking = message.booking
        entry = self.world.ledger.get(booking.allocation)
        was_booked = self.fleet.booking(booking.allocation) is not None
        if self.adjustments.undo(booking.allocation) and isinstance(entry, Grant | Revoke) and was_booked:
            self.fleet.book(self.counted(entry))
            self.sparing.look[booking.allocation] = None  # until it is booked again it evicts no pod
            self.wakes.freed(booking.node)
        if booking.allocation not in self.world.ledger:
            self.promised.forget(booking.allocation)
            if self.fleet.unbook(booking.allocation):
                self.wakes.freed(booking.node)
        self.end_assuming(booking)
        self.changed_nodes[booking.node] = None

    def end_assuming(self, booking: Booking) -> None:
        """A grant is settled: the ledger decides from now on."""
        self.assumed.pop(booking.allocation, None)
        if self.sparing.taken:
            self.sparing.let_go(booking.allocation)
        if booking.allocation in self.sparing.leaving_of:
            self.sparing.look[booking.allocation] = None
        if self.committing.get(booking.request) == booking.allocation:
            del self.committing[booking.request]
        self.changed_requests[booking.request] = None
        self.gangs.touch(booking.request)

    def untry(self, booking: Booking) -> None:
        """A trial's place is no longer available: that member is tried again."""
        trial = self.gangs.trial
        if trial is None or trial.found.pop(booking.request, None) is None:
            return
        self.assumed.pop(booking.allocation, None)
        self.sparing.is_gone(booking.allocation)
        self.fleet.unbook(booking.allocation)
        trial.left.append(booking.request)

    def drop_trial(self) -> None:
        """End the current trial and free its places."""
        trial, self.gangs.trial = self.gangs.trial, None
        for booking in trial.found.values() if trial is not None else ():
            self.assumed.pop(booking.allocation, None)
            self.sparing.is_gone(booking.allocation)
            if self.fleet.unbook(booking.allocation) and trial is not None and not trial.in_one_event:
                self.wakes.freed(booking.node, as_before=True)  # others may have been tried beside it

    def put_trial_off(self) -> None:
        """End the current trial, to repeat it later."""
        if self.gangs.trial is not None and self.gangs.trial.party.leader is not None:
            self.gangs.owed[self.gangs.trial.party.leader] = None
        self.drop_trial()

    def take_back(self, guard: str) -> None:
        """
        Another process wrote under `guard`: decisions that were made before and not sent are made again.

        Without this a queued grant would go out under a guard that covers an entry it never considered.
        """
        for operation in list(self.undecided_under.get(guard, ())):
            self._take_back(self.undecided[operation])
        if self.gangs.trial is not None:
            for booking in list(self.gangs.trial.found.values()):
                if subjects.ledger(booking.node, booking.allocation).guard == guard:
                    self.untry(booking)

    def take_back_grants(self, allocations: dict[AllocationId, None]) -> None:
        """The facts behind these grants changed: those not sent yet are decided again."""
        for unsent in list(self.undecided.values()) if allocations else ():
            if isinstance(unsent.message, Grant) and unsent.message.booking.allocation in allocations:
                self._take_back(unsent)

    def take_back_all(self) -> None:
        """This process becomes standby: drop all decisions that are not sent."""
        for unsent in list(self.undecided.values()):
            self._take_back(unsent)
        self.put_trial_off()

    def _take_back(self, unsent: Unsent) -> None:
        if not self.outbox.cancel(unsent.address, unsent.operation):
            return
        self.settle(unsent.operation)
        match unsent.message:
            case Grant(adopted=False) as grant:
                self.roll_back(grant)
            case _:
                self._look_again(unsent.address)

    def _look_again(self, address: Address) -> None:
        if address.kind == "binding":
            self.changed_requests[RequestId(address.key[0])] = None
        else:
            self.changed_nodes[NodeName(address.key[0])] = None
            allocation = AllocationId(address.key[1])
            entry = self.world.ledger.get(allocation)
            if entry is not None:
                self.changed_requests[request_of(entry)] = None
            if allocation in self.sparing.leaving_of:
                self.sparing.look[allocation] = None  # it was to be revoked
