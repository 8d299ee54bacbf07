"""Retries end; pauses grow, but not without limit."""

import random
from datetime import UTC

import pytest

from sluice.runtime.clock import SystemClock
from sluice.runtime.retry import ATTEMPTS, Backoff, retrying


async def test_a_call_that_fails_for_a_moment_succeeds():
    """A short absence of the other side is not an error."""
    calls = 0
    async for attempt in retrying(OSError, wait_initial_s=0.001):
        with attempt:
            calls += 1
            if calls < 3:
                raise ConnectionResetError
    assert calls == 3


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        pytest.param(ConnectionResetError("gone"), ATTEMPTS, id="retries end, and the reason is not lost"),
        pytest.param(ValueError("wrong"), 1, id="a bug shows at once, not five attempts later"),
    ],
)
async def test_a_call_that_goes_on_failing_ends_with_its_own_error(error, calls):
    made = []

    async def call() -> None:
        async for attempt in retrying(OSError, wait_initial_s=0.001):
            with attempt:
                made.append(1)
                raise error

    with pytest.raises(type(error), match=str(error)):
        await call()
    assert len(made) == calls


def test_pauses_grow_to_their_limit_and_restart():
    """A returning broker is not hit by all clients at once, nor after a needlessly long pause."""
    backoff = Backoff(0.1, 1.0, rng=random.Random(1))
    pauses = [backoff.next_s() for _ in range(8)]
    for pause, longest in zip(pauses, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0], strict=True):
        assert longest / 2 <= pause <= longest
    backoff.reset()
    assert backoff.next_s() <= 0.1


async def test_time_goes_forward_while_waiting():
    clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(0.01)
    assert clock.monotonic() - before >= 0.009
    assert clock.utc().tzinfo is UTC
