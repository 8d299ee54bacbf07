"""Waits for what a cluster does in its own time: a bound, no sleep that hopes."""

import subprocess
import time
from collections.abc import Callable
from typing import TypeVar

from cluster.harness.box import BoxError

WITHIN_S = 180.0
"""Generous: two cores carry a whole cluster, and other suites may run beside it."""
LOOK_S = 0.5
T = TypeVar("T")


def until(what: str, look: Callable[[], T], *, within_s: float = WITHIN_S) -> T:
    """
    The first true result of `look`; an API server that does not answer counts as not yet.

    Raises AssertionError with `what` and the last result.
    """
    end = time.monotonic() + within_s
    while True:
        last: object
        try:
            if found := look():
                return found
            last = found
        except (BoxError, subprocess.TimeoutExpired) as error:
            last = error
        if time.monotonic() > end:
            raise AssertionError(f"not within {within_s:.0f} s: {what}; last: {last}")
        time.sleep(LOOK_S)
