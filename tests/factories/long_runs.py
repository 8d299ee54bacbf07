"""What the command lines of long runs share: how they end, what they say meanwhile, and figures for their last line."""

import math
import signal
import sys
import time
from collections.abc import Callable, Sequence

LINES_MAX = 40
"""Of what is wrong, so that a terminal is not flooded."""


def end_in_order() -> None:
    """Let SIGTERM end this process as Ctrl-C does: what it has started is stopped and removed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def saying() -> Callable[[str], None]:
    """Says a line on stderr at once, after the seconds since now."""
    began = time.monotonic()

    def say(line: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began:7.1f} s  {line}\n")
        sys.stderr.flush()

    return say


def tell_wrong(wrong: Sequence[str]) -> None:
    for line in wrong[:LINES_MAX]:
        sys.stderr.write(f"WRONG: {line}\n")
    if len(wrong) > LINES_MAX:
        sys.stderr.write(f"and {len(wrong) - LINES_MAX} more\n")


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]
