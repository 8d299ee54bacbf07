"""What a changed fact concerns: it marks what has to be reconciled, and keeps the bookings of the cluster up to date.
Nothing is decided here. The cycle (`core.cycle`) follows, unless a stream is being reread."""

from itertools import islice

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import ReadingCaughtUp, Stream
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import AllocationId, NodeName, RequestId, SourceName, request_named
from sluice.contracts.messages import Closed, SliceGone
from sluice_allocator.core import recheck
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.moves.move import count_move
from sluice_allocator.core.placement.affinity.peers import peer_of
from sluice_allocator.core.preemption.candidates import (
    look_at_guarantee,
    look_at_those_who_wait_for,
    look_at_victims_of,
    note_victim,
)
from sluice_allocator.core.preemption.drain import look_at_drained
from sluice_allocator.core.quotas.overcommit import look_at_binding, look_at_booked, look_at_excess
from sluice_allocator.core.quotas.quota import limits_changed, source_has_spoken
from sluice_allocator.core.quotas.retry import look_at_held
from sluice_allocator.core.request.reconcile import reconcile_request
from sluice_allocator.core.reservations.reservation import count_promises, is_about_promises, look_at_promises
from sluice_allocator.core.state.bus_cache import request_of
from sluice_allocator.core.state.conditions import Condition


def value_changed(ctx: SchedulerContext, address: Address) -> None:
    """The value at this address changed or is gone: mark what has to be looked at again."""
    match address.kind:  # what comes most often first
        case "ledger" | "slice":
            _entry_changed(
                ctx, NodeName(address.key[0]), AllocationId(address.key[1]), is_entry=address.kind == "ledger"
            )
        case "request" | "waiting" | "eviction" | "evicted":
            _request_changed(ctx, RequestId(address.key[0]))
            if address.kind == "evicted":
                look_at_those_who_wait_for(ctx, RequestId(address.key[0]))
        case "binding":
            _request_changed(ctx, RequestId(address.key[0]))
            look_at_binding(ctx, RequestId(address.key[0]))
            recheck.watch_binding(ctx, RequestId(address.key[0]))
        case "node" | "inventory" | "host" | "cordon":
            node = NodeName(address.key[0])
            ctx.changed_nodes[node] = None
            if address.kind == "cordon":
                look_at_drained(ctx, node)
            if address.kind == "node":
                _node_spoke(ctx, node)
        case "source":
            source_has_spoken(ctx, SourceName(address.key[0]))
        case "quota":
            limits_changed(ctx, address.key[0])
            look_at_guarantee(ctx, address.key[0])


def _node_spoke(ctx: SchedulerContext, node: NodeName) -> None:
    if node in ctx.facts.removed:
        ctx.conditions.clear(Condition.REMOVAL_UNREAD, node)
    elif ctx.conditions.clear(Condition.NODE_REMOVED, node):
        ctx.take_back(subjects.ledger_filter(node))  # it lives: what was to be closed with it is not sent any more
        there = (request_of(ctx.facts.ledger[a]) for a in ctx.facts.allocations_on.get(node, ()))
        ctx.changed_requests |= dict.fromkeys(there)


def _request_changed(ctx: SchedulerContext, request: RequestId) -> None:
    ctx.changed_requests[request] = None
    asked = ctx.facts.wanted(request)
    if request in ctx.facts.requests:
        ctx.cluster.peers.know(request, peer_of(asked) if asked is not None else None)
    else:
        ctx.cluster.peers.lose_sight(request)
    look_at_held(ctx, request, asked)
    if ctx.gangs.member_of:
        ctx.gangs.touch(request)
    recheck.watch_request(ctx, request)
    look_at_victims_of(ctx, request)


def _entry_changed(ctx: SchedulerContext, node: NodeName, allocation: AllocationId, *, is_entry: bool) -> None:
    """An entry of a node's ledger changed, or its slice's status; the head of the ledger counts as an entry."""
    is_head = allocation == "head"
    if is_head:
        recheck.watch_head(ctx, node)
    elif ctx.gangs.member_of:
        ctx.gangs.touch(request_named(allocation))
    counts = is_entry or isinstance(ctx.facts.slices.get(allocation), SliceGone | None)  # of slices: which are gone
    is_adopted_next = node in ctx.unopened and counts and not ctx.undecided_under.get(subjects.ledger_filter(node))
    if is_head or is_adopted_next or node in ctx.facts.removed or ctx.facts.unreadable:
        ctx.changed_nodes[node] = None
    if not is_head and (ctx.over_quota.unbooked.claims_of or allocation not in ctx.facts.ledger):
        request = request_named(allocation)
        look_at_held(ctx, request, ctx.facts.wanted(request))
    if not is_head and rebook(ctx, allocation) and ctx.queue:
        ctx.offers.freed(node)


def rebook(ctx: SchedulerContext, allocation: AllocationId) -> bool:
    """An allocation is booked until its agent reports it gone (LAW 3), as the ledger says. True when freed."""
    freed = False
    entry = ctx.facts.ledger.get(allocation)
    request = request_of(entry) if entry is not None else request_named(allocation)
    gone = isinstance(ctx.facts.slices.get(allocation), SliceGone)
    recheck.watch_status(ctx, allocation)
    if entry is None:
        if allocation not in ctx.assumed:
            freed = ctx.cluster.unbook(allocation)
        if gone:
            ctx.strays[allocation] = None
        if allocation in ctx.facts.slices:
            ctx.changed_requests[ctx.facts.slices[allocation].request] = None
        recheck.watch_answer(ctx, request)
    elif isinstance(entry, Closed) or gone:
        freed = ctx.cluster.unbook(allocation)
        recheck.watch_answer(ctx, request)
    else:
        booking = ctx.counted(entry)
        freed = ctx.cluster.book(booking)
        if freed:  # what waits for its turn was decided beside another size, or says one
            ctx.take_back(subjects.ledger_filter(booking.node))
        look_at_booked(ctx, allocation, entry)
        if ctx.facts.quotas:
            look_at_excess(ctx, allocation)
    recheck.watch_grant(ctx, allocation)
    if entry is not None:
        ctx.changed_requests[request] = None
    note_victim(ctx, allocation, entry)
    if is_about_promises(ctx, allocation, entry):
        look_at_promises(ctx, allocation)
        count_promises(ctx, allocation)
        count_move(ctx, allocation)
    return freed


def caught_up(ctx: SchedulerContext, event: ReadingCaughtUp) -> None:
    """A stream was read completely: look at everything once, since a missing value is a fact too."""
    if event.stream is Stream.STATE:
        ctx.conditions.end_older(Condition.REMOVAL_UNREAD, Stream.STATE)
    ctx.facts.catch_up(event.stream, ctx.outbox.knows)
    take_in_reading(ctx)


def take_in_reading(ctx: SchedulerContext) -> None:
    """Forget what a reading did not show; after both streams book what they show. Within one event's budget."""
    facts = ctx.facts
    for subject in list(islice(facts.gone, ctx.rules.book_batch)):
        value_changed(ctx, facts.forget(subject))
    if facts.gone:
        return
    if facts.lost_unknown:
        facts.find_lost()
        ctx.conditions.clear_all(Condition.BOUND_WITHOUT_ENTRY)  # the reading has decided about all
    if facts.is_whole and not facts.settled:  # else an end of no reading, which shows nothing
        if not facts.unbooked and not facts.unlisted:
            facts.unbooked.extend(facts.ledger)
            facts.unlisted = 2
        _book_what_was_read(ctx)


LISTED_PER_BOOKING = 64
"""So many allocations are looked up in the time in which one is booked."""


def _book_what_was_read(ctx: SchedulerContext) -> None:
    facts = ctx.facts
    left = ctx.rules.book_batch
    while facts.unbooked or facts.unlisted:
        if left < 0 or (facts.unbooked and left == 0):
            return
        if facts.unbooked:
            rebook(ctx, facts.unbooked.popleft())
            left -= 1
        else:
            others = ctx.cluster.booked() if facts.unlisted == 2 else facts.slices
            facts.unlisted -= 1
            facts.unbooked.extend(each for each in others if each not in facts.ledger)
            left -= len(others) // LISTED_PER_BOOKING
    if not facts.all_new.get(Stream.BOOK):  # otherwise all of it was marked, and nothing has been looked at since
        ctx.changed_requests |= dict.fromkeys((*facts.bindings, *facts.allocations_of))
    if not facts.all_new.get(Stream.STATE):
        ctx.changed_requests |= dict.fromkeys((*facts.requests, *facts.waiting))
        ctx.changed_nodes |= dict.fromkeys((*facts.inventories, *facts.news, *facts.removed, *facts.hosts))
    facts.all_new.clear()
    facts.settled = True
    ctx.conditions.clear_all(Condition.NODE_REMOVED)
    ctx.offers.everything()
    if ctx.outbox.paused:
        _forget_who_has_gone(ctx)


def _forget_who_has_gone(ctx: SchedulerContext) -> None:
    """A standby never reconciles, so drop requests without any message; otherwise the set leaks."""
    for allocation in [each for each in ctx.strays if each not in ctx.facts.slices]:
        del ctx.strays[allocation]
    gone = ctx.facts.not_told_of(ctx.changed_requests)
    for request in [each for each in ctx.changed_requests if each in gone]:
        del ctx.changed_requests[request]
        reconcile_request(ctx, request)
