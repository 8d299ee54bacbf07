"""Capacity of a shared device, defined a second time for the judge: memory, SMs, MPS clients (docs/sharing.md)."""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil

import msgspec
from judges.placements import fits_side_by_side
from simulation.judges.gpu_tables import MPS_CLIENTS_MAX, GpuRow, Span

from sluice.contracts.messages import Booking, DeviceGrant, Share

Domain = tuple[str, int]
"""A namespace and a user: whose processes may share one MPS server."""


class Held(msgspec.Struct, frozen=True):
    """One booked place. `profile` is empty for a whole GPU."""

    gpu: str
    profile: str
    span: Span
    allocation: str
    share: Share | None
    domain: Domain

    def lives_with(self, share: Share | None, span: Span, domain: Domain) -> bool:
        """Whether a share at `span` would live in the same home."""
        return self.share is not None and share is not None and self.place == (span, share.mode, domain)

    @property
    def place(self) -> tuple[Span, str, Domain]:
        """Where it is, in which mode, and its namespace and user."""
        return self.span, self.share.mode if self.share is not None else "exclusive", self.domain


def held_by(booking: Booking, device: DeviceGrant) -> Held:
    uid = device.share.uid if device.share is not None else 0
    span = (device.start, device.size)
    return Held(device.gpu, device.profile or "", span, booking.allocation, device.share, (booking.namespace, uid))


def gives(row: GpuRow, *, mig: bool) -> tuple[int, int]:
    """What 100 % of a GPU are: its memory in MiB and its SMs, with MIG those of its largest profile."""
    largest = row.profiles[-1]
    return (largest.memory_mib, largest.multiprocessors) if mig else (row.memory_mib, row.multiprocessors)


def instance_mib(row: GpuRow, percent: int) -> int:
    """The memory in MiB of the smallest instance that has so many percent of the memory slices of its GPU."""
    sizes = [(size, found.memory_mib) for found in row.profiles for _, size in found.placements]
    return min(memory_mib for size, memory_mib in sizes if size * 100 >= percent * row.memory_slices)


def home_gives(row: GpuRow, profile: str) -> tuple[int, int]:
    """The memory in MiB and the SMs of a home: of an instance, or of a whole GPU without MIG."""
    found = row.profile(profile) if profile else None
    return (found.memory_mib, found.multiprocessors) if found is not None else (row.memory_mib, row.multiprocessors)


def width_of(share: Share, row: GpuRow, profile: str) -> int:
    """The percentage of its home's SMs that a share takes, rounded up to whole SMs on an instance."""
    if share.mode == "mps" or not share.sm_partition:
        return 100
    if not profile:
        return share.sm_partition
    _, all_sms = gives(row, mig=True)
    _, sms = home_gives(row, profile)
    if sms >= all_sms:
        return share.sm_partition
    return ceil(Fraction(100 * ceil(Fraction(share.sm_partition * all_sms, 100)), sms))


def grows(before: Booking, after: Booking) -> bool:
    """Whether more may be used of a share than of what it was; one without a bound of its SMs may use them all."""
    pairs = [(one.share, other.share) for one, other in zip(before.devices, after.devices, strict=True)]
    return any(
        one is not None
        and other is not None
        and (other.memory_mib > one.memory_mib or (other.sm_partition or 101) > (one.sm_partition or 101))
        for one, other in pairs
    )


def overfull(row: GpuRow, profile: str, shares: Sequence[Share], *, taking_turns: bool = False) -> str:
    """What these shares together take too much of in one home; empty when they fit."""
    memory_mib, sms = home_gives(row, profile)
    if sum(share.memory_mib for share in shares) > memory_mib:
        return f"{[share.memory_mib for share in shares]} of {memory_mib} MiB"
    widths = [width_of(share, row, profile) for share in shares if share.mode == "fractional"]
    times = [max(1, share.quota_request_permille) for share in shares if share.mode == "fractional"]
    if not fits_side_by_side(list(zip(widths, times, strict=True)), taking_turns=taking_turns):
        return f"{widths} percent of its SMs, for {times} thousandths of the time"
    _, all_sms = gives(row, mig=bool(profile))
    clients = max(1, MPS_CLIENTS_MAX * sms // all_sms)
    return f"{len(shares)} of {clients} clients" if len(shares) > clients else ""
