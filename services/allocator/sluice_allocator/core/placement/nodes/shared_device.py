"""The account of one home of shares: a whole GPU or a MIG instance that tenants of one trust domain share. It tells
whether one more share fits and what is left. Bookings count even where they do not fit (the ledger is authoritative);
only `why_not` refuses, and nothing here raises."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from sluice.contracts.ids import AllocationId
from sluice.contracts.messages import Share
from sluice.contracts.reasons import WaitReason
from sluice.mig.share_width import FULL_WIDTH_PERCENT, width_percent
from sluice_allocator.core.placement.nodes.time_slots import DeviceKey, TimeSlots

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


def level_needed(share: Share, size: SharedDeviceSize) -> int:
    """The lowest `Home.level` at which a home of this size can have room for the share. Never below 1."""
    if share.mode == "fractional":
        return max(1, width_percent(share.sm_partition, size.sms, size.gpu_sms))
    return max(1, _percent_of(share.memory_mib, _memory_to_promise(size, share.mode)))


def fits_alone(size: SharedDeviceSize, share: Share) -> bool:
    """Whether a share fits in an empty home of this size."""
    return SharedDevice(size, share.mode, ("", 0)).why_not(share) is None


class SharedDevice:
    """The shares of one home and what is left. One mode and one trust domain at a time. The caller checks that a share
    has the home's mode and domain."""

    __slots__ = ("_shares", "_slots", "_width_booked", "domain", "free_memory_mib", "mixed", "mode", "size")

    def __init__(self, size: SharedDeviceSize, mode: ShareMode, domain: TrustDomain) -> None:
        self.size = size
        self.mode: ShareMode = mode
        self.domain = domain
        self.mixed = False
        """Another booking conflicts here: a share of another mode or domain, or an overlapping instance. Two allocators
        decided at once, and one of them will take its booking back."""
        self.free_memory_mib = _memory_to_promise(size, mode)  # memory left to reserve; below zero when overbooked
        self._shares: dict[DeviceKey, Share] = {}
        self._width_booked = 0  # the sum of all widths without time sharing; unused with slots
        self._slots = TimeSlots() if mode == "fractional" and size.taking_turns else None

    def copy(self) -> "SharedDevice":
        """A copy for trials; slots keep some history of former shares."""
        copied = SharedDevice(self.size, self.mode, self.domain)
        copied.mixed = self.mixed
        copied.free_memory_mib = self.free_memory_mib
        copied._shares = dict(self._shares)
        copied._width_booked = self._width_booked
        copied._slots = self._slots.copy() if self._slots is not None else None
        return copied

    def without(self, gone: AbstractSet[AllocationId]) -> "SharedDevice":
        left = self.copy()
        for key in [key for key in self._shares if key[0] in gone]:
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
        return WaitReason.GPU_TENANTS_USED_UP if len(self._shares) >= size.tenants_max else None

    def why_too_wide(self, share: Share) -> WaitReason | None:
        """Whether SMs or time are short for one more share; never in `mps` mode, which reserves neither."""
        if self.mode == "mps":
            return None
        if self._slots is not None:
            return self._slots.why_not(self._width(share), _time_permille(share))
        return WaitReason.GPU_INSUFFICIENT_SMS if self._width(share) > self.free_width_percent else None

    def why_not_become(self, key: DeviceKey, share: Share) -> WaitReason | None:
        """What is short for a share here to become another; None when it can. Shrinking always can."""
        before, left = self._shares[key], self.copy()
        left.remove(key)
        if share.memory_mib > before.memory_mib and share.memory_mib > min(left.free_memory_mib, self.size.memory_mib):
            return WaitReason.GPU_INSUFFICIENT_MEMORY
        wider, longer = self._width(share) > self._width(before), _time_permille(share) > _time_permille(before)
        if self.mixed and (wider or longer or share.memory_mib > before.memory_mib):
            return WaitReason.GPU_OTHER_TRUST_DOMAIN
        if wider or (longer and self._slots is not None):
            return left.why_too_wide(share)
        return None

    def _width(self, share: Share) -> int:
        return width_percent(share.sm_partition, self.size.sms, self.size.gpu_sms)

    def add(self, key: DeviceKey, share: Share) -> None:
        """Count a booked share, fitting or not; replaces one already counted under `key`."""
        if key in self._shares:
            self.remove(key)
        self._shares[key] = share
        self.free_memory_mib -= share.memory_mib
        if self.mode == "fractional":
            width = self._width(share)
            if self._slots is not None:
                self._slots.add(key, width, _time_permille(share))
            else:
                self._width_booked += width

    def remove(self, key: DeviceKey) -> None:
        share = self._shares.pop(key, None)
        if share is None:
            return
        self.free_memory_mib += share.memory_mib
        if self.mode == "fractional":
            if self._slots is not None:
                self._slots.remove(key)
            else:
                self._width_booked -= self._width(share)

    @property
    def shares(self) -> Mapping[DeviceKey, Share]:
        return self._shares

    @property
    def empty(self) -> bool:
        return not self._shares

    @property
    def tenants(self) -> int:
        """How many shares are booked here; each is one client of the home's MPS server."""
        return len(self._shares)

    @property
    def full(self) -> bool:
        """Whether no share fits, however small: no memory or MPS client is left, or it is mixed."""
        return self.mixed or self.free_memory_mib <= 0 or len(self._shares) >= self.size.tenants_max

    @property
    def overbooked(self) -> bool:
        """Whether a tenant has to leave before all booked shares fit."""
        short = min(self.free_memory_mib, self.free_width_percent, self.size.tenants_max - len(self._shares)) < 0
        return self.mixed or short

    @property
    def free_width_percent(self) -> int:
        """What is left of the home's SMs; below zero when more is booked than there is. 100 in `mps` mode."""
        booked = self._slots.width_percent if self._slots is not None else self._width_booked
        return FULL_WIDTH_PERCENT - booked

    @property
    def level(self) -> int:
        """The class by which searches find the home: no share that needs a higher level (`level_needed`) fits. Of 100:
        the widest share that may still fit (the free width, without time sharing), or in `mps` mode the free memory,
        rounded up, so that 0 is a home with nothing left."""
        if self.full:
            return 0
        if self.mode == "mps":
            return _percent_of(self.free_memory_mib, _memory_to_promise(self.size, self.mode))
        widest = self._slots.widest_percent() if self._slots is not None else FULL_WIDTH_PERCENT - self._width_booked
        return min(FULL_WIDTH_PERCENT, max(0, widest))


def _memory_to_promise(size: SharedDeviceSize, mode: ShareMode) -> int:
    """A home's memory that shares may reserve, in MiB: only `mps` allows more than there is."""
    return size.memory_mib * size.overcommit_percent // 100 if mode == "mps" else size.memory_mib


def _percent_of(memory_mib: int, whole_mib: int) -> int:
    """Rounded up: any memory at all is at least one percent."""
    return -(-100 * memory_mib // max(1, whole_mib))


def _time_permille(share: Share) -> int:
    """The guaranteed part of a time window. A share that asks for none counts as one permille."""
    return max(1, share.quota_request_permille)
