"""
What all parts of the allocator's core work on: the facts, the fleet, the queue, and what is wanted on the bus.

It holds; it must not decide. `changed_*` collect what has to be looked at before `handle` returns.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from sluice.contracts import subjects
from sluice.contracts.ids import AllocationId, NodeName, OperationId, RequestId, RunId, allocation_id
from sluice.contracts.messages import AnyMessage, Booking, Grant, NodeSnapshot
from sluice.contracts.outbox import Outbox
from sluice.contracts.subjects import Address
from sluice_allocator.core.attempts import Attempts
from sluice_allocator.core.opening import Opening
from sluice_allocator.core.placement import Fleet
from sluice_allocator.core.queue import Shapes, WaitingQueue
from sluice_allocator.core.removals import Removals
from sluice_allocator.core.rules import Rules
from sluice_allocator.core.wakes import Wakes
from sluice_allocator.core.world import World, request_of


@dataclass(slots=True)
class Unsent:
    """A commit that may still be taken back: it was decided on what was known then."""

    address: Address
    operation: OperationId
    message: AnyMessage


@dataclass(slots=True)
class Desk:
    """One process's view and wishes."""

    run: RunId
    rules: Rules
    outbox: Outbox
    attempts: Attempts
    world: World = field(default_factory=World)
    fleet: Fleet = field(init=False)
    queue: WaitingQueue = field(default_factory=WaitingQueue)
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
    """Since when a binding's strings differ from its slice's although the binding seems newer."""
    opening: Opening = field(default_factory=Opening)
    """Nodes that are not open, and the requests that wait for them, for they may have their slices."""
    strays: OrderedDict[AllocationId, None] = field(default_factory=OrderedDict)
    """Slices that are spoken of and not in the ledger: to be looked at."""
    possible: Shapes = field(default_factory=Shapes)
    to_try: OrderedDict[RequestId, None] = field(default_factory=OrderedDict)
    """Requests that have come to wait and were not tried yet."""
    unopened: dict[NodeName, None] = field(default_factory=dict)
    """Nodes that have an inventory and are not open as it stands: whatever enters their ledger is looked at."""
    removals: Removals = field(default_factory=Removals)
    """Nodes that are removed, and since when that is known."""
    shown: dict[NodeName, NodeSnapshot] = field(default_factory=dict)
    """The snapshot that the fleet shows, per node."""
    wakes: Wakes = field(default_factory=Wakes)
    """Where something was freed or became usable: offered to those who wait."""
    numbered: int = 0
    now: float = 0.0
    """The time of the event being handled."""

    def __post_init__(self) -> None:
        """An empty fleet under the rules of this process."""
        self.fleet = Fleet(self.rules.placing)

    @property
    def nothing_else_to_do(self) -> bool:
        """Whether nothing is left to be looked at, to be offered or to be tried."""
        return not (self.changed_requests or self.changed_nodes or self.strays or self.to_try or self.wakes)

    def commit(self, address: Address, message: AnyMessage, request: RequestId | str, ttl_s: int | None = None) -> None:
        """Write a decision, guarded by what is known."""
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
        """An id that was never used."""
        self.numbered += 1
        return allocation_id(request, self.run, self.numbered)

    def grant(self, booking: Booking) -> None:
        """Book a place and order its slice: assumed at once, certain when the ledger has it."""
        self.fleet.book(booking)
        self.committing[booking.request] = booking.allocation
        self.assumed[booking.allocation] = None
        grant = Grant(revision=1, incarnation=self.world.incarnation, booking=booking)
        self.commit(subjects.ledger(booking.node, booking.allocation), grant, booking.request)

    def roll_back(self, message: Grant) -> None:
        """A grant did not get into the ledger: its place is free, unless the ledger says otherwise."""
        booking = message.booking
        if booking.allocation not in self.world.ledger and self.fleet.unbook(booking.allocation):
            self.wakes.freed(booking.node)
        self.end_assuming(booking)
        self.changed_nodes[booking.node] = None

    def end_assuming(self, booking: Booking) -> None:
        """A grant is settled: what holds now is what the ledger says."""
        self.assumed.pop(booking.allocation, None)
        if self.committing.get(booking.request) == booking.allocation:
            del self.committing[booking.request]
        self.changed_requests[booking.request] = None

    def take_back(self, guard: str) -> None:
        """
        Somebody else wrote under `guard`: what was decided before and not yet sent is decided anew.

        Without this a queued grant would go out under a guard that covers an entry it never considered.
        """
        for operation in list(self.undecided_under.get(guard, ())):
            self._take_back(self.undecided[operation])

    def take_back_all(self) -> None:
        """This process works no longer: decide nothing on what it knows now."""
        for unsent in list(self.undecided.values()):
            self._take_back(unsent)

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
            entry = self.world.ledger.get(AllocationId(address.key[1]))
            if entry is not None:
                self.changed_requests[request_of(entry)] = None
