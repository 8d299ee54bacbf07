"""What was used of the last window, against the same counted microsecond by microsecond."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sluice_node_agent.core.quota.tenants import UsedTime

WINDOW = 50
STRETCHES = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), max_size=12)


def _played(stretches):
    used, held, now = UsedTime(WINDOW), set(), 0
    for gap, length in stretches:
        used.add(now + gap, now + gap + length)
        held |= set(range(now + gap, now + gap + length))
        now += gap + length
    return used, held, now


def _most(held, end):
    return len([each for each in held if end - WINDOW <= each < end])


@settings(max_examples=150, derandomize=True, deadline=None)
@given(STRETCHES, st.integers(0, 30), st.integers(1, WINDOW), st.integers(1, 20))
def test_a_token_is_as_long_as_the_limit_allows_and_no_longer(stretches, later, allowed, most):
    """A limit is exceeded in some window, or a tenant gets less than its limit."""
    used, held, now = _played(stretches)
    now += later
    assert used.used_us(now) == _most(held, now)
    room = used.room_us(now, allowed, most)

    def keeps(length):
        then = held | set(range(now, now + length))
        return all(_most(then, end) <= allowed for end in range(now, now + length + 1))

    assert room == max((length for length in range(most + 1) if keeps(length)), default=0)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(STRETCHES, st.integers(5, WINDOW), st.integers(1, 5))
def test_who_waits_for_its_limit_is_woken_when_there_is_room(stretches, allowed, least):
    """A tenant that has used its limit sleeps on, or wakes for nothing."""
    used, _, now = _played(stretches)
    at = used.room_at_us(now, allowed, least)
    assert now <= at <= now + WINDOW
    assert used.room_us(at, allowed, least) >= least


def test_many_short_stretches_take_no_memory_and_never_count_less():
    """A client that asks and gives back without end fills the agent's memory, or gets past its limit."""
    used, now = UsedTime(100_000), 0
    for _ in range(5_000):
        used.add(now, now + 5)
        now += 15
    assert len(used._intervals) <= 256
    assert used.used_us(now) >= now // 3 - 5
