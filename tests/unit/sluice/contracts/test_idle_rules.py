"""When an idle pod may be evicted: a wrong reading would end a pod that its owner still needs."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.contracts import idle_rules
from sluice.contracts.idle_rules import IdleRule, idle_step, is_protected, windows_of

HOUR = 3600
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10m", 600), ("90m", 5400), ("2h", 7200), ("30d", 30 * 86_400), ("never", 0)]
    + [(text, None) for text in ("", "9m", "31d", "2", "h", "-2h", "2 h", "02h", "1.5h", "2h30m", "999999d", "Never")],
)
def test_a_duration_is_read_exactly_or_not_taken(text, seconds):
    """Minutes taken for hours, or a default in place of a typing error."""
    assert idle_rules.idle_after_s(text) == seconds


@given(
    first=st.integers(0, 6),
    last=st.none() | st.integers(0, 6),
    begin=st.integers(0, 1439),
    length=st.integers(1, 1439),
    offset=st.integers(-14 * 60, 14 * 60),
    at=st.integers(0, 4 * 10**9),
)
def test_a_window_protects_just_the_local_times_that_it_names(first, last, begin, length, offset, at):
    """The judge walks the minutes of a calendar; windows may reach past midnight and the end of the week."""
    end = (begin + length) % 1440
    days = DAYS[first] if last is None else f"{DAYS[first]}-{DAYS[last]}"
    clock = "{:02}:{:02}-{:02}:{:02}".format(*divmod(begin, 60), *divmod(end, 60))
    text = f"{days} {clock} {'-' if offset < 0 else '+'}{abs(offset) // 60:02}:{abs(offset) % 60:02}"
    windows = windows_of(text)
    assert windows is not None
    named = {first}
    while last is not None and last not in named:
        named.add((max(named, key=lambda day: (day - first) % 7) + 1) % 7)
    local = datetime.fromtimestamp(at, timezone(timedelta(minutes=offset)))
    minute = local.hour * 60 + local.minute
    starts = [local.weekday()] if minute >= begin else []
    inside = begin <= minute < (end if end > begin else 1440) and bool(starts)
    from_yesterday = end < begin and minute < end
    expected = (inside and local.weekday() in named) or (from_yesterday and (local.weekday() - 1) % 7 in named)
    assert is_protected(windows, at) == expected, (text, local)


@pytest.mark.parametrize("text", ["monday 08:00-18:00", "8:00-18:00", "08:00", "24:00-25:00", "08:00-08:00", "x", ";"])
def test_a_malformed_window_is_not_taken(text):
    """It would protect nothing, unnoticed."""
    assert windows_of(text) is None


def test_several_windows_and_none_are_read():
    """The second would be ignored, or no window be taken for a mistake."""
    at = datetime(2026, 11, 29, 23, 0, tzinfo=UTC).timestamp()  # a Sunday
    assert is_protected(windows_of("mon-fri 08:00-18:00; sat-sun 22:00-06:00") or (), at)
    assert windows_of(" ") == ()
    assert windows_of("; ".join(["08:00-09:00"] * 17)) is None


AT = 1_800_000_000
RULE = IdleRule(2 * HOUR)
SHORT = IdleRule(600)


@pytest.mark.parametrize(
    ("rule", "idle_s", "warned_ago_s", "expected"),
    [
        (None, 9 * HOUR, None, "keep"),
        (IdleRule(idle_rules.NEVER), 9 * HOUR, None, "keep"),
        (RULE, None, None, "keep"),
        (RULE, None, 9 * HOUR, "keep"),
        (RULE, 2 * HOUR - 601, None, "keep"),
        (RULE, 2 * HOUR - 600, None, "warn"),
        (RULE, 9 * HOUR, None, "warn"),
        (RULE, 9 * HOUR, 599, "wait"),
        (RULE, 2 * HOUR - 1, 599, "wait"),
        (RULE, 2 * HOUR, 600, "evict"),
        (SHORT, 299, None, "keep"),
        (SHORT, 300, None, "warn"),
        (SHORT, 600, 300, "evict"),
        (IdleRule(600, windows_of("00:00-23:59") or ()), 9 * HOUR, 9 * HOUR, "keep"),
    ],
)
def test_no_pod_is_evicted_before_its_time_and_a_warning(rule, idle_s, warned_ago_s, expected):
    """Work is lost that a warning would have saved."""
    since = 0 if idle_s is None else AT - idle_s
    assert idle_step(rule, since, None if warned_ago_s is None else AT - warned_ago_s, AT) == expected
