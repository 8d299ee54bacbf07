"""One request's life, derived from facts each time it is looked at (PROTOCOL §4). There are no stored states to fall
out of step: what the bus says of the request, its binding, its ledger entries and their slices decides what to want
next. So a restart, a skipped value, a second allocator and a wiped broker need no path of their own.

    asked, nothing granted                -> wait for a place
    granted and slice ready, not bound    -> Bound (the binding's guard makes the request unique)
    granted, but not the bound one        -> waived by its binding, then Revoke (surplus)
    refused, and would not be now         -> Waived (of no place: it waits like any other)
    bound, and declined by its source     -> Waived
    bound in another life of the bus,
      and its source has another slice    -> Bound, to what it has
    refused or rejected                   -> waived, then Revoke
    withdrawn or failed                   -> Revoke
    slice gone                            -> Closed
    withdrawn, nothing booked any more    -> Released"""

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, RequestId
from sluice.contracts.reasons import Refusal
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.gangs.gang import PartyStatus
from sluice_allocator.core.gangs.reconcile import know_gang, why_leave
from sluice_allocator.core.moves.move import is_kept, look_at_movable, take_over
from sluice_allocator.core.placement import alternative_place_requests, place_request_of, refuse
from sluice_allocator.core.queue.pending_queue import shape_of, singleton_shape
from sluice_allocator.core.request.await_node import await_node, say_that_it_is_in_doubt, say_that_it_waits
from sluice_allocator.core.request.bind import (
    Asked,
    bind_again,
    bindable,
    bound_of,
    follow_bound,
    release,
    still_waived,
    waived,
    waived_for,
)
from sluice_allocator.core.request.entries import GrantVerdicts, reconcile_ended, reconcile_entries
from sluice_allocator.core.request.eviction_orders import reconcile_eviction
from sluice_allocator.core.request.pending_status import tell_own_reason
from sluice_allocator.core.serve.offers import stands_alone, try_at_once, wait
from sluice_allocator.core.state.bus_cache import Entries
from sluice_allocator.core.state.facts import (
    DECLINED,
    doubtful_ticket,
    held_instead,
    is_declined,
    is_found_instead,
    is_unshown,
    why_lost,
)
from sluice_allocator.core.state.grant_facts import is_promise


def reconcile_request(ctx: SchedulerContext, request: RequestId) -> None:
    if ctx.node_waits.node_of:
        ctx.node_waits.let_go(request)
    asked = ctx.facts.requests.get(request)
    know_gang(ctx, request, asked)
    entries = ctx.facts.entries_of(request)
    judged = reconcile_entries(ctx, entries, asked)
    reconcile_eviction(ctx, request, asked, entries)
    look_at_movable(ctx, request, asked, entries)
    if isinstance(asked, msg.AllocationRequested):
        if not _settle_asked(ctx, request, asked, entries, judged):
            ctx.queue.remove(request)
        has_reason = tell_own_reason(ctx, request, asked, entries)
    else:
        ctx.queue.remove(request)
        if isinstance(asked, msg.RequestRejected):
            _waive(ctx, request, asked, judged)
        reconcile_ended(ctx, request, asked, entries)
        has_reason = False
    if request not in ctx.node_waits.node_of:
        ctx.node_waits.since.pop(request, None)
    if not has_reason:
        _end_waiting(ctx, request)
    if ctx.gangs.member_of:
        ctx.gangs.note_looked_at(request)


def _settle_asked(
    ctx: SchedulerContext, request: RequestId, asked: msg.AllocationRequested, entries: Entries, judged: GrantVerdicts
) -> bool:
    """Publish what follows for a live request. True when it wants a place, and may be in the queue; else it is not."""
    address = subjects.binding(request)
    binding = ctx.facts.bindings.get(request)
    if ctx.outbox.busy(address) or isinstance(binding, msg.Released):
        return False
    if isinstance(binding, msg.Bound):
        _settle_bound(ctx, asked, binding, entries, judged)
        return False
    grants = {a: e for a, e in judged.standing.items() if not is_kept(ctx, e)}
    held = asked.held
    if held is not None and held.allocation not in grants and _keep_pinned(ctx, request, asked, entries, judged):
        return False
    answer = _answer(ctx, request, asked, grants) or waived_for(ctx, request, asked, judged.unfit)
    if answer is not None:
        ctx.commit(address, answer, request)
        return False
    if isinstance(ctx.facts.answer_to(request), msg.Refused):
        _judge_again(ctx, request, asked)
        return False
    if request in ctx.committing or not all(_may_have_another(ctx, grant) for grant in grants.values()):
        return False
    node = await_node(ctx, request, asked.held)
    if node is not None:
        say_that_it_waits(ctx, request, asked, node)
        return False
    return _refuse_or_queue(ctx, request, asked)


def _settle_bound(
    ctx: SchedulerContext, asked: msg.AllocationRequested, binding: msg.Bound, entries: Entries, judged: GrantVerdicts
) -> None:
    """Follow a pod's binding; if that is of an earlier incarnation of the broker, bind what the pod has."""
    request, instead = binding.request, held_instead(asked, binding)
    if is_declined(asked, binding.allocation):
        no_more = waived(ctx, request, asked, [binding.allocation], DECLINED, alone=True)
        ctx.commit(subjects.binding(request), no_more, request)
    elif _waive(ctx, request, asked, judged):
        return
    elif instead is None:
        found = next((each for each in judged.standing if is_found_instead(ctx, each, binding)), None)
        if found is not None:
            bind_again(ctx, binding, judged.standing[found])
        else:
            follow_bound(ctx, request, binding, entries)
    elif instead.allocation in judged.standing:
        bind_again(ctx, binding, judged.standing[instead.allocation])
    else:
        _keep_pinned(ctx, request, asked, entries, judged)


def _waive(ctx: SchedulerContext, request: RequestId, asked: Asked, judged: GrantVerdicts) -> bool:
    """Waive unfit places. False when there are none, or an answer is on its way."""
    unfit, address = waived_for(ctx, request, asked, judged.unfit), subjects.binding(request)
    if unfit is None or ctx.outbox.busy(address):
        return False
    ctx.commit(address, unfit, request)
    return True


def _answer(
    ctx: SchedulerContext, request: RequestId, asked: msg.AllocationRequested, grants: dict[AllocationId, msg.Grant]
) -> msg.Bound | msg.Waived | None:
    """The binding to publish for a request's places; None while that is open."""
    if not grants:
        return None
    status = ctx.gangs.status_of(request)
    if status is PartyStatus.LEAVES:
        return waived(ctx, request, asked, list(grants), why_leave(ctx, request))
    for allocation, grant in bindable(grants, asked.held).items():
        if grant.booking.node in ctx.facts.removed:
            continue  # bound when its agent comes back, and given up when it does not
        bound = bound_of(ctx, allocation, grant, revision=1)
        if bound is not None:
            return bound if status.may_start else None
    return None


def _may_have_another(ctx: SchedulerContext, grant: msg.Grant) -> bool:
    """Whether a request with this grant keeps its turn: for a place that is free before its own is."""
    return is_promise(ctx, grant) and not grant.evict


def _keep_pinned(
    ctx: SchedulerContext, request: RequestId, asked: msg.AllocationRequested, entries: Entries, judged: GrantVerdicts
) -> bool:
    """Whether its pod is, or may be, where its source says: then no other slice is for it."""
    held = asked.held
    assert held is not None
    ticket = doubtful_ticket(ctx, held)
    if ticket:
        say_that_it_is_in_doubt(ctx, request, asked, held, ticket)
        return True
    node = await_node(ctx, request, held)
    if node is None and held.allocation not in ctx.facts.ledger and is_unshown(ctx, held.node):
        node = held.node
    if node is not None:
        say_that_it_waits(ctx, request, asked, node)
        return True
    entry = entries.get(held.allocation)
    if isinstance(entry, msg.Revoke) or (isinstance(entry, msg.Grant) and held.allocation not in judged.standing):
        return True  # it is revoked, or about to be: what follows when it is gone
    lost = why_lost(ctx, request, held)
    if lost is None or request in ctx.committing:
        return False
    unfit = waived_for(ctx, request, asked, judged.unfit)
    if unfit is not None:
        ctx.commit(subjects.binding(request), unfit, request)
    elif all(isinstance(entry, msg.Closed) for entry in entries.values()):
        _release_lost(ctx, request, asked, f"slice lost: {lost}")
    return True


def _release_lost(ctx: SchedulerContext, request: RequestId, asked: msg.AllocationRequested, cause: str) -> None:
    """Publish that a lost slice of an existing pod is gone, over a waiver (which names its incarnation), never over an
    empty subject: there it could land after the next wipe, when the slice's node is back."""
    if request in ctx.facts.bindings:
        release(ctx, request, cause)
    else:
        ctx.commit(subjects.binding(request), waived(ctx, request, asked, [], cause), request)


def _refusal(ctx: SchedulerContext, asked: msg.AllocationRequested) -> Refusal | None:
    refusal = refuse(ctx.cluster.rules, place_request_of(asked), max_gpus_per_node=ctx.rules.max_gpus_per_node)
    for asking in alternative_place_requests(asked) if asked.alternatives and refusal is None else ():
        refusal = refusal or refuse(ctx.cluster.rules, asking, max_gpus_per_node=ctx.rules.max_gpus_per_node)
    return refusal


def _judge_again(ctx: SchedulerContext, request: RequestId, asked: msg.AllocationRequested) -> None:
    """A refusal lasts as long as it would be repeated: settings change, and older allocators refused what was not
    there. It is waived, not ignored, so that every allocator knows: one that has not read that would revoke its slice.
    """
    if _refusal(ctx, asked) is None:
        no_more = waived(ctx, request, asked, [], "the reason for its refusal no longer holds")
        ctx.commit(subjects.binding(request), no_more, request)


def _refuse_or_queue(ctx: SchedulerContext, request: RequestId, asked: msg.AllocationRequested) -> bool:
    """What follows for a request without a place. True when it waits for one in the queue, for itself or its gang."""
    refusal = _refusal(ctx, asked)
    if refusal is not None:
        left, revision = still_waived(ctx, request), asked.revision
        refused = msg.Refused(
            request=request, request_revision=revision, refusal=refusal, source=asked.source, waives=left
        )
        ctx.commit(subjects.binding(request), refused, request)
        return False
    if ctx.rules.defragment and ctx.backoff.note_new(request, ctx.now):
        ctx.moves.arrived(ctx.rules.defragment_arrivals, ctx.rules.defragment_moves_max)
    if take_over(ctx, request, asked):
        return False
    if not ctx.gangs.status_of(request).searches:
        return ctx.gangs.leads(request)
    shape = shape_of(asked, limited=asked.namespace in ctx.facts.quotas)
    if stands_alone(ctx, request, asked):
        shape = singleton_shape(shape, request)
    elif ctx.nothing_else_to_do and shape not in ctx.queue.shapes:
        try_at_once(ctx, request, asked, shape)
        return True
    if wait(ctx, request, asked, shape):
        ctx.to_try[request] = None
    return True


def _end_waiting(ctx: SchedulerContext, request: RequestId) -> None:
    if not (ctx.facts.waiting or ctx.outbox.keeps_anything):
        return
    if request in ctx.queue or request in ctx.queue.outside or request in ctx.node_waits.node_of:
        return
    if request in ctx.committing:
        return  # that may fail: it is removed when the grant is there
    address = subjects.waiting(request)
    said = ctx.outbox.kept(address) or ctx.facts.waiting.get(request)
    if said is not None and not isinstance(said, msg.WaitOver):
        over = msg.WaitOver(request=request)
        ctx.outbox.keep(address, over, request=request, ttl_s=ctx.rules.closing_ttl_s)
