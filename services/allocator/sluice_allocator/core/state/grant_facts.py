"""What follows from the ledger's grants, and what they come after (`after`): questions only, which change nothing. A
grant with predecessors reserves their place (`is_promise`). One that comes after its own request's allocation keeps a
place for a pod that is being moved (`is_move`) or is exchanged for that request's reservation (`is_exchange`). So every
reader of the ledger knows, without another message or memory."""

import msgspec

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import AllocationId, RequestId, request_named
from sluice.mig.model import GpuModel
from sluice_allocator.core.state.context import Context

KinKey = tuple[str, str, str]  # Source, namespace, and the common part of the names of one controller's pods


def is_gone(ctx: Context, allocation: AllocationId) -> bool:
    """Whether nothing of an allocation is left: closed, reported gone by its agent, or never reported."""
    entry = ctx.facts.ledger.get(allocation)
    return entry is None or isinstance(entry, msg.Closed) or isinstance(ctx.facts.slices.get(allocation), msg.SliceGone)


def unfinished(ctx: Context, grant: msg.Grant) -> tuple[AllocationId, ...]:
    return tuple(each for each in grant.after if not is_gone(ctx, each))


def is_promise(ctx: Context, grant: msg.Grant) -> bool:
    return bool(grant.after) and bool(unfinished(ctx, grant))


def is_being_revoked(ctx: Context, grant: msg.Grant) -> bool:
    """Whether a Revoke of a valid grant is pending: other writes over one resize its shares."""
    allocation = grant.booking.allocation
    return allocation not in ctx.resizing and ctx.outbox.busy(subjects.ledger(grant.booking.node, allocation))


def standing_promise(ctx: Context, request: RequestId) -> msg.Grant | None:
    """A request's reservation that waits for others to end (not to be evicted); None when it has none."""
    for entry in ctx.facts.entries_of(request).values():
        if isinstance(entry, msg.Grant) and not entry.evict and is_promise(ctx, entry):
            return entry
    return None


def is_exchange(grant: msg.Grant) -> bool:
    """Whether a grant comes after its own request's reservation: it uses a part of that, and waits for no tenant."""
    return not grant.evict and comes_after_its_own(grant)


def has_place_now(ctx: Context, promised: msg.Grant) -> bool:
    """Whether a reservation's request has another grant that waits for nothing, or for this one only. If no pod is
    evicted for it, it stays until that slice is there: making it may fail."""
    own = promised.booking.allocation
    for other in ctx.facts.grants_of(promised.booking.request):
        allocation, before = other.booking.allocation, unfinished(ctx, other)
        is_made = promised.evict or isinstance(ctx.facts.slices.get(allocation), msg.SliceReady)
        has_it = (before == (own,) and is_exchange(other)) or (not before and is_made)
        if allocation != own and has_it and not is_being_revoked(ctx, other):
            return True
    return False


def is_in_quarantine(ctx: Context, allocation: AllocationId) -> bool:
    """Whether a slice could not be destroyed in several attempts: it may stay until an operator acts."""
    return isinstance(ctx.facts.slices.get(allocation), msg.SliceQuarantined)


def is_earlier(ctx: Context, one: msg.Grant, other: msg.Grant) -> bool:
    """Two allocators may reserve at once: the grant that was written first stands, for every reader."""
    first, second = one.booking, other.booking
    return (written_at(ctx, first), first.allocation) < (written_at(ctx, second), second.allocation)


def written_at(ctx: Context, booking: msg.Booking) -> int:
    """The sequence of a booking's entry in the ledger; 0 where it has none."""
    return ctx.facts.sequences[Stream.BOOK].get(subjects.ledger(booking.node, booking.allocation).subject, 0)


def named(entry: msg.Grant | msg.Revoke) -> str:
    return f"{entry.booking.namespace}/{entry.booking.name}"


def is_move(grant: msg.Grant) -> bool:
    """Whether a grant keeps a place for a pod that is being moved: it comes after its own request's allocation."""
    return grant.evict and comes_after_its_own(grant)


def comes_after_its_own(entry: msg.Grant | msg.Revoke) -> bool:
    """Whether an entry comes, or came, after its own request's allocation, and nothing else."""
    own = entry.booking.request
    return bool(entry.after) and all(request_named(each) == own for each in entry.after)


def kin_of(source: str, namespace: str, name: str) -> KinKey:
    """The key that a pod shares with its successor: source, namespace, and its name without the random part."""
    return source, namespace, name.rpartition("-")[0] or name


def why_moved(grant: msg.Grant) -> str:
    """Why a pod is evicted for a place that is kept for it. The same as long as the grant stands."""
    booking = grant.booking
    sizes = ("a share" if each.share is not None else each.profile or "a whole GPU" for each in booking.devices)
    return f"it is moved: a place on {booking.node} is kept for its replacement ({', '.join(dict.fromkeys(sizes))})"


class DeviceAmount(msgspec.Struct, frozen=True):
    """One device and its size. `sm_percent`: of the SMs of the model's largest profile, rounded down, for an instance;
    of the GPU's SMs for a share (100 without a bound)."""

    grant: msg.DeviceGrant
    model: str
    mode: msg.Mode
    memory_mib: int
    sm_percent: int


def device_amount(grant: msg.DeviceGrant, model: GpuModel) -> DeviceAmount:
    name, share = model.product_names[0], grant.share
    profile = model.profile(grant.profile) if grant.profile is not None else None
    if share is not None:
        return DeviceAmount(grant, name, share.mode, share.memory_mib, share.sm_partition or 100)
    if profile is None:
        return DeviceAmount(grant, name, "exclusive", model.memory_mib, 100)
    sm_percent = profile.multiprocessors * 100 // model.largest.multiprocessors
    return DeviceAmount(grant, name, "exclusive", profile.memory_mib, sm_percent)
