"""Ends a request that is withdrawn or gone, once nothing is left of its slices. `Released` is published when all its
slices are gone, and again over an older binding that landed late. Its ledger entries are judged before (`entries`)."""

from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, RequestId
from sluice.contracts.messages import Bound, Closed, LedgerEntry, Refused, Released, RequestWithdrawn, Waived
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.request.bind import release
from sluice_allocator.core.request.recovery import await_any_node, await_node
from sluice_allocator.core.state.bus_cache import BindingFact, RequestFact, named_by
from sluice_allocator.core.state.conditions import Condition
from sluice_allocator.core.state.facts import answer_without_slice, may_come_yet

_NOBODY_ASKS = "its request is gone"


def reconcile_ended(
    ctx: SchedulerContext, request: RequestId, asked: RequestFact | None, entries: dict[AllocationId, LedgerEntry]
) -> None:
    """Settle a request that is withdrawn, rejected, or unknown (its source is silent, or published its end)."""
    ctx.conditions.clear(Condition.BINDING_DIFFERS, request)
    address = subjects.binding(request)
    binding = ctx.facts.bindings.get(request)
    if request in ctx.committing or ctx.outbox.busy(address):
        return
    if entries and not all(isinstance(entry, Closed) for entry in entries.values()):
        return  # `Released` is said after SliceGone, never before
    if isinstance(binding, Bound) and binding.allocation not in entries and may_come_yet(ctx, binding.allocation):
        return
    if isinstance(asked, RequestWithdrawn) and not asked.closing:
        _settle_withdrawn(ctx, request, asked, binding, entries)
        return
    if isinstance(asked, RequestWithdrawn):
        ctx.backoff.forget(request)
        ctx.sparing.forget(request)
    is_late = (asked is None or isinstance(asked, RequestWithdrawn)) and _landed_late(ctx, request, asked, binding)
    if is_late and await_node(ctx, request, named_by(binding)) is None:
        release(ctx, request, _NOBODY_ASKS)


def _settle_withdrawn(
    ctx: SchedulerContext,
    request: RequestId,
    asked: RequestWithdrawn,
    binding: BindingFact | None,
    entries: dict[AllocationId, LedgerEntry],
) -> None:
    if isinstance(binding, Released):
        return
    if any(await_node(ctx, request, held) is not None for held in (asked.held, named_by(binding))):
        return
    if entries or not await_any_node(ctx, request):
        release(ctx, request, asked.cause)


def _landed_late(
    ctx: SchedulerContext, request: RequestId, asked: RequestWithdrawn | None, binding: BindingFact | None
) -> bool:
    """Whether a binding is older than the end of its request: then neither ledger nor source knows the request. A
    request is closed after `Released`. An unknown one may belong to a source that has not published yet in this
    incarnation of the broker, and its pod may have another slice: see `orphans`."""
    match binding:
        case Bound():
            return asked is not None or answer_without_slice(ctx, request) is None
        case Refused() | Waived():
            return asked is not None
        case _:
            return False
