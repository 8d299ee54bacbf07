"""
Bounded retries for a shell's calls, and growing pauses for what is tried without end.

The only importer of the retry library. Nothing on the bus is retried here: the outbox settles unanswered writes
(`sluice.contracts.outbox`), with the same guard.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

import stamina
from stamina.instrumentation import RetryDetails, StructlogOnRetryHook, set_on_retry_hooks

from sluice.runtime.prometheus import metrics
from sluice.runtime.prometheus.runtime_metrics import RETRIES

P = ParamSpec("P")
T = TypeVar("T")
Errors = type[Exception] | tuple[type[Exception], ...]

ATTEMPTS = 5
TIMEOUT_S = 15.0
"""No attempt begins later than this after the first."""


def _count(details: RetryDetails) -> None:
    metrics.count(RETRIES, details.name, type(details.caused_by).__name__)


# By default the library imports prometheus-client at the first retry, and counts where no page shows it.
set_on_retry_hooks((StructlogOnRetryHook, _count))


def bounded(
    on: Errors,
    *,
    attempts: int = ATTEMPTS,
    timeout_s: float = TIMEOUT_S,
    wait_initial_s: float = 0.1,
    wait_max_s: float = 2.0,
) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T]]]:
    """Decorate an async function: retried after errors of `on`, with doubling pauses. Raises the last error."""
    return stamina.retry(
        on=on,
        attempts=attempts,
        timeout=timeout_s,
        wait_initial=wait_initial_s,
        wait_max=wait_max_s,
        wait_jitter=wait_initial_s,
    )


def retrying(
    on: Errors,
    *,
    attempts: int = ATTEMPTS,
    timeout_s: float = TIMEOUT_S,
    wait_initial_s: float = 0.1,
    wait_max_s: float = 2.0,
) -> AsyncIterator[AbstractContextManager[Any]]:
    """
    What `bounded` does, for a block of code.

        async for attempt in retrying(OSError):
            with attempt:
                ...
    """
    return aiter(
        stamina.retry_context(
            on=on,
            attempts=attempts,
            timeout=timeout_s,
            wait_initial=wait_initial_s,
            wait_max=wait_max_s,
            wait_jitter=wait_initial_s,
        )
    )


class Backoff:
    """Pauses in seconds that double from `initial_s` to `max_s`, each 50 to 100 % of that (jitter)."""

    def __init__(self, initial_s: float = 0.1, max_s: float = 5.0, *, rng: random.Random | None = None) -> None:
        self._initial_s = initial_s
        self._max_s = max_s
        self._rng = rng if rng is not None else random.Random()
        self._pause_s = initial_s

    def next_s(self) -> float:
        """The next pause."""
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, self._max_s)
        return pause_s * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """After a success: the next failure begins with the first pause again."""
        self._pause_s = self._initial_s
