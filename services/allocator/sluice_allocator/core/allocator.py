"""
The allocator's core: events in, instructions out.

Every event changes facts; what the facts changed is looked at again (`settle_request`, `settle_node`, the queue);
what follows is wanted from the outbox. Nothing is decided while a stream is being read anew: half a picture decides
half wrong.
"""

from sluice.contracts.exchange import (
    ExchangeEvent,
    Observed,
    ReadAgain,
    ReadingCaughtUp,
    ReadingStarted,
    Stream,
    Ticked,
)
from sluice.contracts.ids import AllocationId, NodeName, RequestId, RunId
from sluice.contracts.messages import Bound, Closed, Grant, SliceGone, SourceSynced
from sluice.contracts.outbox import Contested, Outbox, Report, Settled
from sluice.contracts.subjects import Address
from sluice_allocator.core.desk import Desk
from sluice_allocator.core.events import AgentEnsured, EnsureAgent, Event, Instruction, LeaseChanged
from sluice_allocator.core.held import look_again, node_was_opened
from sluice_allocator.core.nodes import settle_node
from sluice_allocator.core.orphans import Orphans
from sluice_allocator.core.requests import settle_request, settle_stray
from sluice_allocator.core.rules import Rules
from sluice_allocator.core.scheduling import refresh_pending, try_waiting

WRITES = frozenset({"ledger", "binding", "waiting"})
"""The nouns whose writer the allocator is."""


class Allocator:
    """
    One allocator. Several may work at once: the node's guard makes a place unique, the binding's guard a request.

    It begins standing by and works after `LeaseChanged(held=True)`.
    """

    def __init__(self, run: RunId, rules: Rules) -> None:
        """Know nothing, want nothing."""
        self.desk = Desk(run, rules, Outbox(run, WRITES))
        self.desk.outbox.paused = True
        self.orphans = Orphans()
        self._ensured: dict[NodeName, str] = {}
        """Nodes whose durable is there, with the incarnation it was made in."""
        self._asked_to_ensure: dict[NodeName, tuple[float, str]] = {}
        """When a node's durable was asked for last, and in which incarnation."""

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take in one event; the only way in which anything changes."""
        desk = self.desk
        desk.now = now
        own: list[Instruction] = []
        match event:
            case LeaseChanged():
                self._lease(held=event.held)
            case AgentEnsured():
                self._ensured[event.node] = self._asked_to_ensure[event.node][1]
            case Ticked():
                desk.outbox.tick(now)
            case _:
                own = self._exchange(event, now)
        if desk.world.settled and not desk.outbox.paused:
            if isinstance(event, Ticked):
                self.orphans.tick(desk, now)
                look_again(desk)
                desk.changed_requests |= dict.fromkeys(desk.differing)
                refresh_pending(desk, now)
                own += self._ensure_agents(now)
            self._settle(now)
        return [*own, *desk.outbox.drain()]

    # -- facts ----------------------------------------------------------------------------------------------------

    def _exchange(self, event: ExchangeEvent, now: float) -> list[Instruction]:
        desk = self.desk
        if isinstance(event, Observed):
            reports = desk.outbox.handle(event, now)
            self._observed(event)  # before the reports: whether a value is ours is known as long as it is undecided
            self._report(reports)
            return []
        stale = False
        if isinstance(event, ReadingStarted):
            desk.take_back_all()  # guards may begin anew; what was not sent is decided on what the reading shows
            stale = desk.world.start_reading(event)
        self._report(desk.outbox.handle(event, now))
        if isinstance(event, ReadingCaughtUp):
            self._caught_up(event)
        if not (stale and isinstance(event, ReadingStarted)):
            return []
        return [ReadAgain(Stream.STATE if event.stream is Stream.BOOK else Stream.BOOK)]

    def _observed(self, event: Observed) -> None:
        address = self.desk.world.observe(event)
        if address is None:
            return
        mine = event.entry.operation in self.desk.undecided
        if address.kind in {"ledger", "binding"} and not mine:
            self.desk.take_back(address.guard)
        self._changed(address)
        message = event.entry.message
        if isinstance(message, SourceSynced) and self.desk.world.settled:
            self.orphans.heard(self.desk, message)

    def _changed(self, address: Address) -> None:
        """Something about this address is known anew, or not there any more: what has to be looked at again."""
        desk = self.desk
        match address.kind:
            case "request" | "binding" | "waiting":
                desk.changed_requests[RequestId(address.key[0])] = None
            case "ledger":
                desk.changed_nodes[NodeName(address.key[0])] = None
                if address.key[1] == "head":
                    node_was_opened(desk, NodeName(address.key[0]))
                else:
                    self._rebook(AllocationId(address.key[1]))
            case "slice":
                self._rebook(AllocationId(address.key[1]))
            case "node" | "inventory" | "host" | "cordon":
                desk.changed_nodes[NodeName(address.key[0])] = None
            case _:
                pass

    def _rebook(self, allocation: AllocationId) -> None:
        """Booked is what the ledger books, until the agent says that it is gone (LAW 3)."""
        desk = self.desk
        entry = desk.world.ledger.get(allocation)
        gone = isinstance(desk.world.slices.get(allocation), SliceGone)
        if entry is None:
            if allocation not in desk.assumed:
                desk.freed |= desk.fleet.unbook(allocation)
            if gone:
                desk.strays[allocation] = None
            if allocation in desk.world.slices:
                desk.changed_requests[desk.world.slices[allocation].request] = None
        elif isinstance(entry, Closed) or gone:
            desk.freed |= desk.fleet.unbook(allocation)
        else:
            desk.fleet.book(allocation, entry.booking.devices)
        if entry is not None:
            self.orphans.look(desk, allocation)
            desk.changed_requests[entry.request if isinstance(entry, Closed) else entry.booking.request] = None

    def _caught_up(self, event: ReadingCaughtUp) -> None:
        """A stream was read whole: look at everything once, for what is missing is a fact too."""
        desk = self.desk
        kept = {subject: None for subject in desk.world.sequences if desk.outbox.knows(subject)}
        for address in desk.world.catch_up(event.stream, kept):
            self._changed(address)
        if desk.world.settled:
            for allocation in dict.fromkeys((*desk.world.ledger, *desk.fleet.booked(), *desk.world.slices)):
                self._rebook(allocation)
            everything = (*desk.world.requests, *desk.world.bindings, *desk.world.allocations_of, *desk.world.waiting)
            desk.changed_requests |= dict.fromkeys(everything)
            desk.changed_nodes |= dict.fromkeys((*desk.world.inventories, *desk.world.news))
            desk.freed = True

    def _report(self, reports: list[Report]) -> None:
        for report in reports:
            match report:
                case Settled():
                    self._settled(report)
                case Contested():
                    # Another allocator says why the request waits: one voice is enough.
                    self.desk.outbox.forget(report.address)

    def _settled(self, settled: Settled) -> None:
        desk = self.desk
        desk.settle(settled.operation)
        entry = desk.outbox.current(settled.address)
        if settled.landed and entry is not None:
            desk.world.learn(entry)
        message = settled.message
        if isinstance(message, Grant) and not message.adopted:
            desk.end_assuming(message.booking)
            if not settled.landed:
                desk.roll_back(message)
        self._changed(settled.address)
        if isinstance(message, Bound) and not settled.landed:
            desk.changed_requests[message.request] = None

    def _lease(self, *, held: bool) -> None:
        desk = self.desk
        desk.outbox.paused = not held
        if not held:
            desk.take_back_all()
            return
        desk.changed_requests |= dict.fromkeys((*desk.world.requests, *desk.world.allocations_of))
        desk.changed_nodes |= dict.fromkeys(desk.world.inventories)
        desk.freed = True

    # -- decisions ------------------------------------------------------------------------------------------------

    def _settle(self, now: float) -> None:
        """Look at what changed until nothing more follows. Each round is caused by the round before; few follow."""
        desk = self.desk
        while desk.changed_nodes or desk.changed_requests or desk.strays or desk.freed or desk.to_try:
            strays, desk.strays = desk.strays, {}
            for allocation in strays:
                settle_stray(desk, allocation)
            nodes, desk.changed_nodes = desk.changed_nodes, {}
            for node in nodes:
                settle_node(desk, node)
            requests, desk.changed_requests = desk.changed_requests, {}
            for request in requests:
                settle_request(desk, request)
            try_waiting(desk, now)

    def _ensure_agents(self, now: float) -> list[Instruction]:
        """Agents may not make their own durable; whoever works sees to it that each has one in this incarnation."""
        wanted: list[Instruction] = []
        for node in self.desk.world.news:
            if self._ensured.get(node) == self.desk.world.incarnation:
                continue
            asked_at, asked_in = self._asked_to_ensure.get(node, (-1e9, ""))
            if asked_in != self.desk.world.incarnation or now - asked_at >= self.desk.rules.ensure_retry_s:
                self._asked_to_ensure[node] = (now, self.desk.world.incarnation)
                wanted.append(EnsureAgent(node))
        return wanted
