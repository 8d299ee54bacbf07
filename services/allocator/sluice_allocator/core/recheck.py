"""What is looked at again as time passes: `RULES` has one rule for each condition, and what follows when it has lasted.
Facts make a condition observed (`watch_*`); a tick looks at a bounded number of each kind in turn."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import AllocationId, NodeName, RequestId, SourceName
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.request.await_node import await_node
from sluice_allocator.core.request.bind import release
from sluice_allocator.core.request.entries import revoke
from sluice_allocator.core.state.bus_cache import named_by
from sluice_allocator.core.state.conditions import Condition, Watched
from sluice_allocator.core.state.facts import answer_without_slice, doubtful_ticket, is_open, is_rejected, may_come_yet

_K = TypeVar("_K", bound=str)


@dataclass(frozen=True, slots=True)
class Rule(Generic[_K]):
    """When a condition is acted on."""

    condition: Condition
    then: Callable[[SchedulerContext, _K], None]
    holds: Callable[[SchedulerContext, _K, Watched], bool | None] = lambda *_: True
    """Whether it is certain now; then `orphan_grace_s` begins, where the observer named no time. None: it is over."""
    confirmed_by: Stream | None = None  # the stream that has to be read completely after the grace
    once: bool = False  # whether it then stays, mature, without being looked at again


def recheck(ctx: SchedulerContext) -> None:
    """Time passed: act on conditions that have lasted, among a bounded number of each kind."""
    conditions = ctx.conditions
    for rule in RULES:
        for key in conditions.in_turn(rule.condition, ctx.rules.recheck_batch):
            watched = conditions.get(rule.condition, key)
            holds = rule.holds(ctx, key, watched) if watched is not None else None
            if watched is None or holds is None:
                conditions.clear(rule.condition, key)
            elif not holds:
                watched.due = watched.reading = None
            elif watched.due is None:
                watched.due = ctx.now + ctx.rules.orphan_grace_s
            elif ctx.now >= watched.due:
                if rule.confirmed_by is not None and not conditions.confirm(watched, rule.confirmed_by):
                    continue
                if rule.once:
                    conditions.mature(rule.condition, key)
                rule.then(ctx, key)


# -- grants and bindings without a request (PROTOCOL §6) ----------------------------------------------------------


def source_synced(ctx: SchedulerContext, source: SourceName) -> None:
    """A source published that it is complete, which holds if as many live requests are known here as it counts."""
    synced = ctx.facts.sources.get(source)
    if synced is not None and len(ctx.facts.requested_by.get(source, ())) >= synced.count:
        ctx.conditions.syncs[source] += 1


def watch_request(ctx: SchedulerContext, request: RequestId) -> None:
    """A request appeared or went. A standby looks no further: it would count an old sync as a new one."""
    for allocation in ctx.facts.allocations_of.get(request, ()):
        watch_grant(ctx, allocation)
    watch_answer(ctx, request)


def watch_binding(ctx: SchedulerContext, request: RequestId) -> None:
    """A binding changed. An allocator that binds has read the request: an orphan's time starts over."""
    watch_entry(ctx, request)
    bound = ctx.facts.bindings.get(request)
    if isinstance(bound, msg.Bound) and ctx.conditions.clear(Condition.GRANT_WITHOUT_REQUEST, bound.allocation):
        watch_grant(ctx, bound.allocation)


def watch_grant(ctx: SchedulerContext, allocation: AllocationId) -> None:
    """A grant has no request, or a rejected one, or has one again. One that cannot be read counts as one."""
    entry, conditions = ctx.facts.ledger.get(allocation), ctx.conditions
    if isinstance(entry, msg.Grant) and _is_unrequested(ctx, entry.booking):
        mark = conditions.syncs[entry.booking.source]
        conditions.observe(Condition.GRANT_WITHOUT_REQUEST, allocation, mark=mark)
    elif conditions.clear(Condition.GRANT_WITHOUT_REQUEST, allocation) and isinstance(entry, msg.Grant):
        address = subjects.ledger(entry.booking.node, allocation)
        if ctx.outbox.busy(address):
            ctx.take_back(address.guard)  # a Revoke that waits for its turn is not sent


def watch_answer(ctx: SchedulerContext, request: RequestId) -> None:
    """Likewise a binding without a slice, and a `Released` that its source has not read (it would have ended)."""
    source = _source_of_answer(ctx, request)
    if source is None:
        ctx.conditions.clear(Condition.ANSWER_WITHOUT_REQUEST, request)
    else:
        ctx.conditions.observe(Condition.ANSWER_WITHOUT_REQUEST, request, mark=ctx.conditions.syncs[source])


def _is_unrequested(ctx: SchedulerContext, booking: msg.Booking) -> bool:
    request = booking.request
    return not ctx.facts.speaks_of(request) or is_rejected(ctx.facts.requests.get(request), booking)


def _source_of_answer(ctx: SchedulerContext, request: RequestId) -> SourceName | None:
    """The source that would own the request of a binding; None when there is a request, or no binding to end."""
    if request not in ctx.facts.bindings:
        return None
    asked, is_released = ctx.facts.requests.get(request), isinstance(ctx.facts.bindings[request], msg.Released)
    if isinstance(asked, msg.RequestWithdrawn) and not asked.closing and is_released:
        return asked.source
    answer = answer_without_slice(ctx, request) if not ctx.facts.speaks_of(request) else None
    return answer.source if answer is not None else None


def _is_orphan(ctx: SchedulerContext, allocation: AllocationId, watched: Watched) -> bool | None:
    """Agents report before sources have listed: certain only when its source synced after it was found."""
    entry = ctx.facts.granted(allocation)
    if entry is None or not _is_unrequested(ctx, entry.booking):
        return None
    return ctx.conditions.syncs[entry.booking.source] > watched.mark


def _is_orphaned_answer(ctx: SchedulerContext, request: RequestId, watched: Watched) -> bool | None:
    source = _source_of_answer(ctx, request)
    return ctx.conditions.syncs[source] > watched.mark if source is not None else None


def _revoke_orphan(ctx: SchedulerContext, allocation: AllocationId) -> None:
    entry = ctx.facts.ledger[allocation]
    assert isinstance(entry, msg.Grant)
    if not ctx.outbox.busy(subjects.ledger(entry.booking.node, allocation)):
        revoke(ctx, entry, "orphan: its source no longer requests it")


def _end_answer(ctx: SchedulerContext, request: RequestId) -> None:
    """Publish `Released` (again) after the grants are gone, never before; again after as much time, if unread."""
    if request in ctx.committing or ctx.outbox.busy(subjects.binding(request)):
        return
    answer = ctx.facts.bindings.get(request)
    if isinstance(answer, msg.Bound) and may_come_yet(ctx, answer.allocation):
        return
    if not all(isinstance(entry, msg.Closed) for entry in ctx.facts.entries_of(request).values()):
        return
    if await_node(ctx, request, named_by(answer)) is None:
        release(ctx, request, answer.cause if isinstance(answer, msg.Released) else "its request is gone")
        ctx.conditions.clear(Condition.ANSWER_WITHOUT_REQUEST, request)


# -- statuses without a slice (PROTOCOL §8) -----------------------------------------------------------------------


def watch_status(ctx: SchedulerContext, allocation: AllocationId) -> None:
    """An agent's status has no ledger entry, or has one. The broker was wiped, the agent published its status again,
    and before its node was adopted its disk was wiped as well: the request would wait for that slice without end."""
    if allocation in ctx.facts.slices or ctx.conditions.young(Condition.STATUS_WITHOUT_SLICE):
        ctx.conditions.observe(Condition.STATUS_WITHOUT_SLICE, allocation, holds=_has_status_only(ctx, allocation))


def _has_status_only(ctx: SchedulerContext, allocation: AllocationId) -> bool:
    status = ctx.facts.slices.get(allocation)
    return not (status is None or isinstance(status, msg.SliceGone) or allocation in ctx.facts.ledger)


def _is_nowhere(ctx: SchedulerContext, allocation: AllocationId, _watched: Watched) -> bool | None:
    """Whether the node's current agent reported everything, and this slice is not among it."""
    if not _has_status_only(ctx, allocation):
        return None
    status, node = ctx.facts.slices[allocation], ctx.facts.slice_nodes[allocation]
    inventory, news = ctx.facts.inventories.get(node), ctx.facts.news.get(node)
    if inventory is None or news is None or inventory.stale or not is_open(ctx, node):
        return False
    if allocation in ctx.facts.on_their_way or inventory.snapshot.generation < news.generation:
        return False
    is_wanted = not isinstance(ctx.facts.requests.get(status.request), msg.RequestWithdrawn)
    if is_wanted and doubtful_ticket(ctx, msg.Held(node=node, allocation=allocation)):
        return False  # a process may be using it (ADR 0033)
    return allocation not in ctx.facts.reported_of.get(status.request, {})


def _revoke_status(ctx: SchedulerContext, allocation: AllocationId) -> None:
    """End the status: its agent answers that the slice was never made. It books no place, as it is nowhere."""
    status, node = ctx.facts.slices[allocation], ctx.facts.slice_nodes[allocation]
    address = subjects.ledger(node, allocation)
    if ctx.outbox.busy(address):
        return
    asked, living = ctx.facts.requests.get(status.request), ctx.facts.wanted(status.request)
    booking = msg.Booking(
        allocation=allocation,
        request=status.request,
        request_revision=asked.revision if asked is not None else 1,
        source=asked.source if asked is not None else SourceName(""),
        owner=living.owner if living is not None else status.request,
        namespace=living.namespace if living is not None else "",
        name=living.name if living is not None else "",
        node=node,
        devices=(),
        resource_claims=living.resource_claims if living is not None else (),
    )
    life, cause = ctx.facts.incarnation, "neither the ledger nor its node's agent has it"
    order = msg.Revoke(revision=status.revision + 1, incarnation=life, booking=booking, cause=cause)
    ctx.commit(address, order, status.request)


def watch_entry(ctx: SchedulerContext, request: RequestId) -> None:
    """A bound slice has no ledger entry, or has one. A Bound over an empty subject may land in a broker that was wiped
    meanwhile: the whole book is read again, and what it does not show is lost."""
    holds, due = _has_no_entry(ctx, request), ctx.now + ctx.rules.orphan_grace_s
    ctx.conditions.observe(Condition.BOUND_WITHOUT_ENTRY, request, holds=holds, due=due)


def _has_no_entry(ctx: SchedulerContext, request: RequestId) -> bool:
    bound, facts = ctx.facts.bindings.get(request), ctx.facts
    return isinstance(bound, msg.Bound) and bound.allocation not in facts.ledger and bound.allocation not in facts.lost


def _read_book(ctx: SchedulerContext, _request: RequestId) -> None:
    ctx.conditions.to_read[Stream.BOOK] = None
    ctx.conditions.clear_all(Condition.BOUND_WITHOUT_ENTRY)  # the reading decides about all


def _stop_waiting(ctx: SchedulerContext, node: NodeName) -> None:
    ctx.changed_requests |= ctx.node_waits.release(node)


def watch_head(ctx: SchedulerContext, node: NodeName) -> None:
    """The head of a node's ledger changed. If it was closed for a removal that is not read here, STATE is read first:
    what is known of the node may lack what was made since, and its place would be given away."""
    is_unread = node in ctx.facts.closed_heads and node not in ctx.facts.removed
    ctx.conditions.clear(Condition.REMOVAL_UNREAD, node)
    ctx.conditions.observe(Condition.REMOVAL_UNREAD, node, holds=is_unread, mark=ctx.conditions.readings[Stream.STATE])


def consumer_answered(ctx: SchedulerContext, node: NodeName, *, made: bool) -> None:
    """The shell created a consumer, in the incarnation in which it was last asked for; or it could not."""
    watched = ctx.conditions.get(Condition.CONSUMER_MISSING, node)
    if watched is not None and watched.mark:
        watched.due = ctx.now + ctx.rules.ensure_retry_s
        if made:
            ctx.ensured[node] = ctx.facts.incarnation
            ctx.conditions.clear(Condition.CONSUMER_MISSING, node)


def _ask_for_consumer(ctx: SchedulerContext, node: NodeName) -> None:
    watched = ctx.conditions.get(Condition.CONSUMER_MISSING, node)
    assert watched is not None
    watched.due, watched.mark = math.inf, 1  # a fleet's take their turns: asked again after the answer only
    ctx.consumers_wanted.append(node)


RULES: tuple[Rule[Any], ...] = (
    Rule(Condition.GRANT_WITHOUT_REQUEST, _revoke_orphan, _is_orphan, confirmed_by=Stream.STATE),
    Rule(Condition.ANSWER_WITHOUT_REQUEST, _end_answer, _is_orphaned_answer, confirmed_by=Stream.STATE),
    Rule(Condition.STATUS_WITHOUT_SLICE, _revoke_status, _is_nowhere),
    Rule(Condition.BOUND_WITHOUT_ENTRY, _read_book, lambda ctx, request, _: _has_no_entry(ctx, request) or None),
    Rule(Condition.BINDING_DIFFERS, lambda ctx, request: ctx.changed_requests.setdefault(request), once=True),
    Rule(Condition.SLICE_WITHOUT_ENTRY, lambda ctx, node: ctx.changed_nodes.setdefault(node), once=True),
    Rule(Condition.NODE_NEVER_OPENED, _stop_waiting, once=True),
    Rule(Condition.NODE_REMOVED, lambda ctx, node: ctx.changed_nodes.setdefault(node), once=True),
    Rule(Condition.CONSUMER_MISSING, _ask_for_consumer),
)
"""Each condition once, except `REMOVAL_UNREAD`: a reading of STATE ends it."""
