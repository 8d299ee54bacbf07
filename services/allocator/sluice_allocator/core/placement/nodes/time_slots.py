"""Puts the fractional shares of one home into slots that divide its SMs; the shares of a slot use them in turn. A slot
is as wide as its widest share, and the guaranteed parts of a time window of its shares add up to at most the whole
window. Slots are bookkeeping: they prove that every share can have its guarantee at the same time. Agents do not know
them, so they may be redrawn. Bookings count even where they do not fit."""

from sluice.contracts.ids import AllocationId
from sluice.contracts.reasons import WaitReason
from sluice.mig.share_width import FULL_WIDTH_PERCENT

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
        overbooked (a share is reserved beside one that still runs), no share joins: its slot may be needed for the
        reserved one."""
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
        """The widest share that fits, however little time it wants."""
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
