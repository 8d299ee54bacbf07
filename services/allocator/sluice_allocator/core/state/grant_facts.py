"""What follows from the ledger's grants, and what they come after (`after`): questions only, which change nothing. A
grant with predecessors reserves their place (`is_promise`). One that comes after its own request's allocation keeps a
place for a pod that is being moved (`is_move`) or is exchanged for that request's reservation (`is_exchange`). So every
reader of the ledger knows, without another message or memory."""

import msgspec

from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, RequestId, request_named
from sluice.contracts.messages import Closed, DeviceGrant, Grant, Mode, Revoke, SliceGone, SliceQuarantined, SliceReady
from sluice.mig.model import GpuModel
from sluice_allocator.core.state.context import Context

KinKey = tuple[str, str, str]  # Source, namespace, and the common part of the names of one controller's pods


def is_gone(ctx: Context, allocation: AllocationId) -> bool:
    """Whether nothing of an allocation is left: closed, reported gone by its agent, or never reported."""
    entry = ctx.facts.ledger.get(allocation)
    return entry is None or isinstance(entry, Closed) or isinstance(ctx.facts.slices.get(allocation), SliceGone)


def unfinished(ctx: Context, grant: Grant) -> tuple[AllocationId, ...]:
    return tuple(each for each in grant.after if not is_gone(ctx, each))


def is_promise(ctx: Context, grant: Grant) -> bool:
    """Whether a grant's place still has predecessors."""
    return bool(grant.after) and bool(unfinished(ctx, grant))


def is_being_revoked(ctx: Context, grant: Grant) -> bool:
    """Whether a Revoke of a valid grant is pending: other writes over one resize its shares."""
    allocation = grant.booking.allocation
    if allocation in ctx.resizing:
        return False
    return ctx.outbox.busy(subjects.ledger(grant.booking.node, allocation))


def standing_promise(ctx: Context, request: RequestId) -> Grant | None:
    """A request's reservation that waits for others to end (not to be evicted); None when it has none."""
    for allocation in ctx.facts.allocations_of.get(request, ()):
        entry = ctx.facts.ledger[allocation]
        if isinstance(entry, Grant) and not entry.evict and is_promise(ctx, entry):
            return entry
    return None


def is_exchange(grant: Grant) -> bool:
    """Whether a grant comes after its own request's reservation: it uses a part of that, and waits for no tenant."""
    return not grant.evict and comes_after_its_own(grant)


def has_place_now(ctx: Context, promised: Grant) -> bool:
    """Whether the request of a reservation has another grant that waits for nothing, or for this one only. If no pod is
    evicted for it, the reservation is kept until that other slice is there: making it may fail. Its exchange cannot be
    made before it is gone."""
    own = promised.booking.allocation
    for allocation in ctx.facts.allocations_of.get(promised.booking.request, ()):
        other = ctx.facts.ledger[allocation]
        if allocation == own or not isinstance(other, Grant) or is_being_revoked(ctx, other):
            continue
        before = unfinished(ctx, other)
        if before == (own,) and is_exchange(other):
            return True
        if not before and (promised.evict or isinstance(ctx.facts.slices.get(allocation), SliceReady)):
            return True
    return False


def is_in_quarantine(ctx: Context, allocation: AllocationId) -> bool:
    """Whether a slice could not be destroyed in several attempts: it may stay until an operator acts."""
    return isinstance(ctx.facts.slices.get(allocation), SliceQuarantined)


def is_earlier(ctx: Context, one: Grant, other: Grant) -> bool:
    """Two allocators may reserve at once: the grant that was written first stands, for every reader."""
    return _written(ctx, one) < _written(ctx, other)


def _written(ctx: Context, grant: Grant) -> tuple[int, AllocationId]:
    booking = grant.booking
    subject = subjects.ledger(booking.node, booking.allocation).subject
    return ctx.facts.sequences.get(subject, 0), booking.allocation


def named(entry: Grant | Revoke) -> str:
    return f"{entry.booking.namespace}/{entry.booking.name}"


def is_move(grant: Grant) -> bool:
    """Whether a grant keeps a place for a pod that is being moved: it comes after its own request's allocation."""
    return grant.evict and comes_after_its_own(grant)


def comes_after_its_own(entry: Grant | Revoke) -> bool:
    """Whether an entry comes, or came, after its own request's allocation, and nothing else."""
    own = entry.booking.request
    return bool(entry.after) and all(request_named(each) == own for each in entry.after)


def kin_of(source: str, namespace: str, name: str) -> KinKey:
    """The key that a pod shares with its successor: source, namespace, and its name without the random part."""
    return source, namespace, name.rpartition("-")[0] or name


def why_moved(grant: Grant) -> str:
    """Why a pod is evicted for a place that is kept for it. The same as long as the grant stands."""
    booking = grant.booking
    given = ", ".join(dict.fromkeys(_size_of(each) for each in booking.devices))
    return f"it is moved: a place on {booking.node} is kept for its replacement ({given})"


def _size_of(device: DeviceGrant) -> str:
    return "a share" if device.share is not None else device.profile or "a whole GPU"


class DeviceAmount(msgspec.Struct, frozen=True):
    """One device and its size. `memory_mib` is that of the instance, the whole GPU or the share. `sm_percent` is the
    percentage of the SMs of the model's largest profile, rounded down, for an instance; of the GPU's SMs for a share
    (100 where it has no bound)."""

    grant: DeviceGrant
    model: str
    mode: Mode
    memory_mib: int
    sm_percent: int


def device_amount(grant: DeviceGrant, model: GpuModel) -> DeviceAmount:
    """The size of `grant` on a GPU of `model`."""
    profile = model.profile(grant.profile) if grant.profile is not None else None
    if grant.share is not None:
        mode, memory_mib, sm_percent = grant.share.mode, grant.share.memory_mib, grant.share.sm_partition or 100
        return DeviceAmount(grant, model.product_names[0], mode, memory_mib, sm_percent)
    if profile is None:
        return DeviceAmount(grant, model.product_names[0], "exclusive", model.memory_mib, 100)
    sm_percent = profile.multiprocessors * 100 // model.largest.multiprocessors
    return DeviceAmount(grant, model.product_names[0], "exclusive", profile.memory_mib, sm_percent)
