"""The account of one home of shares: a whole GPU or a MIG instance that tenants of one trust domain share. It tells
whether one more share fits and what is left. Bookings count even where they do not fit (the ledger is authoritative);
only `why_not` refuses, and nothing here raises."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from sluice.contracts.ids import AllocationId
from sluice.contracts.messages import Share
from sluice.contracts.reasons import WaitReason
from sluice.mig.share_width import FULL_WIDTH_PERCENT, width_percent

DeviceKey = tuple[AllocationId, int]  # an allocation and the number of its device

WINDOW_PERMILLE = 1000


class TimeSlots:
    """The slots of one home. Widths are in percent of the home's SMs, times in permille of a window."""

    __slots__ = ("_members", "_times", "_widths", "width_percent")

    def __init__(self) -> None:
        self._members: dict[DeviceKey, tuple[int, int, int]] = {}  # each share's slot, width and time
        self._widths: list[int] = []  # Width per slot. An empty slot has no width and is as good as a new one.
        self._times: list[int] = []
        self.width_percent = 0  # the width of all slots together; above 100 when overbooked

    def copy(self) -> "TimeSlots":
        copied = TimeSlots()
        copied._members, copied._widths, copied._times = dict(self._members), list(self._widths), list(self._times)
        copied.width_percent = self.width_percent
        return copied

    def why_not(self, width_percent: int, time_permille: int) -> WaitReason | None:
        """What is short for one more share: SMs, or time where only that keeps it out of a slot. While a home is
        overbooked no share joins: a reserved one may need its slot."""
        free = FULL_WIDTH_PERCENT - self.width_percent
        if width_percent <= free:
            return None
        if free < 0:
            return WaitReason.GPU_TIME_USED_UP
        reason = WaitReason.GPU_INSUFFICIENT_SMS
        for width, time in zip(self._widths, self._times, strict=True):
            if width_percent - width <= free:
                if time + time_permille <= WINDOW_PERMILLE:
                    return None
                reason = WaitReason.GPU_TIME_USED_UP
        return reason

    def widest_percent(self) -> int:
        if self.width_percent > FULL_WIDTH_PERCENT:
            return 0
        open_lanes = (w for w, t in zip(self._widths, self._times, strict=True) if t < WINDOW_PERMILLE)
        return max(open_lanes, default=0) + FULL_WIDTH_PERCENT - self.width_percent

    def add(self, key: DeviceKey, width_percent: int, time_permille: int) -> None:
        """Put a share where it costs least; if that is too wide, redraw all slots if this helps."""
        self._put(key, width_percent, time_permille)
        if self.width_percent > FULL_WIDTH_PERCENT:
            self._redraw()

    def remove(self, key: DeviceKey) -> None:
        """Remove a share, if present: its slot shrinks to the widest left."""
        gone = self._members.pop(key, None)
        if gone is None:
            return
        slot, width, time = gone
        self._times[slot] -= time
        if width == self._widths[slot]:
            left = max((w for at, w, _ in self._members.values() if at == slot), default=0)
            self._widths[slot] = left
            self.width_percent -= width - left

    def _put(self, key: DeviceKey, width: int, time: int) -> None:
        """Choose the slot that wastes least SMs times time, then the one with the least time left. A narrower share
        wastes the rest of its slot's width for its own time; a wider one widens the slot for the time of all its
        shares. A new slot wastes nothing. A slot beyond the available width comes last."""
        free = FULL_WIDTH_PERCENT - self.width_percent
        chosen, best = len(self._widths), (max(0, width - free), 0, WINDOW_PERMILLE - time)
        for slot, (its_width, its_time) in enumerate(zip(self._widths, self._times, strict=True)):
            left = WINDOW_PERMILLE - its_time - time
            if left >= 0:
                grows = width - its_width
                cost = (max(0, grows - free), grows * its_time if grows > 0 else -grows * time, left)
                if cost < best or (cost == best and chosen == len(self._widths)):
                    chosen, best = slot, cost
        self._join(key, chosen, width, time)

    def _join(self, key: DeviceKey, slot: int, width: int, time: int) -> None:
        if slot == len(self._widths):
            self._widths.append(0)
            self._times.append(0)
        self._members[key] = (slot, width, time)
        self._times[slot] += time
        grows = width - self._widths[slot]
        if grows > 0:
            self._widths[slot] = width
            self.width_percent += grows

    def _redraw(self) -> None:
        """Put shares from widest to narrowest into the first slot with time, and keep the result if it is narrower. The
        result is at most 1.7 times the least possible width plus one widest share (first-fit decreasing height:
        Coffman, Garey, Johnson and Tarjan, "Performance bounds for level-oriented two-dimensional packing algorithms",
        1980). Only shares admitted in another order, or beyond what fits, need this."""
        redrawn = TimeSlots()
        widest_first = sorted(self._members.items(), key=lambda member: (-member[1][1], -member[1][2], member[0]))
        for key, (_, width, time) in widest_first:
            room = (slot for slot, its_time in enumerate(redrawn._times) if its_time + time <= WINDOW_PERMILLE)
            redrawn._join(key, next(room, len(redrawn._times)), width, time)
        if redrawn.width_percent < self.width_percent:
            self._members, self._widths, self._times = redrawn._members, redrawn._widths, redrawn._times
            self.width_percent = redrawn.width_percent


ShareMode = Literal["mps", "fractional"]
TrustDomain = tuple[str, int]  # a namespace and a uid: the processes that may share one MPS server


@dataclass(frozen=True, slots=True)
class SharedDeviceSize:
    """The capacity of a home. Homes of one kind should share one object, for there may be very many."""

    memory_mib: int
    sms: int
    gpu_sms: int  # the SMs that a share's `sm_partition` is a percentage of: those of the GPU that the home is on
    tenants_max: int
    taking_turns: bool  # whether the agent enforces time quotas, so that fractional shares take turns on SMs
    overcommit_percent: int = 100  # how much memory `mps` shares may reserve, in percent of the actual memory

    def level_needed(self, share: Share) -> int:
        """The lowest `SharedDevice.level` at which such a home can have room for the share. Never below 1."""
        if share.mode == "fractional":
            return max(1, self.width(share))
        return max(1, _percent_of(share.memory_mib, self.memory_to_promise(share.mode)))

    def fits_alone(self, share: Share) -> bool:
        return SharedDevice(self, share.mode, ("", 0)).why_not(share) is None

    def memory_to_promise(self, mode: ShareMode) -> int:
        """The memory that shares may reserve, in MiB: only `mps` allows more than there is."""
        return self.memory_mib * self.overcommit_percent // 100 if mode == "mps" else self.memory_mib

    def width(self, share: Share) -> int:
        return width_percent(share.sm_partition, self.sms, self.gpu_sms)


class SharedDevice:
    """The shares of one home, of one mode and trust domain (which the caller checks), and what is left."""

    __slots__ = ("_slots", "_width_booked", "domain", "free_memory_mib", "mixed", "mode", "shares", "size")

    def __init__(self, size: SharedDeviceSize, mode: ShareMode, domain: TrustDomain) -> None:
        self.size = size
        self.mode: ShareMode = mode
        self.domain = domain
        self.mixed = False
        """Another booking conflicts here: a share of another mode or domain, or an overlapping instance. Two allocators
        decided at once, and one of them will take its booking back."""
        self.free_memory_mib = size.memory_to_promise(mode)  # memory left to reserve; below zero when overbooked
        self.shares: dict[DeviceKey, Share] = {}  # each is one client of the home's MPS server
        self._width_booked = 0  # the sum of all widths without time sharing; unused with slots
        self._slots = TimeSlots() if mode == "fractional" and size.taking_turns else None

    def copy(self) -> "SharedDevice":
        """A copy for trials; slots keep some history of former shares."""
        copied = SharedDevice(self.size, self.mode, self.domain)
        copied.mixed, copied.free_memory_mib = self.mixed, self.free_memory_mib
        copied.shares, copied._width_booked = dict(self.shares), self._width_booked
        copied._slots = self._slots.copy() if self._slots is not None else None
        return copied

    def without(self, gone: AbstractSet[AllocationId]) -> "SharedDevice":
        left = self.copy()
        for key in self.shares:
            if key[0] in gone:
                left.remove(key)
        return left

    def why_not(self, share: Share) -> WaitReason | None:
        """What is short for one more share; None when it fits. Memory is checked first, then SMs, time, tenants."""
        size = self.size
        if self.mixed:
            return WaitReason.GPU_OTHER_TRUST_DOMAIN
        if share.memory_mib > self.free_memory_mib or share.memory_mib > size.memory_mib:
            return WaitReason.GPU_INSUFFICIENT_MEMORY
        if (short := self.why_too_wide(share)) is not None:
            return short
        return WaitReason.GPU_TENANTS_USED_UP if len(self.shares) >= size.tenants_max else None

    def why_too_wide(self, share: Share) -> WaitReason | None:
        """Whether SMs or time are short for one more share; never in `mps` mode, which reserves neither."""
        if self.mode == "mps":
            return None
        if self._slots is not None:
            return self._slots.why_not(self.size.width(share), _time_permille(share))
        return WaitReason.GPU_INSUFFICIENT_SMS if self.size.width(share) > self.free_width_percent else None

    def why_not_become(self, key: DeviceKey, share: Share) -> WaitReason | None:
        """What is short for a share here to become another; None when it can. Shrinking always can."""
        before, left = self.shares[key], self.copy()
        left.remove(key)
        if share.memory_mib > before.memory_mib and share.memory_mib > min(left.free_memory_mib, self.size.memory_mib):
            return WaitReason.GPU_INSUFFICIENT_MEMORY
        wider, longer = self.size.width(share) > self.size.width(before), _time_permille(share) > _time_permille(before)
        if self.mixed and (wider or longer or share.memory_mib > before.memory_mib):
            return WaitReason.GPU_OTHER_TRUST_DOMAIN
        if wider or (longer and self._slots is not None):
            return left.why_too_wide(share)
        return None

    def add(self, key: DeviceKey, share: Share) -> None:
        """Count a booked share, fitting or not; replaces one already counted under `key`."""
        if key in self.shares:
            self.remove(key)
        self.shares[key] = share
        self.free_memory_mib -= share.memory_mib
        if self.mode == "fractional":
            width = self.size.width(share)
            if self._slots is not None:
                self._slots.add(key, width, _time_permille(share))
            else:
                self._width_booked += width

    def remove(self, key: DeviceKey) -> None:
        share = self.shares.pop(key, None)
        if share is None:
            return
        self.free_memory_mib += share.memory_mib
        if self.mode == "fractional":
            if self._slots is not None:
                self._slots.remove(key)
            else:
                self._width_booked -= self.size.width(share)

    @property
    def full(self) -> bool:
        """Whether no share fits, however small: no memory or MPS client is left, or it is mixed."""
        return self.mixed or self.free_memory_mib <= 0 or len(self.shares) >= self.size.tenants_max

    @property
    def overbooked(self) -> bool:
        """Whether a tenant has to leave before all booked shares fit."""
        short = min(self.free_memory_mib, self.free_width_percent, self.size.tenants_max - len(self.shares)) < 0
        return self.mixed or short

    @property
    def free_width_percent(self) -> int:
        """What is left of the home's SMs; below zero when more is booked than there is. 100 in `mps` mode."""
        booked = self._slots.width_percent if self._slots is not None else self._width_booked
        return FULL_WIDTH_PERCENT - booked

    @property
    def level(self) -> int:
        """The class by which searches find the home, of 100: the widest share that may still fit, or in `mps` mode the
        free memory, rounded up; 0: nothing left. A share that needs more (`level_needed`) does not fit."""
        if self.full:
            return 0
        if self.mode == "mps":
            return _percent_of(self.free_memory_mib, self.size.memory_to_promise(self.mode))
        widest = self._slots.widest_percent() if self._slots is not None else FULL_WIDTH_PERCENT - self._width_booked
        return min(FULL_WIDTH_PERCENT, max(0, widest))


def _percent_of(memory_mib: int, whole_mib: int) -> int:
    """Rounded up: any memory at all is at least one percent."""
    return -(-100 * memory_mib // max(1, whole_mib))


def _time_permille(share: Share) -> int:
    """The guaranteed part of a time window. A share that asks for none counts as one permille."""
    return max(1, share.quota_request_permille)
