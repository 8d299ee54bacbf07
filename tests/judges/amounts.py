"""What booked devices count against limits (docs/quotas.md), worked out a second time from what GPUs report."""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import ceil

from sluice.contracts.messages import Booking, DeviceGrant, GpuReport

Amount = tuple[int, int, int]
"""Devices, MiB, thousandths of compute slices."""


def amount_of(device: DeviceGrant, gpu: GpuReport) -> Amount:
    rows = {row.name: row for row in gpu.profiles}
    largest = max(gpu.profiles, key=lambda row: (row.compute_slices, row.memory_mib), default=None)
    slices = largest.compute_slices if largest is not None else max(gpu.compute_slices, 1)
    share = device.share
    if share is not None:
        part = Fraction(share.sm_partition, 100)
        if share.sm_partition == 0:
            whole = largest.memory_mib if device.profile is not None and largest is not None else gpu.memory_mib
            part = Fraction(share.memory_mib, whole)
        return 1, share.memory_mib, ceil(1000 * slices * part)
    if device.profile is None:
        return 1, gpu.memory_mib, 1000 * slices
    row = rows[device.profile]
    return 1, row.memory_mib, 1000 * row.compute_slices


def amounts(bookings: Iterable[Booking], gpus: Mapping[str, GpuReport]) -> dict[str, Amount]:
    """What each namespace has; `gpus` are as they were shown last."""
    found: dict[str, Amount] = {}
    for booking in bookings:
        for device in booking.devices:
            has, more = found.get(booking.namespace, (0, 0, 0)), amount_of(device, gpus[device.gpu])
            found[booking.namespace] = (has[0] + more[0], has[1] + more[1], has[2] + more[2])
    return found
