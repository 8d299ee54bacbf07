"""Decides whether a grant is valid. A published fact ends it at once (`why_revoke`). A judgement of this process, from
facts that may be read late, could end what another process has bound: it is waived first, under the binding's guard
(`why_decline`). Orphans are judged in `core.recheck`."""

from sluice.contracts import messages as msg
from sluice.contracts.ids import AllocationId
from sluice.contracts.kube.taints import blocking_predicate
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.moves.move import why_end_move
from sluice_allocator.core.quotas.overcommit import excess
from sluice_allocator.core.reservations.reservation import why_give_up
from sluice_allocator.core.state.bus_cache import BindingFact, RequestFact
from sluice_allocator.core.state.facts import (
    DECLINED,
    FAILED,
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
    binding = ctx.facts.bindings.get(booking.request)
    if isinstance(asked, msg.RequestWithdrawn):
        return asked.cause
    if is_rejected(asked, booking) and not grant.adopted and not isinstance(binding, msg.Bound):
        return "request rejected"
    unwanted = _by_its_binding(ctx, booking, binding, asked)
    if unwanted is not None:
        return unwanted
    if is_too_late(ctx, grant):
        return "written before the broker was recreated: no agent will act on it"
    slice_ = ctx.facts.slices.get(booking.allocation)
    if isinstance(slice_, FAILED) and slice_.revision >= grant.revision:
        return f"making the slice failed: {slice_.message}"
    return None


def why_decline(ctx: SchedulerContext, grant: msg.Grant, asked: msg.AllocationRequested) -> str | None:
    """Why no pod should be bound to an otherwise valid grant; None where it may stand."""
    booking = grant.booking
    binding = ctx.facts.bindings.get(booking.request)
    if is_declined(asked, booking.allocation):
        return DECLINED
    if isinstance(binding, msg.Bound) or is_held(asked, booking.allocation) or (grant.after and is_move(grant)):
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


def _by_its_binding(
    ctx: SchedulerContext, booking: msg.Booking, binding: BindingFact | None, asked: RequestFact | None
) -> str | None:
    match binding:
        case msg.Bound():
            # the bound grant stands, and no other; but a pod that has, or may have, another one stays where it is
            held = held_instead(asked, binding)
            if asked is None or (held is not None and held.allocation == booking.allocation):
                return None
            if binding.allocation != booking.allocation:
                return None if is_found_instead(ctx, booking.allocation, binding) else SURPLUS
            lost = why_lost(ctx, booking.request, held) if held is not None else None
            return f"surplus: its pod runs where its lost slice was: {lost}" if lost is not None else None
        case _ if _has_another(ctx, asked, booking.allocation):
            return "surplus: its pod has another slice"
        case msg.Released():
            return f"released: {binding.cause}"
        case msg.Refused() if not is_held(asked, booking.allocation):
            return "refused" if binding.request_revision >= booking.request_revision else None
        case msg.Waived() if booking.allocation in binding.allocations:
            return binding.cause
        case _:
            return None


def _is_for_other_claims(booking: msg.Booking, asked: msg.AllocationRequested) -> bool:
    """Whether a kubelet would find no slice for a claim: after a wipe revisions begin again, and claims may be new."""
    return {each.uid for each in booking.resource_claims} != {each.uid for each in asked.resource_claims}


def _has_another(ctx: SchedulerContext, asked: RequestFact | None, allocation: AllocationId) -> bool:
    """Whether its source remembers another slice, and that is granted: the pod is there, or nowhere."""
    held = asked.held if isinstance(asked, msg.AllocationRequested) else None
    return held is not None and held.allocation != allocation and ctx.facts.granted(held.allocation) is not None
