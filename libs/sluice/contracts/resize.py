"""What a share counts while it is resized: the larger of both sizes in every dimension (PROTOCOL §4).

One being shrunk keeps its size until its agent confirms that nothing more is used; one being enlarged is booked before
it may use more."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from sluice.contracts import messages as m

Devices = tuple[m.DeviceGrant, ...]


def same_places(one: Sequence[m.DeviceGrant], other: Sequence[m.DeviceGrant]) -> bool:
    """Whether both are the same devices of the same tenant, whatever the size of the shares: places never move."""
    return [_place(device) for device in one] == [_place(device) for device in other]


def max_sizes(one: Sequence[m.DeviceGrant], other: Sequence[m.DeviceGrant]) -> Devices:
    return _sizes(one, other, max)


def min_sizes(one: Sequence[m.DeviceGrant], other: Sequence[m.DeviceGrant]) -> Devices:
    return _sizes(one, other, min)


def uses_more(one: m.Share, other: m.Share) -> bool:
    """Whether processes of one share may use more of the device than those of the other, time aside."""
    return one.memory_mib > other.memory_mib or _width(one) > _width(other)


def is_resize_done(grant: m.Grant, slice_: m.SliceMessage | None) -> bool:
    """Whether an agent has confirmed that nothing larger than granted is used; a degraded slice may have shrunk."""
    if not isinstance(slice_, (m.SliceReady, m.SliceFailed, m.SliceDegraded)):
        return False
    return slice_.revision >= grant.revision and not slice_.shrinking


def counted_booking(entry: m.Grant | m.Revoke, slice_: m.SliceMessage | None) -> m.Booking:
    """What a ledger entry counts: its booking, or more while a resize is not `is_resize_done`."""
    if isinstance(entry, m.Revoke) or not entry.counts or is_resize_done(entry, slice_):
        return entry.booking
    return replace(entry.booking, devices=entry.counts)


def _place(device: m.DeviceGrant) -> tuple[object, ...]:
    share = device.share
    whose = (share.mode, share.uid) if share is not None else None
    return device.container, device.gpu, device.profile, device.start, device.size, whose


def _sizes(one: Sequence[m.DeviceGrant], other: Sequence[m.DeviceGrant], choose: Callable[..., Any]) -> Devices:
    return tuple(
        replace(a, share=_chosen(a.share, b.share, choose)) if a.share is not None and b.share is not None else a
        for a, b in zip(one, other, strict=True)
    )


def _chosen(one: m.Share, other: m.Share, choose: Callable[..., Any]) -> m.Share:
    fields = ("memory_mib", "quota_request_permille", "quota_limit_permille")
    sizes = {field: choose(getattr(one, field), getattr(other, field)) for field in fields}
    return replace(one, sm_partition=choose(one, other, key=_width).sm_partition, **sizes)


def _width(share: m.Share) -> int:
    """In percent of the GPU's SMs; a share without a bound may use all, which is more than any bound."""
    return share.sm_partition or 101
