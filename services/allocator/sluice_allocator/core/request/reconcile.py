"""
One request's life, derived from facts each time it is looked at (PROTOCOL §4).

There are no stored states to fall out of step: what the bus says of the request, its binding, its ledger entries and
their slices decides what to want next. So a restart, a skipped value, a second allocator and a wiped broker need no
path of their own.

    asked, nothing granted                -> wait for a place
    granted and slice ready, not bound    -> Bound (the binding's guard makes the request unique)
    granted, but not the bound one        -> Revoke (surplus)
    refused, and would not be now         -> Waived (of no place: it waits like any other)
    bound, and declined by its source     -> Waived
    bound in another life of the bus,
      and its source has another slice    -> Bound, to what it has
    withdrawn, refused or failed          -> Revoke
    slice gone                            -> Closed
    withdrawn, nothing booked any more    -> Released
"""

from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, RequestId
from sluice.contracts.messages import (
    AllocationRequested,
    Bound,
    Closed,
    Grant,
    LedgerEntry,
    Refused,
    Released,
    Revoke,
    WaitOver,
    Waived,
)
from sluice.contracts.reasons import Refusal
from sluice_allocator.core.gangs.reconcile import is_held_back, know_group, waits_with_group, waiver
from sluice_allocator.core.moves.move import is_kept, look_at_movable, take_over
from sluice_allocator.core.placement import asking_of, further_askings, refuse
from sluice_allocator.core.queue.pending_queue import shape_of, singleton_shape
from sluice_allocator.core.request.bind import bind_again, bindable, bound_of, follow_bound, release
from sluice_allocator.core.request.decline import waived, waived_for
from sluice_allocator.core.request.entries import GrantVerdicts, reconcile_entries
from sluice_allocator.core.request.eviction_orders import reconcile_eviction
from sluice_allocator.core.request.pending_status import tell_own_reason
from sluice_allocator.core.request.recovery import await_node, say_that_it_is_in_doubt, say_that_it_waits
from sluice_allocator.core.request.release import reconcile_ended
from sluice_allocator.core.request.resting import tell_backoff
from sluice_allocator.core.serve.offers import stands_alone, try_at_once, wait
from sluice_allocator.core.state.conditions import Condition
from sluice_allocator.core.state.context import Desk
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


def reconcile_request(desk: Desk, request: RequestId) -> None:
    """Reconcile one request."""
    if desk.node_waits.node_of:
        desk.node_waits.let_go(request)
    asked = desk.world.requests.get(request)
    know_group(desk, request, asked)
    entries = {a: desk.world.ledger[a] for a in desk.world.allocations_of.get(request, ())}
    judged = reconcile_entries(desk, entries, asked)
    reconcile_eviction(desk, request, entries)
    look_at_movable(desk, request, asked, entries)
    if isinstance(asked, AllocationRequested):
        _settle_asked(desk, request, asked, entries, judged)
        has_reason = tell_own_reason(desk, request, asked, entries)
    else:
        desk.queue.remove(request)
        reconcile_ended(desk, request, asked, entries)
        has_reason = False
    if not has_reason:
        _end_waiting(desk, request)
    if desk.gangs.member_of:
        desk.gangs.note_looked_at(request)


# -- a request that somebody wants --------------------------------------------------------------------------------


def _settle_asked(
    desk: Desk,
    request: RequestId,
    asked: AllocationRequested,
    entries: dict[AllocationId, LedgerEntry],
    judged: GrantVerdicts,
) -> None:
    """Write what follows for a request with these ledger `entries`."""
    address = subjects.binding(request)
    binding = desk.world.bindings.get(request)
    if desk.outbox.busy(address) or isinstance(binding, Released):
        desk.queue.remove(request)
        return
    if isinstance(binding, Bound):
        desk.queue.remove(request)
        _settle_bound(desk, asked, binding, entries, judged)
        return
    grants = {a: e for a, e in judged.standing.items() if not is_kept(desk, e)}
    held = asked.held
    if held is not None and held.allocation not in grants and _keep_pinned(desk, request, asked, entries, judged):
        desk.queue.remove(request)
        return
    answer = _answer(desk, request, asked, grants) or waived_for(desk, request, asked, judged.unfit)
    if answer is not None:
        desk.queue.remove(request)
        desk.commit(address, answer, request)
        return
    if isinstance(desk.world.answer_to(request), Refused):
        desk.queue.remove(request)
        _judge_again(desk, request, asked)
        return
    if request in desk.committing or not all(_may_have_another(desk, grant) for grant in grants.values()):
        desk.queue.remove(request)
        return
    node = await_node(desk, request, asked.held)
    if node is not None:
        desk.queue.remove(request)
        say_that_it_waits(desk, request, asked, node)
    elif not tell_backoff(desk, request, asked):
        _refuse_or_queue(desk, request, asked)


def _settle_bound(
    desk: Desk,
    asked: AllocationRequested,
    binding: Bound,
    entries: dict[AllocationId, LedgerEntry],
    judged: GrantVerdicts,
) -> None:
    """Follow a pod's binding; if that is of an earlier incarnation of the broker, bind what the pod has."""
    request, instead = binding.request, held_instead(asked, binding)
    if is_declined(asked, binding.allocation):
        no_more = waived(desk, request, asked, [binding.allocation], DECLINED, alone=True)
        desk.commit(subjects.binding(request), no_more, request)
        return
    if instead is None:
        found = next((each for each in judged.standing if is_found_instead(desk, each, binding)), None)
        if found is not None:
            bind_again(desk, binding, judged.standing[found])
        else:
            follow_bound(desk, request, binding, entries)
    elif instead.allocation in judged.standing:
        bind_again(desk, binding, judged.standing[instead.allocation])
    else:
        _keep_pinned(desk, request, asked, entries, judged)


def _answer(
    desk: Desk, request: RequestId, asked: AllocationRequested, grants: dict[AllocationId, Grant]
) -> Bound | Waived | None:
    """The binding to publish for a request's places; None while that is open."""
    if not grants:
        return None
    given_back = waiver(desk, request, asked, grants)
    if given_back is not None:
        return given_back
    for allocation, grant in bindable(grants, asked.held).items():
        if grant.booking.node in desk.world.removed:
            continue  # bound when its agent comes back, and given up when it does not
        bound = bound_of(desk, allocation, grant, revision=1)
        if bound is not None:
            return bound if not is_held_back(desk, request) else None
    return None


def _may_have_another(desk: Desk, grant: Grant) -> bool:
    """Whether a request with this grant keeps its turn: for a place that is free before its own is."""
    return is_promise(desk, grant) and not grant.evict


def _keep_pinned(
    desk: Desk,
    request: RequestId,
    asked: AllocationRequested,
    entries: dict[AllocationId, LedgerEntry],
    judged: GrantVerdicts,
) -> bool:
    """
    Whether its pod is, or may be, where its source says: then another slice, however ready, is not for it.

    If the slice is lost, the request is released after its other grants were revoked.
    """
    held = asked.held
    assert held is not None
    ticket = doubtful_ticket(desk, held)
    if ticket:
        say_that_it_is_in_doubt(desk, request, asked, held, ticket)
        return True
    node = await_node(desk, request, held)
    if node is not None:
        say_that_it_waits(desk, request, asked, node)
        return True
    entry = entries.get(held.allocation)
    if isinstance(entry, Revoke) or (isinstance(entry, Grant) and held.allocation not in judged.standing):
        return True  # it is revoked, or about to be: what follows when it is gone
    if held.allocation not in desk.world.ledger and is_unshown(desk, held.node):
        say_that_it_waits(desk, request, asked, held.node)
        return True
    lost = why_lost(desk, request, held)
    if lost is None or request in desk.committing:
        return False
    unfit = waived_for(desk, request, asked, judged.unfit)
    if unfit is not None:
        desk.commit(subjects.binding(request), unfit, request)
    elif all(isinstance(entry, Closed) for entry in entries.values()):
        _release_lost(desk, request, asked, f"slice lost: {lost}")
    return True


def _release_lost(desk: Desk, request: RequestId, asked: AllocationRequested, cause: str) -> None:
    """
    Publish that a lost slice of an existing pod is gone, and never over an empty subject.

    Over an empty subject it could land after the next wipe of the broker, when the node of its slice is back. A
    waiver, which names its incarnation, comes first; a message over that is rejected in another incarnation.
    """
    if request in desk.world.bindings:
        release(desk, request, cause)
    else:
        desk.commit(subjects.binding(request), waived(desk, request, asked, [], cause), request)


def _refusal(desk: Desk, asked: AllocationRequested) -> Refusal | None:
    """Why these settings never allow the request, or one of its alternatives."""
    refusal = refuse(desk.fleet.rules, asking_of(asked), max_gpus_per_node=desk.rules.max_gpus_per_node)
    for asking in further_askings(asked) if asked.alternatives and refusal is None else ():
        refusal = refusal or refuse(desk.fleet.rules, asking, max_gpus_per_node=desk.rules.max_gpus_per_node)
    return refusal


def _judge_again(desk: Desk, request: RequestId, asked: AllocationRequested) -> None:
    """
    A refusal lasts as long as it would be repeated: settings change, and older allocators refused what was not there.

    It is waived, not ignored, so that every allocator knows: one that has not read that would revoke its slice.
    """
    if _refusal(desk, asked) is None and desk.throttle(Condition.REFUSAL_WAIVED, request):
        no_more = waived(desk, request, asked, [], "the reason for its refusal no longer holds")
        desk.commit(subjects.binding(request), no_more, request)


def _refuse_or_queue(desk: Desk, request: RequestId, asked: AllocationRequested) -> None:
    refusal = _refusal(desk, asked)
    if refusal is not None:
        desk.queue.remove(request)
        refused = Refused(request=request, request_revision=asked.revision, refusal=refusal, source=asked.source)
        desk.commit(subjects.binding(request), refused, request)
        return
    if desk.rules.defragment and desk.attempts.note_new(request, desk.now):
        desk.moves.arrived(desk.rules.defragment_arrivals, desk.rules.defragment_moves_max)
    if take_over(desk, request, asked):
        return
    if waits_with_group(desk, request):
        if not desk.gangs.leads(request):
            desk.queue.remove(request)
        return
    shape = shape_of(asked, limited=asked.namespace in desk.world.quotas)
    if stands_alone(desk, request):
        shape = singleton_shape(shape, request)
    elif desk.nothing_else_to_do and shape not in desk.queue.shapes:
        try_at_once(desk, request, asked, shape)
        return
    if wait(desk, request, asked, shape):
        desk.to_try[request] = None


# -- telling that it waits no more -------------------------------------------------------------------------------


def _end_waiting(desk: Desk, request: RequestId) -> None:
    """Remove the request's waiting reason once it no longer waits."""
    if not (desk.world.waiting or desk.outbox.keeps_anything):
        return
    if request in desk.queue or request in desk.queue.outside or request in desk.node_waits.node_of:
        return
    if request in desk.committing:
        return  # that may fail: it is removed when the grant is there
    address = subjects.waiting(request)
    mine = desk.outbox.kept(address)
    said = mine or desk.world.waiting.get(request)
    if (
        said is not None
        and not isinstance(said, WaitOver)
        and (mine is not None or desk.throttle(Condition.WAIT_ENDED, request))
    ):
        over = WaitOver(request=request)
        desk.outbox.keep(address, over, request=request, ttl_s=desk.rules.closing_ttl_s)
