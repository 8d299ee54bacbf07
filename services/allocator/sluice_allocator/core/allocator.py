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
from sluice_allocator.core.attempts import Attempts
from sluice_allocator.core.desk import Desk
from sluice_allocator.core.ensuring import Ensuring
from sluice_allocator.core.events import AgentEnsured, EnsureAgent, Event, GoOn, Instruction, LeaseChanged
from sluice_allocator.core.held import look_again
from sluice_allocator.core.nodes import settle_node
from sluice_allocator.core.orphans import Orphans
from sluice_allocator.core.requests import settle_request, settle_stray
from sluice_allocator.core.rules import Rules
from sluice_allocator.core.scheduling import end_pauses, refresh_pending, serve
from sluice_allocator.core.world import request_of

WRITES = frozenset({"ledger", "binding", "waiting"})
"""The nouns whose writer the allocator is."""


class Allocator:
    """
    One allocator. Several may work at once: the node's guard makes a place unique, the binding's guard a request.

    It begins standing by and works after `LeaseChanged(held=True)`.
    """

    def __init__(self, run: RunId, rules: Rules) -> None:
        """Know nothing, want nothing."""
        self.desk = Desk(run, rules, Outbox(run, WRITES), Attempts(rules))
        self.desk.outbox.paused = True
        self.orphans = Orphans()
        self.ensuring = Ensuring()

    @property
    def unfinished(self) -> bool:
        """Whether something is still to be looked at or tried. Any event goes on with it; `GoOn` does nothing else."""
        desk = self.desk
        return self._works and bool(desk.wakes or desk.to_try or desk.changed_requests or desk.changed_nodes)

    @property
    def _works(self) -> bool:
        return self.desk.world.settled and not self.desk.outbox.paused

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take in one event; the only way in which anything changes."""
        desk = self.desk
        desk.now = now
        own: list[Instruction] = []
        match event:
            case LeaseChanged():
                self._lease(held=event.held)
            case AgentEnsured():
                self.ensuring.done(event.node)
            case GoOn():
                pass
            case Ticked():
                desk.outbox.tick(now)
            case _:
                own = self._exchange(event, now)
        if self._works:
            if isinstance(event, Ticked):
                own += self._time_passed(now)
            if self._settle():
                if isinstance(event, Ticked):
                    end_pauses(desk)
                    refresh_pending(desk)
                serve(desk)
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
            case "ledger" | "slice":
                node, of_node = NodeName(address.key[0]), address.key[1] == "head"
                if of_node or node in desk.unopened or node in desk.world.removed or desk.world.unreadable:
                    desk.changed_nodes[node] = None
                if not of_node and self._rebook(AllocationId(address.key[1])):
                    desk.wakes.freed(node)
            case "node" | "inventory" | "host" | "cordon":
                node = NodeName(address.key[0])
                desk.changed_nodes[node] = None
                if address.kind == "node":
                    self._heard_of(node)
            case _:
                pass

    def _heard_of(self, node: NodeName) -> None:
        """An agent has spoken, or has been spoken of: it is there, or it is not."""
        desk = self.desk
        self.ensuring.heard_of(node, speaks=node in desk.world.news)
        if node not in desk.world.removed and desk.removals.forget(node):
            there = (request_of(desk.world.ledger[a]) for a in desk.world.allocations_on.get(node, ()))
            desk.changed_requests |= dict.fromkeys(there)

    def _rebook(self, allocation: AllocationId) -> bool:
        """Booked is what the ledger books, until the agent says that it is gone (LAW 3). True when this frees it."""
        desk = self.desk
        freed = False
        entry = desk.world.ledger.get(allocation)
        gone = isinstance(desk.world.slices.get(allocation), SliceGone)
        if entry is None:
            if allocation not in desk.assumed:
                freed = desk.fleet.unbook(allocation)
            if gone:
                desk.strays[allocation] = None
            if allocation in desk.world.slices:
                desk.changed_requests[desk.world.slices[allocation].request] = None
        elif isinstance(entry, Closed) or gone:
            freed = desk.fleet.unbook(allocation)
        else:
            desk.fleet.book(entry.booking)
        if entry is not None:
            self.orphans.look(desk, allocation)
            desk.changed_requests[request_of(entry)] = None
        return freed

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
            desk.changed_nodes |= dict.fromkeys((*desk.world.inventories, *desk.world.news, *desk.world.removed))
            desk.removals.begin_anew()
            desk.wakes.everything()

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
            desk.world.learn(entry, settled.address)
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
        desk.changed_nodes |= dict.fromkeys((*desk.world.inventories, *desk.world.removed))
        desk.removals.begin_anew()
        desk.wakes.everything()

    # -- decisions ------------------------------------------------------------------------------------------------

    def _time_passed(self, now: float) -> list[Instruction]:
        desk = self.desk
        self.orphans.tick(desk, now)
        look_again(desk)
        desk.changed_nodes |= dict.fromkeys(desk.removals.due(now, desk.rules.removed_grace_s))
        desk.changed_requests |= dict.fromkeys(desk.differing)
        self.ensuring.begin_anew(desk.world.incarnation, desk.world.news)
        return [EnsureAgent(node) for node in self.ensuring.to_ask(now, desk.rules.ensure_retry_s)]

    def _settle(self) -> bool:
        """
        Look at what changed until nothing more follows, nodes before requests; as much as one event is worth.

        False when something is left: then nobody gets a place before it was looked at.
        """
        desk = self.desk
        left = desk.rules.settle_batch
        while left > 0 and (desk.changed_nodes or desk.changed_requests or desk.strays):
            left -= 1
            if desk.strays:
                settle_stray(desk, desk.strays.popitem(last=False)[0])
            elif desk.changed_nodes:
                settle_node(desk, desk.changed_nodes.popitem(last=False)[0])
            else:
                settle_request(desk, desk.changed_requests.popitem(last=False)[0])
        return not (desk.changed_nodes or desk.changed_requests or desk.strays)
