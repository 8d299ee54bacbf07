"""
What a tenant used of the last window, and how long its next token may be, so that the limit holds in every window.

Bounded: beyond `_INTERVALS_MAX` stretches the two oldest merge into one that ends with the later of them. That only
counts use for longer, so no limit is exceeded.
"""

from collections import deque

from sluice_node_agent.core.quota.config import WHOLE_PPM

_INTERVALS_MAX = 256
"""A window of 100 ms holds at most 100 tokens of 1 ms; more are those that were returned at once."""


class UsedTime:
    """The stretches in which a tenant held a token, within one window. All times are in microseconds."""

    __slots__ = ("_intervals", "_used_us", "_window_us")

    def __init__(self, window_us: int) -> None:
        """Start with nothing used."""
        self._window_us = window_us
        self._intervals: deque[list[int]] = deque()
        self._used_us = 0

    def add(self, start_us: int, end_us: int) -> None:
        """A token was held from `start_us` to `end_us`. Never before the last one added."""
        if end_us <= start_us:
            return
        self._used_us += end_us - start_us
        if self._intervals and self._intervals[-1][1] >= start_us:
            self._intervals[-1][1] = end_us
        else:
            self._intervals.append([start_us, end_us])
        if len(self._intervals) > _INTERVALS_MAX:
            first, second = self._intervals.popleft(), self._intervals[0]
            second[0] -= first[1] - first[0]
        self._forget(end_us)

    def used_us(self, now_us: int) -> int:
        """Time used within the window that ends now."""
        self._forget(now_us)
        return self._used_us

    def widen(self, window_us: int) -> None:
        """Use another window from now on. What was dropped stays dropped."""
        self._window_us = window_us

    def room_us(self, now_us: int, allowed_us: int, most_us: int) -> int:
        """
        The longest token that may begin now, at most `most_us`, so that no window holds more than `allowed_us`.

        While a token is held, use of a window ago leaves the window, so that time is free again.
        """
        self._forget(now_us)
        left = allowed_us - self._used_us
        if left < 0:
            return 0
        length, at = 0, now_us - self._window_us
        for start, end in self._intervals:
            gap = start - at
            taken = min(gap, left)
            length, left = length + taken, left - taken
            if taken < gap or length >= most_us:
                return min(length, most_us)
            length, at = length + end - start, end
        return min(length + left, most_us)

    def room_at_us(self, now_us: int, allowed_us: int, least_us: int) -> int:
        """When a token of `least_us` may begin, if nothing is used until then. Not before now."""
        self._forget(now_us)
        used, last = self._used_us, now_us - self._window_us
        for start, end in self._intervals:
            length, over = end - start, max(0, used - allowed_us)
            if over <= length and length + allowed_us - used >= least_us:
                return max(now_us, start + self._window_us + over)
            used, last = used - length, end
        return max(now_us, last + self._window_us)

    def _forget(self, now_us: int) -> None:
        begin = now_us - self._window_us
        while self._intervals and self._intervals[0][0] < begin:
            first = self._intervals[0]
            gone = min(first[1], begin) - first[0]
            self._used_us -= gone
            first[0] += gone
            if first[0] < first[1]:
                return
            self._intervals.popleft()


def limit_window_us(window_us: int, least_us: int, limit_ppm: int) -> int:
    """The window for a limit: longer where the usual one has no room for the shortest token."""
    return max(window_us, -(-least_us * WHOLE_PPM // max(1, limit_ppm)))
