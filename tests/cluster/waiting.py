"""Waits for what a cluster does in its own time: a bound, no sleep that hopes."""

import time
from collections.abc import Callable
from typing import TypeVar

from cluster.harness.box import BoxError

T = TypeVar("T")
WITHIN_S = 240.0
"""Generous: two cores carry a whole cluster, and other suites may run beside it."""
LOOK_S = 0.5


def until(what: str, look: Callable[[], T], *, within_s: float = WITHIN_S) -> T:
    """
    The first true result of `look`; an API server that does not answer (BoxError) counts as not yet.

    Raises AssertionError with `what` and the last result.
    """
    end = time.monotonic() + within_s
    last: object = None
    while True:
        try:
            if found := look():
                return found
            last = found
        except BoxError as error:
            last = error
        if time.monotonic() > end:
            raise AssertionError(f"not within {within_s:.0f} s: {what}; last: {last}")
        time.sleep(LOOK_S)


class Unmet:
    """A false result of `look` that says why."""

    def __init__(self, why: object) -> None:
        """What `until` shows at the end."""
        self._why = why

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return str(self._why)
