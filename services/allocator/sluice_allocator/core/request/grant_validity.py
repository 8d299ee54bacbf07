"""Decides whether a grant is valid. A final fact ends it at once (`why_revoke`): its request is withdrawn or released,
its slice failed, or its binding waives it. Any other may be outdated when it is read, and ending the grant could end
what another process has bound since: it is waived first, under the binding's guard (`why_decline`). Orphans are judged
in `core.recheck`."""

from sluice.contracts import messages as msg
from sluice.contracts.ids import AllocationId
from sluice.contracts.kube.taints import blocking_predicate
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.moves.move import why_end_move
from sluice_allocator.core.quotas.overcommit import excess
from sluice_allocator.core.reservations.reservation import why_give_up
from sluice_allocator.core.state.bus_cache import RequestFact
from sluice_allocator.core.state.facts import (
    DECLINED,
    FAILED,
    REFUSED,
    SURPLUS,
    held_instead,
    is_declined,
    is_found_instead,
    is_held,
    is_rejected,
    is_too_late,
    why_lost,
)
from sluice_allocator.core.state.grant_facts import is_move


def why_revoke(ctx: SchedulerContext, grant: msg.Grant, asked: RequestFact | None) -> str | None:
    """Why a grant to be bound, or a place that its own pod is to be moved to, is invalid; None when valid."""
    return why_end_move(ctx, grant, asked) if grant.after and is_move(grant) else _why_revoke_place(ctx, grant, asked)


def _why_revoke_place(ctx: SchedulerContext, grant: msg.Grant, asked: RequestFact | None) -> str | None:
    booking = grant.booking
    if isinstance(asked, msg.RequestWithdrawn):
        return asked.cause
    unwanted = _by_its_binding(ctx, booking, asked)
    if unwanted is not None:
        return unwanted
    if is_too_late(ctx, grant):
        return "written before the broker was recreated: no agent will act on it"
    slice_ = ctx.facts.slices.get(booking.allocation)
    if isinstance(slice_, FAILED) and slice_.revision >= grant.revision:
        return f"making the slice failed: {slice_.message}"
    return None


def why_decline(ctx: SchedulerContext, grant: msg.Grant, asked: RequestFact | None) -> str | None:
    """Why no pod should be bound to an otherwise valid grant; None where it may stand."""
    if asked is None or (grant.after and is_move(grant)):
        return None
    outdated = _why_outdated(ctx, grant, asked)
    if outdated is not None:
        return outdated
    return _why_unfit(ctx, grant, asked) if isinstance(asked, msg.AllocationRequested) else None


def _why_outdated(ctx: SchedulerContext, grant: msg.Grant, asked: RequestFact) -> str | None:
    """Why its request does not get this grant, by what was published about it last, as far as is known."""
    booking = grant.booking
    match ctx.facts.bindings.get(booking.request):
        case msg.Bound() as bound:
            return SURPLUS if _is_surplus(ctx, asked, bound, booking.allocation) else None
        case _ if is_rejected(asked, booking) and not grant.adopted:
            return "request rejected"
        case _ if _has_another(ctx, asked, booking.allocation):
            return "surplus: its pod has another slice"
        case msg.Refused() as refused if not is_held(asked, booking.allocation):
            return REFUSED if refused.request_revision >= booking.request_revision else None
        case _:
            return None


def _why_unfit(ctx: SchedulerContext, grant: msg.Grant, asked: msg.AllocationRequested) -> str | None:
    """Why a pod should get another place."""
    booking = grant.booking
    if is_declined(asked, booking.allocation):
        return DECLINED
    if ctx.facts.bound_to(booking.request) is not None or is_held(asked, booking.allocation):
        return None
    if _is_for_other_claims(booking, asked):
        return "its slice was made for a ResourceClaim that is gone"
    slice_ = ctx.facts.slices.get(booking.allocation)
    if isinstance(slice_, msg.SliceDegraded):
        return f"its devices vanished before it was bound: {slice_.message}"
    inventory = ctx.facts.inventories.get(booking.node)
    if slice_ is None and not grant.adopted and inventory is not None and inventory.stale:
        return f"its slice was never reported, and its node does not answer: {inventory.stale_message}"
    kept_out = blocking_predicate(ctx.facts.hosts.get(booking.node), asked.host.tolerations)
    if kept_out and not grant.adopted:
        return f"its node {kept_out}, and did before the pod was bound"
    lost = why_lost(ctx, booking.request, asked.held) if asked.held is not None else None
    if lost is not None:
        return f"surplus: its pod runs where its lost slice was: {lost}"
    given_up = why_give_up(ctx, grant, asked.revision) if grant.after else None
    return given_up or excess(ctx, grant)


def _by_its_binding(ctx: SchedulerContext, booking: msg.Booking, asked: RequestFact | None) -> str | None:
    allocation = booking.allocation
    match ctx.facts.bindings.get(booking.request):
        case msg.Released(cause=cause):
            return f"released: {cause}"
        case msg.Waived(allocations=waived, cause=cause) if allocation in waived:
            return cause
        case msg.Refused(waives=waived) if allocation in waived:
            return REFUSED if is_rejected(asked, booking) or not is_held(asked, allocation) else None
        case msg.Bound() as bound if asked is not None and allocation in bound.waives:
            return SURPLUS if _is_surplus(ctx, asked, bound, allocation) else None
        case msg.Bound() as bound if asked is not None and allocation == bound.allocation:
            held = held_instead(asked, bound)
            lost = why_lost(ctx, booking.request, held) if held is not None else None
            return f"surplus: its pod runs where its lost slice was: {lost}" if lost is not None else None
        case _:
            return None


def _is_surplus(ctx: SchedulerContext, asked: RequestFact, bound: msg.Bound, allocation: AllocationId) -> bool:
    """Whether a request is bound to another slice; a pod that has, or may have, this one stays where it is. One that
    was found on its node counts as that until it is waived."""
    held = held_instead(asked, bound)
    is_its = allocation == bound.allocation or (held is not None and allocation == held.allocation)
    return not is_its and (allocation in bound.waives or not is_found_instead(ctx, allocation, bound))


def _is_for_other_claims(booking: msg.Booking, asked: msg.AllocationRequested) -> bool:
    """Whether a kubelet would find no slice for a claim: after a wipe revisions begin again, and claims may be new."""
    return {each.uid for each in booking.resource_claims} != {each.uid for each in asked.resource_claims}


def _has_another(ctx: SchedulerContext, asked: RequestFact | None, allocation: AllocationId) -> bool:
    """Whether its source remembers another slice, and that is granted: the pod is there, or nowhere."""
    held = asked.held if isinstance(asked, msg.AllocationRequested) else None
    return held is not None and held.allocation != allocation and ctx.facts.granted(held.allocation) is not None
