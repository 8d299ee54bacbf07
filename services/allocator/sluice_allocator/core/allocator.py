"""
The allocator's core: events in, instructions out.

Every event changes facts. What the changed facts concern is reconciled (`settle_request`, `settle_node`, the queue),
and the resulting writes go to the outbox. Nothing is decided while a stream is being reread, because partial facts
lead to wrong decisions.
"""

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import BusEvent, Observed, ReadAgain, ReadingCaughtUp, ReadingStarted, Stream, Ticked
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import AllocationId, NodeName, RequestId, RunId, SourceName, request_named
from sluice.contracts.messages import (
    AllocationRequested,
    Bound,
    Closed,
    Grant,
    NodeClosed,
    NodeOpened,
    SliceGone,
)
from sluice.contracts.outbox import Contested, Outbox, OutboxReport, Settled
from sluice_allocator.core.capacity.demand import ask_for_nodes
from sluice_allocator.core.desk import Desk
from sluice_allocator.core.ensuring import Ensuring
from sluice_allocator.core.entries import settle_stray
from sluice_allocator.core.events import (
    AdjustAsked,
    AgentEnsured,
    AnswerAdjust,
    EnsureAgent,
    Event,
    GoOn,
    Instruction,
    LeaseChanged,
)
from sluice_allocator.core.evictions.draining import look_at_drained
from sluice_allocator.core.evictions.preempting import (
    look_at_evictions,
    look_at_guarantee,
    look_at_victim,
    look_at_victims_of,
    note_victim,
)
from sluice_allocator.core.groups.settling import settle_group, time_passed_for_groups
from sluice_allocator.core.held import look_again
from sluice_allocator.core.limits.excess import look_at_binding, look_at_booked, look_at_excess, was_read
from sluice_allocator.core.limits.quotas import limits_changed, source_has_spoken
from sluice_allocator.core.limits.unbooked import look_at_held
from sluice_allocator.core.moves.defragmenting import defragment
from sluice_allocator.core.moves.moving import count_move, move_pods_back
from sluice_allocator.core.nodes import settle_node
from sluice_allocator.core.orphans import Orphans
from sluice_allocator.core.placement import peer_of
from sluice_allocator.core.requests import settle_request
from sluice_allocator.core.rules import Rules
from sluice_allocator.core.sizes.adjusting import ask, ask_again, landed
from sluice_allocator.core.unbacked import Unbacked
from sluice_allocator.core.unowned import Unowned
from sluice_allocator.core.waiting.attempts import Attempts
from sluice_allocator.core.waiting.promise_making import promise_places
from sluice_allocator.core.waiting.promised import (
    count_promises,
    is_about_promises,
    look_at_promises,
    look_at_those_who_wait_for,
)
from sluice_allocator.core.waiting.resting import note_taken_back
from sluice_allocator.core.waiting.scheduling import end_pauses, refresh_pending, serve
from sluice_allocator.core.world import request_of

WRITES = frozenset({"ledger", "binding", "waiting", "eviction", "pool"})
"""The nouns that the allocator writes."""


class Allocator:
    """
    One allocator. Several may work at once: the node's guard makes a place unique, the binding's guard a request.

    It starts on standby and becomes active with `LeaseChanged(held=True)`.
    """

    def __init__(self, run: RunId, rules: Rules) -> None:
        """Start without facts."""
        self.desk = Desk(run, rules, Outbox(run, WRITES), Attempts(rules))
        self.desk.outbox.paused = True
        self.orphans = Orphans()
        self.unowned = Unowned()
        self.unbacked = Unbacked()
        self.ensuring = Ensuring()

    @property
    def unfinished(self) -> bool:
        """Whether anything is left to look at or to try. Any event continues it; `GoOn` does nothing else."""
        return self._works and not self.desk.nothing_else_to_do

    @property
    def _works(self) -> bool:
        return self.desk.world.settled and not self.desk.outbox.paused

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Handle one event; the only way in which anything changes."""
        desk = self.desk
        desk.now = now
        own: list[Instruction] = []
        ticked = isinstance(event, Ticked)
        if isinstance(event, (LeaseChanged, AgentEnsured, AdjustAsked, GoOn)):
            self._told(event)
        elif isinstance(event, Ticked):
            desk.outbox.tick(now)
        else:
            own = self._exchange(event, now)
        if desk.sparing.look:
            self._look_at_victims()
        if self._works:
            if ticked:
                own += self._time_passed(now)
            if self._settle():
                self._decide(ticked=ticked)
        if desk.adjustments.again:
            ask_again(desk)
        if desk.adjustments.answers:
            own += [AnswerAdjust(number, outcome) for number, outcome in desk.adjustments.take_answers()]
        return [*own, *desk.outbox.drain()]

    def _told(self, event: LeaseChanged | AgentEnsured | AdjustAsked | GoOn) -> None:
        """Handle an event of the shell itself."""
        match event:
            case LeaseChanged():
                self._lease(held=event.held)
            case AgentEnsured():
                self.ensuring.done(event.node)
            case AdjustAsked():
                ask(self.desk, event.number, event.change)
            case GoOn():
                pass

    # -- facts ----------------------------------------------------------------------------------------------------

    def _exchange(self, event: BusEvent, now: float) -> list[Instruction]:
        desk = self.desk
        if isinstance(event, Observed):
            reports = desk.outbox.handle(event, now)
            self._observed(event)  # before the reports: whether a value is ours is known as long as it is undecided
            self._report(reports)
            return []
        stale = False
        if isinstance(event, ReadingStarted):
            desk.take_back_all()  # guards may have started over; what was not sent is decided on what the reading shows
            stale = desk.world.start_reading(event)
            if event.stream is Stream.STATE:
                desk.unheard.reading_started()
                self.orphans.reading_started()
        self._report(desk.outbox.handle(event, now))
        if isinstance(event, ReadingCaughtUp):
            self._caught_up(event)
        if not (stale and isinstance(event, ReadingStarted)):
            return []
        return [ReadAgain(Stream.STATE if event.stream is Stream.BOOK else Stream.BOOK)]

    def _observed(self, event: Observed) -> None:
        address = self.desk.world.observe(event)
        if self.desk.over_quota.unread:
            was_read(self.desk)
        if address is None:
            return
        mine = event.entry.operation in self.desk.undecided
        if address.kind in {"ledger", "binding"} and not mine:
            self.desk.take_back(address.guard)
            note_taken_back(self.desk, event.entry.message)
        self._changed(address)
        if address.kind == "source" and self.desk.world.settled:
            self.orphans.heard(self.desk, SourceName(address.key[0]))

    def _changed(self, address: Address) -> None:
        """The value at this address changed or is gone: mark what has to be looked at again."""
        desk = self.desk
        match address.kind:
            case "request" | "waiting" | "eviction" | "evicted":
                self._request_changed(RequestId(address.key[0]))
                if address.kind == "evicted":
                    look_at_those_who_wait_for(desk, RequestId(address.key[0]))
            case "binding":
                self._request_changed(RequestId(address.key[0]))
                look_at_binding(desk, RequestId(address.key[0]))
                self.orphans.answered(desk, RequestId(address.key[0]))
                self.unbacked.look(desk, RequestId(address.key[0]))
            case "ledger" | "slice":
                self._entry_changed(NodeName(address.key[0]), AllocationId(address.key[1]))
            case "node" | "inventory" | "host" | "cordon":
                node = NodeName(address.key[0])
                desk.changed_nodes[node] = None
                if address.kind == "cordon":
                    look_at_drained(desk, node)
                if address.kind == "node":
                    self._heard_of(node)
            case "source":
                source_has_spoken(desk, SourceName(address.key[0]))
            case "quota":
                limits_changed(desk, address.key[0])
                look_at_guarantee(desk, address.key[0])
            case _:
                pass

    def _heard_of(self, node: NodeName) -> None:
        """A node appeared, or is gone: its agent published, or was reported removed."""
        desk = self.desk
        self.ensuring.heard_of(node, speaks=node in desk.world.news)
        desk.unheard.heard_of(desk.world, node)
        if node not in desk.world.removed and desk.removals.forget(node):
            desk.take_back(subjects.ledger_filter(node))  # it lives: what was to be closed with it is not sent any more
            there = (request_of(desk.world.ledger[a]) for a in desk.world.allocations_on.get(node, ()))
            desk.changed_requests |= dict.fromkeys(there)

    def _request_changed(self, request: RequestId) -> None:
        self.desk.changed_requests[request] = None
        asked = self.desk.world.requests.get(request)
        if asked is None:
            self.desk.fleet.lose_sight(request)
        else:
            self.desk.fleet.know(request, peer_of(asked) if isinstance(asked, AllocationRequested) else None)
        look_at_held(self.desk, request)
        if self.desk.gangs.member_of:
            self.desk.gangs.touch(request)
        self.orphans.asked(self.desk, request)
        look_at_victims_of(self.desk, request)

    def _entry_changed(self, node: NodeName, allocation: AllocationId) -> None:
        """An entry of a node's ledger changed, or its slice's status; the head of the ledger counts as an entry."""
        desk = self.desk
        is_head = allocation == "head"
        if is_head:
            desk.unheard.head_changed(desk.world, node)
        if desk.gangs.member_of:
            desk.gangs.touch(request_named(allocation))
        if is_head or node in desk.unopened or node in desk.world.removed or desk.world.unreadable:
            desk.changed_nodes[node] = None
        if not is_head and (desk.over_quota.unbooked.claims_of or allocation not in desk.world.ledger):
            look_at_held(desk, request_named(allocation))
        if not is_head and self._rebook(allocation) and desk.queue:
            desk.wakes.freed(node)

    def _rebook(self, allocation: AllocationId) -> bool:
        """An allocation is booked until its agent reports it gone (LAW 3), as the ledger says. True when freed."""
        desk = self.desk
        freed = False
        entry = desk.world.ledger.get(allocation)
        gone = isinstance(desk.world.slices.get(allocation), SliceGone)
        self.unowned.look(desk, allocation)
        if entry is None:
            if allocation not in desk.assumed:
                freed = desk.fleet.unbook(allocation)
            if gone:
                desk.strays[allocation] = None
            if allocation in desk.world.slices:
                desk.changed_requests[desk.world.slices[allocation].request] = None
            self.orphans.look_at_answer(desk, request_named(allocation))
        elif isinstance(entry, Closed) or gone:
            freed = desk.fleet.unbook(allocation)
            self.orphans.look_at_answer(desk, request_of(entry))
        else:
            booking = desk.counted(entry)
            freed = desk.fleet.book(booking)
            if freed:  # what waits for its turn was decided beside another size, or says one
                desk.take_back(subjects.ledger_filter(booking.node))
            look_at_booked(desk, allocation, entry)
            if desk.world.quotas:
                look_at_excess(desk, allocation)
        self.orphans.look(desk, allocation)
        if entry is not None:
            desk.changed_requests[request_of(entry)] = None
        note_victim(desk, allocation, entry)
        if is_about_promises(desk, allocation, entry):
            look_at_promises(desk, allocation)
            count_promises(desk, allocation)
            count_move(desk, allocation)
        return freed

    def _caught_up(self, event: ReadingCaughtUp) -> None:
        """A stream was read completely: look at everything once, since a missing value is a fact too."""
        desk = self.desk
        if event.stream is Stream.STATE:
            desk.unheard.was_read()
        kept = {subject: None for subject in desk.world.sequences if desk.outbox.knows(subject)}
        for address in desk.world.catch_up(event.stream, kept):
            self._changed(address)
        if event.stream is Stream.BOOK:
            for request in desk.world.bindings:  # a server that lags tells nothing of the newest
                self.unbacked.look(desk, request)
        if desk.world.settled:
            for allocation in dict.fromkeys((*desk.world.ledger, *desk.fleet.booked(), *desk.world.slices)):
                self._rebook(allocation)
            everything = (*desk.world.requests, *desk.world.bindings, *desk.world.allocations_of, *desk.world.waiting)
            desk.changed_requests |= dict.fromkeys(everything)
            nodes = (*desk.world.inventories, *desk.world.news, *desk.world.removed, *desk.world.hosts)
            desk.changed_nodes |= dict.fromkeys(nodes)
            desk.removals.begin_anew()
            desk.wakes.everything()
            if desk.outbox.paused:
                self._forget_who_has_gone()

    def _forget_who_has_gone(self) -> None:
        """A standby never reconciles, so drop requests without any message; otherwise the set leaks."""
        desk = self.desk
        for allocation in [each for each in desk.strays if each not in desk.world.slices]:
            del desk.strays[allocation]
        for request in [each for each in desk.changed_requests if not desk.world.tells_of(each)]:
            del desk.changed_requests[request]
            settle_request(desk, request)

    def _report(self, reports: list[OutboxReport]) -> None:
        for report in reports:
            match report:
                case Settled():
                    self._settled(report)
                case Contested():
                    # another allocator published why the request waits: one message is enough
                    self.desk.outbox.forget(report.address)

    def _settled(self, settled: Settled) -> None:
        desk = self.desk
        desk.settle(settled.operation)
        entry = desk.outbox.current(settled.address)
        if settled.landed and entry is not None:
            desk.world.wrote(entry, settled.address)
            if desk.over_quota.unread:
                was_read(desk)
        message = settled.message
        if isinstance(message, Grant) and not message.adopted:
            desk.end_assuming(message.booking)
            if not settled.landed:
                desk.roll_back(message)
            elif desk.adjustments.on_their_way:
                landed(desk, message)
        if isinstance(message, NodeOpened) and settled.landed:
            desk.reopening.landed(message, desk.now)
        self._changed(settled.address)
        if isinstance(message, NodeClosed) and settled.landed:
            desk.unheard.closed_it(message.node)
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

    def _decide(self, *, ticked: bool) -> None:
        """All changes were looked at: offer free places in turn; on a tick, also do what depends on time."""
        desk = self.desk
        if ticked:
            end_pauses(desk)
            refresh_pending(desk)
        serve(desk)
        if ticked:
            promise_places(desk)
            move_pods_back(desk)
            defragment(desk)
            ask_for_nodes(desk)

    def _time_passed(self, now: float) -> list[Instruction]:
        desk = self.desk
        self.orphans.tick(desk, now)
        self.unowned.tick(desk, now)
        look_again(desk)
        look_at_evictions(desk)
        time_passed_for_groups(desk)
        desk.changed_nodes |= dict.fromkeys(desk.removals.due(now, desk.rules.removed_grace_s))
        desk.changed_nodes |= dict.fromkeys(desk.reopening.waiting())
        desk.changed_nodes |= dict.fromkeys(desk.unentered.due(now, desk.rules.orphan_grace_s))
        due = (*desk.overs.due(now), *desk.orders.due(now), *desk.unrefused.due(now))
        desk.changed_requests |= dict.fromkeys((*desk.differing, *due))
        self.ensuring.begin_anew(desk.world.incarnation, desk.world.news)
        read_again = [ReadAgain(Stream.BOOK)] if self.unbacked.must_read_again(desk, now) else []
        wanted = desk.unheard.must_read_again(), self.orphans.must_read_again()
        read_again += [ReadAgain(Stream.STATE)] if any(wanted) else []
        to_ask = self.ensuring.to_ask(now, desk.rules.ensure_retry_s)
        return [*(EnsureAgent(node) for node in to_ask), *read_again]

    def _look_at_victims(self) -> None:
        """Update which pods may be evicted; also on standby."""
        desk = self.desk
        left = desk.rules.settle_batch if desk.world.settled else 0
        while left > 0 and desk.sparing.look:
            left -= 1
            look_at_victim(desk, desk.sparing.look.popitem(last=False)[0])

    def _settle(self) -> bool:
        """
        Look at what changed until nothing more follows, nodes before requests, within one event's budget.

        False when something is left: then no request gets a place before it was looked at.
        """
        desk = self.desk
        left = desk.rules.settle_batch
        while desk.changed_requests or desk.changed_nodes or desk.strays or desk.gangs.dirty:
            if left == 0:
                return False
            left -= 1
            if desk.strays:
                settle_stray(desk, desk.strays.popitem(last=False)[0])
            elif desk.changed_nodes:
                settle_node(desk, desk.changed_nodes.popitem(last=False)[0])
            elif desk.changed_requests:
                settle_request(desk, desk.changed_requests.popitem(last=False)[0])
            else:
                settle_group(desk, desk.gangs.dirty.popitem(last=False)[0])
        return not desk.sparing.look
