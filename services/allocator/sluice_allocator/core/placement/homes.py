"""
The account of one home of shares: a whole GPU or a MIG instance that tenants of one trust domain share.

It says whether one more share fits and what is left, and knows nothing of where the home is. What is booked is counted
even where it does not fit (the ledger is right, not this account): only `why_not` judges, and nothing here raises.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from sluice.contracts.ids import AllocationId
from sluice.contracts.messages import Share
from sluice.contracts.reasons import WaitReason
from sluice.mig.share_width import FULL_WIDTH_PERCENT, width_percent
from sluice_allocator.core.placement.lanes import Lanes, ShareKey

ShareMode = Literal["mps", "fractional"]
TrustDomain = tuple[str, int]
"""A namespace and a uid: whose processes may share one MPS server."""


@dataclass(frozen=True, slots=True)
class HomeSize:
    """What a home has to give. Homes of one kind should share one object, for there may be very many."""

    memory_mib: int
    sms: int
    gpu_sms: int
    """The SMs that a share's `sm_partition` is a percentage of: those of the GPU that the home is on."""
    tenants_max: int
    taking_turns: bool
    """Whether the node's agent enforces time quotas, so that fractional shares may use the same SMs in turn."""
    overcommit_percent: int = 100
    """How much memory may be promised to `mps` shares, in percent of what there is."""


def level_needed(share: Share, size: HomeSize) -> int:
    """The lowest `Home.level` at which a home of this size can have room for the share. Never below 1."""
    if share.mode == "fractional":
        return max(1, width_percent(share.sm_partition, size.sms, size.gpu_sms))
    return max(1, _percent_of(share.memory_mib, _memory_to_promise(size, share.mode)))


class Home:
    """
    The shares of one home and what is left beside them. One mode and one trust domain at a time.

    That a share is of the home's mode and domain is for the caller to see to.
    """

    __slots__ = ("_lanes", "_shares", "_width_booked", "domain", "free_memory_mib", "mixed", "mode", "size")

    def __init__(self, size: HomeSize, mode: ShareMode, domain: TrustDomain) -> None:
        """An empty home."""
        self.size = size
        self.mode: ShareMode = mode
        self.domain = domain
        self.mixed = False
        """
        Something else is booked here: a share of another mode or domain, or an instance that overlaps. Two allocators
        decided at once, and one of them will take its booking back.
        """
        self.free_memory_mib = _memory_to_promise(size, mode)
        """What may still be promised; below zero when more is booked than may be."""
        self._shares: dict[ShareKey, Share] = {}
        self._width_booked = 0
        """The sum of all widths where nobody takes turns; not counted where lanes are."""
        self._lanes = Lanes() if mode == "fractional" and size.taking_turns else None

    def copy(self) -> "Home":
        """The same account, to try something on: lanes do not forget quite all that was in them."""
        copied = Home(self.size, self.mode, self.domain)
        copied.mixed = self.mixed
        copied.free_memory_mib = self.free_memory_mib
        copied._shares = dict(self._shares)
        copied._width_booked = self._width_booked
        copied._lanes = self._lanes.copy() if self._lanes is not None else None
        return copied

    def without(self, gone: AbstractSet[AllocationId]) -> "Home":
        """The account as it would be when all shares of these allocations have left."""
        left = self.copy()
        for key in [key for key in self._shares if key[0] in gone]:
            left.remove(key)
        return left

    def why_not(self, share: Share) -> WaitReason | None:
        """What is short for one more share; None when it fits. Memory is looked at first, then SMs, time, tenants."""
        size = self.size
        if self.mixed:
            return WaitReason.GPU_OTHER_TRUST_DOMAIN
        if share.memory_mib > self.free_memory_mib or share.memory_mib > size.memory_mib:
            return WaitReason.GPU_INSUFFICIENT_MEMORY
        if (short := self.why_too_wide(share)) is not None:
            return short
        return WaitReason.GPU_TENANTS_USED_UP if len(self._shares) >= size.tenants_max else None

    def why_too_wide(self, share: Share) -> WaitReason | None:
        """Whether SMs or time are short for one more share; never in `mps` mode, which promises neither."""
        if self.mode == "mps":
            return None
        if self._lanes is not None:
            return self._lanes.why_not(self._width(share), _time_permille(share))
        return WaitReason.GPU_INSUFFICIENT_SMS if self._width(share) > self.free_width_percent else None

    def why_not_become(self, key: ShareKey, share: Share) -> WaitReason | None:
        """What is short for a share that lives here to become another; None when it can. What shrinks always can."""
        before, left = self._shares[key], self.copy()
        left.remove(key)
        if share.memory_mib > before.memory_mib and share.memory_mib > min(left.free_memory_mib, self.size.memory_mib):
            return WaitReason.GPU_INSUFFICIENT_MEMORY
        wider, longer = self._width(share) > self._width(before), _time_permille(share) > _time_permille(before)
        if self.mixed and (wider or longer or share.memory_mib > before.memory_mib):
            return WaitReason.GPU_OTHER_TRUST_DOMAIN
        if wider or (longer and self._lanes is not None):
            return left.why_too_wide(share)
        return None

    def _width(self, share: Share) -> int:
        return width_percent(share.sm_partition, self.size.sms, self.size.gpu_sms)

    def add(self, key: ShareKey, share: Share) -> None:
        """Count a booked share, whether it fits or not; one that is already counted under `key` is replaced."""
        if key in self._shares:
            self.remove(key)
        self._shares[key] = share
        self.free_memory_mib -= share.memory_mib
        if self.mode == "fractional":
            width = width_percent(share.sm_partition, self.size.sms, self.size.gpu_sms)
            if self._lanes is not None:
                self._lanes.add(key, width, _time_permille(share))
            else:
                self._width_booked += width

    def remove(self, key: ShareKey) -> None:
        """Forget a share, if it is counted."""
        share = self._shares.pop(key, None)
        if share is None:
            return
        self.free_memory_mib += share.memory_mib
        if self.mode == "fractional":
            if self._lanes is not None:
                self._lanes.remove(key)
            else:
                self._width_booked -= width_percent(share.sm_partition, self.size.sms, self.size.gpu_sms)

    @property
    def shares(self) -> Mapping[ShareKey, Share]:
        """Whose shares are booked here."""
        return self._shares

    @property
    def empty(self) -> bool:
        """Whether nobody lives here."""
        return not self._shares

    @property
    def tenants(self) -> int:
        """How many shares are booked here; each is one client of the home's MPS server."""
        return len(self._shares)

    @property
    def full(self) -> bool:
        """Whether no share fits, however small: no memory is left, no client of the MPS server, or it is mixed."""
        return self.mixed or self.free_memory_mib <= 0 or len(self._shares) >= self.size.tenants_max

    @property
    def overbooked(self) -> bool:
        """Whether somebody has to leave before everybody who is booked here can live here."""
        short = min(self.free_memory_mib, self.free_width_percent, self.size.tenants_max - len(self._shares)) < 0
        return self.mixed or short

    @property
    def free_width_percent(self) -> int:
        """What is left of the home's SMs; below zero when more is booked than there is. 100 in `mps` mode."""
        booked = self._lanes.width_percent if self._lanes is not None else self._width_booked
        return FULL_WIDTH_PERCENT - booked

    @property
    def level(self) -> int:
        """
        The class by which searches find the home: no share that needs a higher level (`level_needed`) fits.

        Of 100: the widest share that may still fit (where nobody takes turns that is the free width), or in `mps` mode
        the free memory, rounded up, so that 0 is a home with nothing left.
        """
        if self.full:
            return 0
        if self.mode == "mps":
            return _percent_of(self.free_memory_mib, _memory_to_promise(self.size, self.mode))
        widest = self._lanes.widest_percent() if self._lanes is not None else FULL_WIDTH_PERCENT - self._width_booked
        return min(FULL_WIDTH_PERCENT, max(0, widest))


def _memory_to_promise(size: HomeSize, mode: ShareMode) -> int:
    """The memory of a home that shares may be promised, in MiB: only `mps` shares more than there is."""
    return size.memory_mib * size.overcommit_percent // 100 if mode == "mps" else size.memory_mib


def _percent_of(memory_mib: int, whole_mib: int) -> int:
    """Rounded up: any memory at all is at least one percent."""
    return -(-100 * memory_mib // max(1, whole_mib))


def _time_permille(share: Share) -> int:
    """The sure part of a window. Even a share that asks for none has its turn, and counts as one permille."""
    return max(1, share.quota_request_permille)
