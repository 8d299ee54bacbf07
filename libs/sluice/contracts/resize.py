"""
What a share counts while its size is being changed: one rule for whoever decides, whoever carries it out, and whoever
shows it.

A share that is made smaller is had whole until its agent says that nothing of it is used any more; one that is made
larger is booked before anybody may use it. So in between it counts as the larger of both, in every dimension
(PROTOCOL §4). It knows no ledger and no homes; it only compares.
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
    """Whether both are the same devices of the same tenant, however large the shares: places never move."""
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
    Whether processes that were told of one share may use more than those that are told of the other.

    Of a device, that is: time quotas are counted at admission, and nothing of them stays with a process.
    """
    return one.memory_mib > other.memory_mib or _width(one) > _width(other)


def is_resize_done(grant: Grant, slice_: SliceMessage | None) -> bool:
    """
    Whether an agent has said of a slice that nothing larger than granted is used any more.

    A slice that ails may have become as small before, and its place in the home may have been given to others since.
    """
    if not isinstance(slice_, (SliceReady, SliceFailed, SliceDegraded)):
        return False
    return slice_.revision >= grant.revision and not slice_.shrinking


def counted_booking(entry: Grant | Revoke, slice_: SliceMessage | None) -> Booking:
    """What an entry of the ledger counts: its booking, or more while an adjustment is not `is_resize_done`."""
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
    """In percent of the GPU's SMs; a share without a bound may use every one, which is more than any bound."""
    return share.sm_partition or 101
