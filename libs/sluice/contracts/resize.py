"""
What a share counts while it is resized: one rule for the allocator, the agent and everything that shows it.

A share being shrunk keeps its size until its agent confirms that nothing more is used; one being enlarged is booked
before it may use more. Meanwhile it counts as the larger of both in every dimension (PROTOCOL §4).
"""

from collections.abc import Sequence

from msgspec.structs import replace

from sluice.contracts.messages import (
    Booking,
    DeviceGrant,
    Grant,
    Revoke,
    Share,
    SliceDegraded,
    SliceFailed,
    SliceMessage,
    SliceReady,
)

Devices = tuple[DeviceGrant, ...]


def same_places(one: Sequence[DeviceGrant], other: Sequence[DeviceGrant]) -> bool:
    """Whether both are the same devices of the same tenant, whatever the size of the shares: places never move."""
    return [_place(device) for device in one] == [_place(device) for device in other]


def max_sizes(one: Sequence[DeviceGrant], other: Sequence[DeviceGrant]) -> Devices:
    """The same places (see `same_places`), each share with the larger of both in every dimension."""
    return tuple(
        replace(a, share=_larger(a.share, b.share)) if a.share is not None and b.share is not None else a
        for a, b in zip(one, other, strict=True)
    )


def min_sizes(one: Sequence[DeviceGrant], other: Sequence[DeviceGrant]) -> Devices:
    """The same places (see `same_places`), each share with the smaller of both in every dimension."""
    return tuple(
        replace(a, share=_smaller(a.share, b.share)) if a.share is not None and b.share is not None else a
        for a, b in zip(one, other, strict=True)
    )


def uses_more(one: Share, other: Share) -> bool:
    """
    Whether processes configured for one share may use more than those configured for the other.

    Concerns the device only: time quotas are counted at admission, and processes keep nothing of them.
    """
    return one.memory_mib > other.memory_mib or _width(one) > _width(other)


def is_resize_done(grant: Grant, slice_: SliceMessage | None) -> bool:
    """
    Whether an agent has confirmed that a slice uses nothing larger than granted.

    A degraded slice may have shrunk before, and its room on the shared device may belong to others since.
    """
    if not isinstance(slice_, (SliceReady, SliceFailed, SliceDegraded)):
        return False
    return slice_.revision >= grant.revision and not slice_.shrinking


def counted_booking(entry: Grant | Revoke, slice_: SliceMessage | None) -> Booking:
    """What a ledger entry counts: its booking, or more while a resize is not `is_resize_done`."""
    if isinstance(entry, Revoke) or not entry.counts or is_resize_done(entry, slice_):
        return entry.booking
    return replace(entry.booking, devices=entry.counts)


def _place(device: DeviceGrant) -> tuple[object, ...]:
    share = device.share
    whose = (share.mode, share.uid) if share is not None else None
    return device.container, device.gpu, device.profile, device.start, device.size, whose


def _larger(one: Share, other: Share) -> Share:
    return replace(
        one,
        memory_mib=max(one.memory_mib, other.memory_mib),
        sm_partition=one.sm_partition if _width(one) >= _width(other) else other.sm_partition,
        quota_request_permille=max(one.quota_request_permille, other.quota_request_permille),
        quota_limit_permille=max(one.quota_limit_permille, other.quota_limit_permille),
    )


def _smaller(one: Share, other: Share) -> Share:
    return replace(
        one,
        memory_mib=min(one.memory_mib, other.memory_mib),
        sm_partition=one.sm_partition if _width(one) <= _width(other) else other.sm_partition,
        quota_request_permille=min(one.quota_request_permille, other.quota_request_permille),
        quota_limit_permille=min(one.quota_limit_permille, other.quota_limit_permille),
    )


def _width(share: Share) -> int:
    """In percent of the GPU's SMs; a share without a bound may use all, which is more than any bound."""
    return share.sm_partition or 101
