"""Decides what follows for each ledger entry of one request (PROTOCOL §4).

    granted, and not to stand             -> Revoke, once no other allocator may bind it
    revoked in an earlier incarnation     -> Revoke again, or no agent would act on it
    its slice is gone                     -> Closed

The request itself is `request.reconcile`'s part."""

import msgspec

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, RequestId
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.moves.move import note_phase
from sluice_allocator.core.preemption.candidates import note_revoked
from sluice_allocator.core.request.await_node import await_any_node, await_node
from sluice_allocator.core.request.bind import release
from sluice_allocator.core.request.grant_validity import why_decline, why_revoke
from sluice_allocator.core.reservations.reservation import give_up
from sluice_allocator.core.state.bus_cache import BindingFact, Entries, RequestFact, named_by
from sluice_allocator.core.state.conditions import Condition
from sluice_allocator.core.state.facts import UNUSABLE, answer_without_slice, may_come_yet
from sluice_allocator.core.state.grant_facts import is_move


class GrantVerdicts(msgspec.Struct, frozen=True):
    """The valid grants of a request, and why others are not to be bound."""

    standing: dict[AllocationId, msg.Grant] = msgspec.field(default_factory=dict)
    unfit: dict[AllocationId, str] = msgspec.field(default_factory=dict)


_NOTHING = GrantVerdicts()


def reconcile_entries(ctx: SchedulerContext, entries: Entries, asked: RequestFact | None) -> GrantVerdicts:
    if not entries:
        return _NOTHING
    judged = GrantVerdicts()
    for allocation, entry in entries.items():
        cause = None
        if isinstance(entry, msg.Grant):
            if entry.after and is_move(entry):
                note_phase(ctx, entry, asked)
            cause = why_revoke(ctx, entry, asked)
            waive = why_decline(ctx, entry, asked) if cause is None else None
            if waive is not None:
                judged.unfit[allocation] = waive
            elif cause is None:
                judged.standing[allocation] = entry
        _settle_entry(ctx, allocation, entry, cause)
    return judged


def _settle_entry(ctx: SchedulerContext, allocation: AllocationId, entry: msg.LedgerEntry, cause: str | None) -> None:
    """Write what follows for one entry. `cause`: why it is not to stand, if it is a Grant that is not."""
    if isinstance(entry, msg.Closed):
        return
    slice_ = ctx.facts.slices.get(allocation)
    if isinstance(entry, msg.Revoke) and entry.incarnation != ctx.facts.incarnation:
        cause = entry.cause  # it landed late, of an earlier incarnation, and no agent acts on it: order it again
    if cause is None and not isinstance(slice_, msg.SliceGone):
        return
    booking = entry.booking
    address = subjects.ledger(booking.node, allocation)
    if ctx.outbox.busy(address):
        return
    if isinstance(slice_, msg.SliceGone):
        closed = msg.Closed(
            revision=entry.revision,
            allocation=allocation,
            request=booking.request,
            node=booking.node,
            cause=entry.cause if isinstance(entry, msg.Revoke) else slice_.cause,
        )
        ctx.commit(address, closed, booking.request, ttl_s=ctx.rules.closing_ttl_s)
        return
    if cause is not None:
        if isinstance(slice_, UNUSABLE):  # its GPUs are avoided for a while
            ctx.backoff.failed(booking.request, (device.gpu for device in booking.devices), ctx.now)
        revoke(ctx, entry, cause)


def revoke(ctx: SchedulerContext, entry: msg.Grant | msg.Revoke, cause: str) -> None:
    """Revoke a slice (again). Later decisions count without it; of shares being shrunk the larger size is booked."""
    booking = entry.booking
    if isinstance(entry, msg.Grant):
        give_up(ctx, entry)
    life, counted, revision = ctx.facts.incarnation, ctx.counted(entry), entry.revision + 1
    order = msg.Revoke(revision=revision, incarnation=life, booking=counted, cause=cause, after=entry.after)
    ctx.commit(subjects.ledger(booking.node, booking.allocation), order, booking.request)
    if isinstance(entry, msg.Grant):
        note_revoked(ctx, entry)


def settle_stray(ctx: SchedulerContext, allocation: AllocationId) -> None:
    """Close a slice that is gone and not in the ledger: its agent publishes `SliceGone` until it reads `Closed`."""
    slice_ = ctx.facts.slices.get(allocation)
    if not isinstance(slice_, msg.SliceGone) or slice_.closing or allocation in ctx.facts.ledger:
        return
    node = ctx.facts.slice_nodes[allocation]
    address = subjects.ledger(node, allocation)
    if not ctx.outbox.busy(address):
        closed = msg.Closed(
            revision=slice_.revision, allocation=allocation, request=slice_.request, node=node, cause=slice_.cause
        )
        ctx.commit(address, closed, slice_.request, ttl_s=ctx.rules.closing_ttl_s)


_NOBODY_ASKS = "its request is gone"


def reconcile_ended(ctx: SchedulerContext, request: RequestId, asked: RequestFact | None, entries: Entries) -> None:
    """Settle a request that is withdrawn, rejected, or unknown (its source is silent, or published its end)."""
    ctx.conditions.clear(Condition.BINDING_DIFFERS, request)
    address = subjects.binding(request)
    binding = ctx.facts.bindings.get(request)
    if request in ctx.committing or ctx.outbox.busy(address):
        return
    if not all(isinstance(entry, msg.Closed) for entry in entries.values()):
        return  # `Released` is published after SliceGone, never before
    if isinstance(binding, msg.Bound) and binding.allocation not in entries and may_come_yet(ctx, binding.allocation):
        return
    if isinstance(asked, msg.RequestWithdrawn) and not asked.closing:
        _settle_withdrawn(ctx, request, asked, binding, entries)
        return
    if isinstance(asked, msg.RequestWithdrawn):
        ctx.backoff.forget(request)
        ctx.sparing.forget(request)
    is_late = (asked is None or isinstance(asked, msg.RequestWithdrawn)) and _landed_late(ctx, request, asked, binding)
    if is_late and await_node(ctx, request, named_by(binding)) is None:
        release(ctx, request, _NOBODY_ASKS)


def _settle_withdrawn(
    ctx: SchedulerContext,
    request: RequestId,
    asked: msg.RequestWithdrawn,
    binding: BindingFact | None,
    entries: Entries,
) -> None:
    if isinstance(binding, msg.Released):
        return
    if any(await_node(ctx, request, held) is not None for held in (asked.held, named_by(binding))):
        return
    if entries or not await_any_node(ctx, request):
        release(ctx, request, asked.cause)


def _landed_late(
    ctx: SchedulerContext, request: RequestId, asked: msg.RequestWithdrawn | None, binding: BindingFact | None
) -> bool:
    """Whether a binding is older than the end of its request, which neither ledger nor source knows then. An unknown
    one may belong to a source that has not published yet in this incarnation (see `core.recheck`)."""
    match binding:
        case msg.Bound():
            return asked is not None or answer_without_slice(ctx, request) is None
        case msg.Refused() | msg.Waived():
            return asked is not None
        case _:
            return False
