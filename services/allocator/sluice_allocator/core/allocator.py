"""The allocator's core: events in, instructions out. Events change facts (`core.changes`); one cycle reconciles what
these concern (`core.cycle`). Nothing is decided while a stream is being reread: partial facts mislead."""

from sluice.contracts.bus.events import BusEvent, Observed, ReadAgain, ReadingCaughtUp, ReadingStarted, Stream, Ticked
from sluice.contracts.ids import RunId, SourceName
from sluice.contracts.messages import Bound, Grant, NodeClosed
from sluice.contracts.outbox import Outbox, OutboxReport, Settled
from sluice_allocator.core.changes import caught_up, take_in_reading, value_changed
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.cycle import look_at_victims, run_cycle
from sluice_allocator.core.events import (
    AdjustAsked,
    AgentEnsured,
    AnswerAdjust,
    EnsureAgent,
    Event,
    Instruction,
    LeaseChanged,
)
from sluice_allocator.core.quotas.overcommit import note_read
from sluice_allocator.core.recheck import consumer_answered, source_synced
from sluice_allocator.core.resize.resize import ask, ask_again, landed
from sluice_allocator.core.state.conditions import Condition

WRITES = frozenset({"ledger", "binding", "waiting", "eviction", "pool"})  # the nouns that the allocator writes


class Allocator:
    """One of the allocators: guards make places and bindings unique. On standby until `LeaseChanged(held=True)`."""

    def __init__(self, run: RunId, rules: SchedulerConfig) -> None:
        self.ctx = SchedulerContext(run, rules, Outbox(run, WRITES))
        self.ctx.outbox.paused = True

    @property
    def unfinished(self) -> bool:
        """Whether anything is left to look at or to try. Any event continues it; `Continue` does nothing else."""
        facts, ctx = self.ctx.facts, self.ctx
        is_due = facts.settled and not ctx.outbox.paused and not ctx.nothing_else_to_do
        return facts.is_being_taken_in or is_due

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Handle one event; the only way in which anything changes."""
        ctx = self.ctx
        ctx.now = now
        own: list[Instruction] = []
        ticked = isinstance(event, Ticked)
        if isinstance(event, BusEvent):
            own = self._exchange(event, now)
        elif ticked:
            ctx.outbox.tick(now)
        else:
            self._told(event)
        if ctx.sparing.look:
            look_at_victims(ctx)
        if ctx.facts.settled and not ctx.outbox.paused:
            run_cycle(ctx, ticked=ticked)
            own += self._asks() if ticked else []
        elif ctx.facts.is_being_taken_in:
            take_in_reading(ctx)
        if ctx.adjustments.again:
            ask_again(ctx)
        if ctx.adjustments.answers:
            own += [AnswerAdjust(number, outcome) for number, outcome in ctx.adjustments.answers]
            ctx.adjustments.answers.clear()
        return [*own, *ctx.outbox.drain()]

    def _told(self, event: Event) -> None:
        """The shell has told something else than what is on the bus."""
        if isinstance(event, LeaseChanged):
            self._lease(held=event.held)
        elif isinstance(event, AgentEnsured):
            consumer_answered(self.ctx, event.node, made=event.made)
        elif isinstance(event, AdjustAsked):
            ask(self.ctx, event.number, event.change)

    def _asks(self) -> list[Instruction]:
        ctx = self.ctx
        asks: list[Instruction] = [EnsureAgent(node) for node in ctx.consumers_wanted]
        asks += [ReadAgain(stream) for stream in ctx.conditions.to_read]
        ctx.consumers_wanted.clear()
        ctx.conditions.to_read.clear()
        return asks

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
                ctx.conditions.clear_all(Condition.NODE_NEVER_OPENED)
                ctx.conditions.clear_all(Condition.CONSUMER_MISSING)
        self._report(ctx.outbox.handle(event, now))
        if isinstance(event, ReadingCaughtUp):
            caught_up(ctx, event)
        if not (stale and isinstance(event, ReadingStarted)):
            return []
        return [ReadAgain(Stream.STATE if event.stream is Stream.BOOK else Stream.BOOK)]

    def _observed(self, event: Observed) -> None:
        ctx = self.ctx
        address = ctx.facts.observe(event)
        if ctx.over_quota.unread:
            note_read(ctx)
        if address is None:
            return
        mine = event.entry.operation in ctx.undecided
        if address.kind in {"ledger", "binding"} and not mine:
            ctx.take_back(address.guard)
        value_changed(ctx, address)
        if address.kind == "source" and ctx.facts.is_whole:
            source_synced(ctx, SourceName(address.key[0]))

    def _report(self, reports: list[OutboxReport]) -> None:
        for report in reports:
            if isinstance(report, Settled):
                self._settled(report)
            else:  # another allocator published why the request waits: one message is enough
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
        value_changed(ctx, settled.address)
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
