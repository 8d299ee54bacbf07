"""Retries end; pauses grow, but not without limit."""

import random

import pytest

from sluice.runtime.retry import Backoff, bounded, retrying


async def test_a_call_that_fails_for_a_moment_succeeds():
    """A short absence of the other side is not an error."""
    calls = []

    @bounded(OSError, wait_initial_s=0.001)
    async def call(value: int) -> int:
        calls.append(value)
        if len(calls) < 3:
            raise ConnectionResetError
        return value

    assert await call(7) == 7
    assert calls == [7, 7, 7]


async def test_a_call_that_goes_on_failing_ends_with_its_own_error():
    calls = []

    @bounded(OSError, attempts=3, wait_initial_s=0.001)
    async def call() -> None:
        calls.append(1)
        raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError, match="gone"):
        await call()
    assert len(calls) == 3


async def test_an_error_that_was_not_named_is_not_retried():
    calls = []

    async def call() -> None:
        async for attempt in retrying(OSError, wait_initial_s=0.001):
            with attempt:
                calls.append(1)
                raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        await call()
    assert len(calls) == 1


def test_pauses_grow_to_their_limit_and_begin_anew():
    """A returning broker is not hit by all clients at once, nor after a needlessly long pause."""
    backoff = Backoff(0.1, 1.0, rng=random.Random(1))
    pauses = [backoff.next_s() for _ in range(8)]
    for pause, longest in zip(pauses, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0], strict=True):
        assert longest / 2 <= pause <= longest
    backoff.reset()
    assert backoff.next_s() <= 0.1
