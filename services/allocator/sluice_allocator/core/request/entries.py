"""Decides what follows for each ledger entry of one request (PROTOCOL §4).

    granted, and not to stand             -> Revoke, when no other allocator may bind it
    revoked in an earlier incarnation     -> Revoke again, or no agent would act on it
    its slice is gone                     -> Closed

The request itself is `requests`' part."""

import msgspec

from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId
from sluice.contracts.messages import AllocationRequested, Closed, Grant, LedgerEntry, Revoke, SliceGone
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.moves.move import note_phase
from sluice_allocator.core.preemption.candidates import note_revoked
from sluice_allocator.core.request.grant_validity import AILING, why_decline, why_revoke
from sluice_allocator.core.reservations.reservation import give_up
from sluice_allocator.core.state.bus_cache import RequestFact
from sluice_allocator.core.state.grant_facts import is_move


class GrantVerdicts(msgspec.Struct, frozen=True):
    """The valid grants of a request, and why others are not to be bound."""

    standing: dict[AllocationId, Grant] = msgspec.field(default_factory=dict)
    unfit: dict[AllocationId, str] = msgspec.field(default_factory=dict)


_NOTHING = GrantVerdicts()


def reconcile_entries(
    ctx: SchedulerContext, entries: dict[AllocationId, LedgerEntry], asked: RequestFact | None
) -> GrantVerdicts:
    if not entries:
        return _NOTHING
    judged = GrantVerdicts()
    for allocation, entry in entries.items():
        cause = None
        if isinstance(entry, Grant):
            if entry.after and is_move(entry):
                note_phase(ctx, entry, asked)
            cause = why_revoke(ctx, entry, asked)
            waive = why_decline(ctx, entry, asked) if cause is None and isinstance(asked, AllocationRequested) else None
            if waive is not None:
                judged.unfit[allocation] = waive
            elif cause is None:
                judged.standing[allocation] = entry
        _settle_entry(ctx, allocation, entry, cause)
    return judged


def _settle_entry(ctx: SchedulerContext, allocation: AllocationId, entry: LedgerEntry, cause: str | None) -> None:
    """Write what follows for one entry. `cause`: why it is not to stand, if it is a Grant that is not."""
    if isinstance(entry, Closed):
        return
    slice_ = ctx.facts.slices.get(allocation)
    if isinstance(entry, Revoke) and entry.incarnation != ctx.facts.incarnation:
        cause = entry.cause  # it landed late, of an earlier incarnation, and no agent acts on it: order it again
    if cause is None and not isinstance(slice_, SliceGone):
        return
    booking = entry.booking
    address = subjects.ledger(booking.node, allocation)
    if ctx.outbox.busy(address):
        return
    if isinstance(slice_, SliceGone):
        closed = Closed(
            revision=entry.revision,
            allocation=allocation,
            request=booking.request,
            node=booking.node,
            cause=entry.cause if isinstance(entry, Revoke) else slice_.cause,
        )
        ctx.commit(address, closed, booking.request, ttl_s=ctx.rules.closing_ttl_s)
        return
    if cause is not None:
        if isinstance(slice_, AILING):
            ctx.backoff.failed(booking.request, (device.gpu for device in booking.devices), ctx.now)
        revoke(ctx, entry, cause)


def revoke(ctx: SchedulerContext, entry: Grant | Revoke, cause: str) -> None:
    """Revoke a slice, or order that again. Later decisions count without it. Of shares that are being shrunk all is
    booked that may still be used."""
    booking = entry.booking
    if isinstance(entry, Grant):
        give_up(ctx, entry)
    order = Revoke(
        revision=entry.revision + 1,
        incarnation=ctx.facts.incarnation,
        booking=ctx.counted(entry),
        cause=cause,
        after=entry.after,
    )
    ctx.commit(subjects.ledger(booking.node, booking.allocation), order, booking.request)
    if isinstance(entry, Grant):
        note_revoked(ctx, entry)


def settle_stray(ctx: SchedulerContext, allocation: AllocationId) -> None:
    """Close a slice again that is gone and not in the ledger (the broker was wiped, or `Closed` expired unread). Its
    agent publishes `SliceGone` until it reads `Closed`."""
    slice_ = ctx.facts.slices.get(allocation)
    if not isinstance(slice_, SliceGone) or slice_.closing or allocation in ctx.facts.ledger:
        return
    node = ctx.facts.slice_nodes[allocation]
    address = subjects.ledger(node, allocation)
    if not ctx.outbox.busy(address):
        closed = Closed(
            revision=slice_.revision, allocation=allocation, request=slice_.request, node=node, cause=slice_.cause
        )
        ctx.commit(address, closed, slice_.request, ttl_s=ctx.rules.closing_ttl_s)
