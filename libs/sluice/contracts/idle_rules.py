"""When a pod whose slice idles may be evicted: what its owner or an operator writes, and the decision.

Times are unix seconds. A protected window is a text such as `mon-fri 08:00-18:00 +02:00`, several separated by `;`."""

import re
from dataclasses import dataclass
from typing import Literal

IDLE_AFTER_MIN_S = 600
"""Agents publish idleness after `IDLE_TOLD_S`; below this there is no time for a warning."""
IDLE_AFTER_MAX_S = 30 * 86_400
IDLE_TOLD_S = 300
"""A slice counts as idle on the bus after so long: a pause between two steps of a program is no message."""
WARNED_BEFORE_S = 600.0
"""How long before its eviction a pod is warned; half the time of a rule that is shorter than twice this."""
NEVER = 0
"""In place of a duration: the owner keeps the slice, whatever the default is."""
AFTER_ALLOWED = "a duration from 10m to 30d, such as 90m, 2h or 1d, or never"
WINDOW_ALLOWED = "windows such as 'mon-fri 08:00-18:00 +02:00', several separated by ';'"
WINDOWS_MAX = 16

_UNITS = {"m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"([1-9][0-9]{0,5})([mhd])")
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY = "|".join(_DAYS)
_TIME = r"([01][0-9]|2[0-3]):([0-5][0-9])"
_WINDOW = re.compile(rf"(?:({_DAY})(?:-({_DAY}))? )?{_TIME}-{_TIME}(?: ([+-]){_TIME})?")
_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Window:
    """A span of each of some days (0: Monday), in seconds from midnight UTC of its day; it may reach into the next."""

    days: frozenset[int]
    start_s: int
    length_s: int


@dataclass(frozen=True, slots=True)
class IdleRule:
    """After how many seconds a pod whose slice idles is evicted, and when it is not."""

    after_s: int
    protected: tuple[Window, ...] = ()

    @property
    def warned_before_s(self) -> float:
        return min(WARNED_BEFORE_S, self.after_s / 2)


def idle_after_s(text: str) -> int | None:
    """The seconds of a duration, `NEVER`, or None for a text that is neither."""
    if text == "never":
        return NEVER
    match = _DURATION.fullmatch(text)
    found = int(match[1]) * _UNITS[match[2]] if match else 0
    return found if IDLE_AFTER_MIN_S <= found <= IDLE_AFTER_MAX_S else None


def windows_of(text: str) -> tuple[Window, ...] | None:
    parts = [part.strip() for part in text.lower().split(";")] if text.strip() else []
    found = [_window(part) for part in parts[: WINDOWS_MAX + 1]]
    windows = tuple(window for window in found if window is not None)
    return windows if len(windows) == len(parts) <= WINDOWS_MAX else None


def _window(text: str) -> Window | None:
    match = _WINDOW.fullmatch(text)
    if match is None:
        return None
    first, last, *times, sign, hours, minutes = match.groups()
    begin, end = (int(times[i]) * 3600 + int(times[i + 1]) * 60 for i in (0, 2))
    if begin == end:
        return None
    offset = (int(hours) * 3600 + int(minutes) * 60) * (-1 if sign == "-" else 1) if sign else 0
    one = _DAYS.index(first) if first else 0
    count = (_DAYS.index(last) - one) % 7 + 1 if last else 1 if first else 7
    return Window(frozenset((one + step) % 7 for step in range(count)), begin - offset, (end - begin) % _DAY_S)


def is_protected(windows: tuple[Window, ...], unix_s: float) -> bool:
    today = int(unix_s // _DAY_S)
    return any(
        (day + 3) % 7 in window.days
        and 0 <= unix_s - day * _DAY_S - window.start_s < window.length_s  # day 0: Thursday
        for window in windows
        for day in range(today - 2, today + 2)
    )


IdleStep = Literal["keep", "warn", "wait", "evict"]
"""Nothing, and a warning no longer holds; warn now; warned, and its time is not over; evict now."""


def idle_step(rule: IdleRule | None, idle_since: int, warned_at: float | None, unix_s: float) -> IdleStep:
    """What to do now; `idle_since` is 0 unless it idles. Evicts only after a warning that has stood its whole time."""
    if rule is None or rule.after_s == NEVER or not idle_since or is_protected(rule.protected, unix_s):
        return "keep"
    due = idle_since + rule.after_s
    if unix_s < due - rule.warned_before_s:
        return "keep"
    if warned_at is None:
        return "warn"
    return "evict" if unix_s >= max(due, warned_at + rule.warned_before_s) else "wait"
