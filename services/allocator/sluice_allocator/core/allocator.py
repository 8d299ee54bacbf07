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
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.events import (
    AdjustAsked,
    AgentEnsured,
    AnswerAdjust,
    Continue,
    EnsureAgent,
    Event,
    Instruction,
    LeaseChanged,
)
from sluice_allocator.core.gangs.reconcile import reconcile_group, time_passed_for_groups
from sluice_allocator.core.moves.defragment import defragment
from sluice_allocator.core.moves.move import count_move, move_pods_back
from sluice_allocator.core.node.reconcile import head_landed, reconcile_node
from sluice_allocator.core.placement import peer_of
from sluice_allocator.core.preemption.candidates import (
    look_at_evictions,
    look_at_guarantee,
    look_at_those_who_wait_for,
    look_at_victim,
    look_at_victims_of,
    note_victim,
)
from sluice_allocator.core.preemption.drain import look_at_drained
from sluice_allocator.core.quotas.overcommit import look_at_binding, look_at_booked, look_at_excess, note_read
from sluice_allocator.core.quotas.quota import limits_changed, source_has_spoken
from sluice_allocator.core.quotas.unadopted_usage import look_at_held
from sluice_allocator.core.recheck import (
    consumer_made,
    recheck,
    source_synced,
    watch_answer,
    watch_binding,
    watch_consumer,
    watch_entry,
    watch_grant,
    watch_head,
    watch_request,
    watch_status,
)
from sluice_allocator.core.request.entries import settle_stray
from sluice_allocator.core.request.reconcile import reconcile_request
from sluice_allocator.core.request.resting import note_taken_back
from sluice_allocator.core.reservations.reservation import (
    count_promises,
    is_about_promises,
    look_at_promises,
)
from sluice_allocator.core.reservations.reserve import promise_places
from sluice_allocator.core.resize.resize import ask, ask_again, landed
from sluice_allocator.core.serve.offers import end_pauses, refresh_pending, serve
from sluice_allocator.core.state.bus_cache import request_of
from sluice_allocator.core.state.conditions import Condition

WRITES = frozenset({"ledger", "binding", "waiting", "eviction"})
"""The nouns that the allocator writes."""


class Allocator:
    """
    One allocator. Several may work at once: the node's guard makes a place unique, the binding's guard a request.

    It starts on standby and becomes active with `LeaseChanged(held=True)`.
    """

    def __init__(self, run: RunId, rules: SchedulerConfig) -> None:
        """Start without facts."""
        self.ctx = SchedulerContext(run, rules, Outbox(run, WRITES))
        self.ctx.outbox.paused = True

    @property
    def unfinished(self) -> bool:
        """Whether anything is left to look at or to try. Any event continues it; `GoOn` does nothing else."""
        return self._works and not self.ctx.nothing_else_to_do

    @property
    def _works(self) -> bool:
        return self.ctx.facts.settled and not self.ctx.outbox.paused

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Handle one event; the only way in which anything changes."""
        ctx = self.ctx
        ctx.now = now
        own: list[Instruction] = []
        ticked = isinstance(event, Ticked)
        if isinstance(event, (LeaseChanged, AgentEnsured, AdjustAsked, Continue)):
            self._told(event)
        elif isinstance(event, Ticked):
            ctx.outbox.tick(now)
        else:
            own = self._exchange(event, now)
        if ctx.sparing.look:
            self._look_at_victims()
        if self._works:
            if ticked:
                own += self._time_passed()
            if self._settle():
                self._decide(ticked=ticked)
        if ctx.adjustments.again:
            ask_again(ctx)
        if ctx.adjustments.answers:
            own += [AnswerAdjust(number, outcome) for number, outcome in ctx.adjustments.take_answers()]
        return [*own, *ctx.outbox.drain()]

    def _told(self, event: LeaseChanged | AgentEnsured | AdjustAsked | Continue) -> None:
        """Handle an event of the shell itself."""
        match event:
            case LeaseChanged():
                self._lease(held=event.held)
            case AgentEnsured():
                consumer_made(self.ctx, event.node)
            case AdjustAsked():
                ask(self.ctx, event.number, event.change)
            case Continue():
                pass

    # -- facts ----------------------------------------------------------------------------------------------------

    def _exchange(self, event: BusEvent, now: float) -> list[Instruction]:
        ctx = self.ctx
        if isinstance(event, Observed):
            reports = ctx.outbox.handle(event, now)
            self._observed(event)  # before the reports: whether a value is ours is known as long as it is undecided
            self._report(reports)
            return []
        stale = False
        if isinstance(event, ReadingStarted):
            ctx.take_back_all()  # guards may have started over; what was not sent is decided on what the reading shows
            before = ctx.facts.incarnation
            stale = ctx.facts.start_reading(event)
            ctx.conditions.readings[event.stream] += 1
            if ctx.facts.incarnation != before:
                ctx.conditions.clear_all(Condition.NODE_NOT_ADOPTED)
                ctx.conditions.clear_all(Condition.CONSUMER_MISSING)
        self._report(ctx.outbox.handle(event, now))
        if isinstance(event, ReadingCaughtUp):
            self._caught_up(event)
        if not (stale and isinstance(event, ReadingStarted)):
            return []
        return [ReadAgain(Stream.STATE if event.stream is Stream.BOOK else Stream.BOOK)]

    def _observed(self, event: Observed) -> None:
        address = self.ctx.facts.observe(event)
        if self.ctx.over_quota.unread:
            note_read(self.ctx)
        if address is None:
            return
        mine = event.entry.operation in self.ctx.undecided
        if address.kind in {"ledger", "binding"} and not mine:
            self.ctx.take_back(address.guard)
            note_taken_back(self.ctx, event.entry.message)
        self._changed(address)
        if address.kind == "source" and self.ctx.facts.settled:
            source_synced(self.ctx, SourceName(address.key[0]))

    def _changed(self, address: Address) -> None:
        """The value at this address changed or is gone: mark what has to be looked at again."""
        ctx = self.ctx
        match address.kind:
            case "request" | "waiting" | "eviction" | "evicted":
                self._request_changed(RequestId(address.key[0]))
                if address.kind == "evicted":
                    look_at_those_who_wait_for(ctx, RequestId(address.key[0]))
            case "binding":
                self._request_changed(RequestId(address.key[0]))
                look_at_binding(ctx, RequestId(address.key[0]))
                watch_binding(ctx, RequestId(address.key[0]))
            case "ledger" | "slice":
                self._entry_changed(NodeName(address.key[0]), AllocationId(address.key[1]))
            case "node" | "inventory" | "host" | "cordon":
                node = NodeName(address.key[0])
                ctx.changed_nodes[node] = None
                if address.kind == "cordon":
                    look_at_drained(ctx, node)
                if address.kind == "node":
                    self._heard_of(node)
            case "source":
                source_has_spoken(ctx, SourceName(address.key[0]))
            case "quota":
                limits_changed(ctx, address.key[0])
                look_at_guarantee(ctx, address.key[0])
            case _:
                pass

    def _heard_of(self, node: NodeName) -> None:
        """A node appeared, or is gone: its agent published, or was reported removed."""
        ctx = self.ctx
        watch_consumer(ctx, node)
        if node in ctx.facts.removed:
            ctx.conditions.clear(Condition.REMOVAL_UNREAD, node)
        elif ctx.conditions.clear(Condition.NODE_REMOVED, node):
            ctx.take_back(subjects.ledger_filter(node))  # it lives: what was to be closed with it is not sent any more
            there = (request_of(ctx.facts.ledger[a]) for a in ctx.facts.allocations_on.get(node, ()))
            ctx.changed_requests |= dict.fromkeys(there)

    def _request_changed(self, request: RequestId) -> None:
        self.ctx.changed_requests[request] = None
        asked = self.ctx.facts.requests.get(request)
        if asked is None:
            self.ctx.cluster.lose_sight(request)
        else:
            self.ctx.cluster.know(request, peer_of(asked) if isinstance(asked, AllocationRequested) else None)
        look_at_held(self.ctx, request)
        if self.ctx.gangs.member_of:
            self.ctx.gangs.touch(request)
        watch_request(self.ctx, request)
        look_at_victims_of(self.ctx, request)

    def _entry_changed(self, node: NodeName, allocation: AllocationId) -> None:
        """An entry of a node's ledger changed, or its slice's status; the head of the ledger counts as an entry."""
        ctx = self.ctx
        is_head = allocation == "head"
        if is_head:
            watch_head(ctx, node)
        if ctx.gangs.member_of:
            ctx.gangs.touch(request_named(allocation))
        if is_head or node in ctx.unopened or node in ctx.facts.removed or ctx.facts.unreadable:
            ctx.changed_nodes[node] = None
        if not is_head and (ctx.over_quota.unbooked.claims_of or allocation not in ctx.facts.ledger):
            look_at_held(ctx, request_named(allocation))
        if not is_head and self._rebook(allocation) and ctx.queue:
            ctx.offers.freed(node)

    def _rebook(self, allocation: AllocationId) -> bool:
        """An allocation is booked until its agent reports it gone (LAW 3), as the ledger says. True when freed."""
        ctx = self.ctx
        freed = False
        entry = ctx.facts.ledger.get(allocation)
        gone = isinstance(ctx.facts.slices.get(allocation), SliceGone)
        watch_status(ctx, allocation)
        if entry is None:
            if allocation not in ctx.assumed:
                freed = ctx.cluster.unbook(allocation)
            if gone:
                ctx.strays[allocation] = None
            if allocation in ctx.facts.slices:
                ctx.changed_requests[ctx.facts.slices[allocation].request] = None
            watch_answer(ctx, request_named(allocation))
        elif isinstance(entry, Closed) or gone:
            freed = ctx.cluster.unbook(allocation)
            watch_answer(ctx, request_of(entry))
        else:
            booking = ctx.counted(entry)
            freed = ctx.cluster.book(booking)
            if freed:  # what waits for its turn was decided beside another size, or says one
                ctx.take_back(subjects.ledger_filter(booking.node))
            look_at_booked(ctx, allocation, entry)
            if ctx.facts.quotas:
                look_at_excess(ctx, allocation)
        watch_grant(ctx, allocation)
        if entry is not None:
            ctx.changed_requests[request_of(entry)] = None
        note_victim(ctx, allocation, entry)
        if is_about_promises(ctx, allocation, entry):
            look_at_promises(ctx, allocation)
            count_promises(ctx, allocation)
            count_move(ctx, allocation)
        return freed

    def _caught_up(self, event: ReadingCaughtUp) -> None:
        """A stream was read completely: look at everything once, since a missing value is a fact too."""
        ctx = self.ctx
        if event.stream is Stream.STATE:
            ctx.conditions.end_older(Condition.REMOVAL_UNREAD, Stream.STATE)
        kept = {subject: None for subject in ctx.facts.sequences if ctx.outbox.knows(subject)}
        for address in ctx.facts.catch_up(event.stream, kept):
            self._changed(address)
        if event.stream is Stream.BOOK:
            for request in ctx.facts.bindings:  # a server that lags tells nothing of the newest
                watch_entry(ctx, request)
            for node in ctx.facts.news:
                watch_consumer(ctx, node)
        if ctx.facts.settled:
            for allocation in dict.fromkeys((*ctx.facts.ledger, *ctx.cluster.booked(), *ctx.facts.slices)):
                self._rebook(allocation)
            everything = (*ctx.facts.requests, *ctx.facts.bindings, *ctx.facts.allocations_of, *ctx.facts.waiting)
            ctx.changed_requests |= dict.fromkeys(everything)
            nodes = (*ctx.facts.inventories, *ctx.facts.news, *ctx.facts.removed, *ctx.facts.hosts)
            ctx.changed_nodes |= dict.fromkeys(nodes)
            ctx.conditions.clear_all(Condition.NODE_REMOVED)
            ctx.offers.everything()
            if ctx.outbox.paused:
                self._forget_who_has_gone()

    def _forget_who_has_gone(self) -> None:
        """A standby never reconciles, so drop requests without any message; otherwise the set leaks."""
        ctx = self.ctx
        for allocation in [each for each in ctx.strays if each not in ctx.facts.slices]:
            del ctx.strays[allocation]
        for request in [each for each in ctx.changed_requests if not ctx.facts.tells_of(each)]:
            del ctx.changed_requests[request]
            reconcile_request(ctx, request)

    def _report(self, reports: list[OutboxReport]) -> None:
        for report in reports:
            match report:
                case Settled():
                    self._settled(report)
                case Contested():
                    # another allocator published why the request waits: one message is enough
                    self.ctx.outbox.forget(report.address)

    def _settled(self, settled: Settled) -> None:
        ctx = self.ctx
        ctx.settle(settled.operation)
        entry = ctx.outbox.current(settled.address)
        if settled.landed and entry is not None:
            ctx.facts.wrote(entry, settled.address)
            if ctx.over_quota.unread:
                note_read(ctx)
        message = settled.message
        if isinstance(message, Grant) and not message.adopted:
            ctx.end_assuming(message.booking)
            if not settled.landed:
                ctx.roll_back(message)
            elif ctx.resizing:
                landed(ctx, message)
        if isinstance(message, NodeOpened) and settled.landed:
            head_landed(ctx, message)
        self._changed(settled.address)
        if isinstance(message, NodeClosed) and settled.landed:
            ctx.conditions.clear(Condition.REMOVAL_UNREAD, message.node)
        if isinstance(message, Bound) and not settled.landed:
            ctx.changed_requests[message.request] = None

    def _lease(self, *, held: bool) -> None:
        ctx = self.ctx
        ctx.outbox.paused = not held
        if not held:
            ctx.take_back_all()
            return
        ctx.changed_requests |= dict.fromkeys((*ctx.facts.requests, *ctx.facts.allocations_of))
        ctx.changed_nodes |= dict.fromkeys((*ctx.facts.inventories, *ctx.facts.removed))
        ctx.conditions.clear_all(Condition.NODE_REMOVED)
        ctx.offers.everything()

    # -- decisions ------------------------------------------------------------------------------------------------

    def _decide(self, *, ticked: bool) -> None:
        """All changes were looked at: offer free places in turn; on a tick, also do what depends on time."""
        ctx = self.ctx
        if ticked:
            end_pauses(ctx)
            refresh_pending(ctx)
        serve(ctx)
        if ticked:
            promise_places(ctx)
            move_pods_back(ctx)
            defragment(ctx)

    def _time_passed(self) -> list[Instruction]:
        ctx = self.ctx
        ctx.changed_requests |= dict.fromkeys(ctx.node_waits.longest_held(ctx.rules.pending_refresh_batch))
        recheck(ctx)
        look_at_evictions(ctx)
        time_passed_for_groups(ctx)
        asks: list[Instruction] = [EnsureAgent(node) for node in ctx.consumers_wanted]
        asks += [ReadAgain(stream) for stream in ctx.conditions.to_read]
        ctx.consumers_wanted.clear()
        ctx.conditions.to_read.clear()
        return asks

    def _look_at_victims(self) -> None:
        """Update which pods may be evicted; also on standby."""
        ctx = self.ctx
        left = ctx.rules.settle_batch if ctx.facts.settled else 0
        while left > 0 and ctx.sparing.look:
            left -= 1
            look_at_victim(ctx, ctx.sparing.look.popitem(last=False)[0])

    def _settle(self) -> bool:
        """
        Look at what changed until nothing more follows, nodes before requests, within one event's budget.

        False when something is left: then no request gets a place before it was looked at.
        """
        ctx = self.ctx
        left = ctx.rules.settle_batch
        while ctx.changed_requests or ctx.changed_nodes or ctx.strays or ctx.gangs.dirty:
            if left == 0:
                return False
            left -= 1
            if ctx.strays:
                settle_stray(ctx, ctx.strays.popitem(last=False)[0])
            elif ctx.changed_nodes:
                reconcile_node(ctx, ctx.changed_nodes.popitem(last=False)[0])
            elif ctx.changed_requests:
                reconcile_request(ctx, ctx.changed_requests.popitem(last=False)[0])
            else:
                reconcile_group(ctx, ctx.gangs.dirty.popitem(last=False)[0])
        return not ctx.sparing.look
