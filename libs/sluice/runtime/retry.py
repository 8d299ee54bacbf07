"""Bounded retries for a shell's calls, and growing pauses for what is tried without end. None of it is for the bus."""

import random
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Any

import stamina
from stamina.instrumentation import RetryDetails, StructlogOnRetryHook, set_on_retry_hooks

from sluice.runtime.prometheus import metrics
from sluice.runtime.prometheus.runtime_metrics import RETRIES

Errors = type[Exception] | tuple[type[Exception], ...]

ATTEMPTS = 5
TIMEOUT_S = 15.0
"""No attempt begins later than this after the first."""
WAIT_MAX_S = 2.0


def _count(details: RetryDetails) -> None:
    metrics.count(RETRIES, details.name, type(details.caused_by).__name__)


# By default the library imports prometheus-client at the first retry, and counts where no page shows it.
set_on_retry_hooks((StructlogOnRetryHook, _count))


def retrying(on: Errors, *, wait_initial_s: float = 0.1) -> AsyncIterator[AbstractContextManager[Any]]:
    """
    Attempts of a block of code, again after an error of `on`, with growing pauses; the last error is raised unchanged.

        async for attempt in retrying(OSError):
            with attempt:
                ...
    """
    pauses = {"wait_initial": wait_initial_s, "wait_max": WAIT_MAX_S, "wait_jitter": wait_initial_s}
    return aiter(stamina.retry_context(on=on, attempts=ATTEMPTS, timeout=TIMEOUT_S, **pauses))


class Backoff:
    """Pauses in seconds that double from `initial_s` to `max_s`, each 50 to 100 % of that (jitter)."""

    def __init__(self, initial_s: float = 0.1, max_s: float = 5.0, *, rng: random.Random | None = None) -> None:
        self._initial_s = initial_s
        self._max_s = max_s
        self._uniform = (rng or random).uniform
        self._pause_s = initial_s

    def next_s(self) -> float:
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, self._max_s)
        return pause_s * self._uniform(0.5, 1.0)

    def reset(self) -> None:
        self._pause_s = self._initial_s
