"""Waiting for what a cluster does by itself, each time with a bound."""

import time
from collections.abc import Callable
from typing import TypeVar

WITHIN_S = 120.0
"""Enough on a machine that does much else, too."""
EVERY_S = 0.5
T = TypeVar("T")


def until(what: str, look: Callable[[], T], *, within_s: float = WITHIN_S) -> T:
    """The first answer of `look` that is true. Raises TimeoutError, which names `what` and the last answer."""
    end = time.monotonic() + within_s
    while not (seen := look()):
        if time.monotonic() > end:
            raise TimeoutError(f"not within {within_s:.0f} s: {what}; at last: {seen!r}")
        time.sleep(EVERY_S)
    return seen
