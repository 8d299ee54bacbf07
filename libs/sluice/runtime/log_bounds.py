"""
Bounds what other processes and tenants can make this one log: the size of a value, and the rate of a warning.

Much of what is logged was written elsewhere: a message on the bus, a broker's answer, a pod's fields.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from sluice.runtime.optional_imports import without

with without("rich", "better_exceptions", "colorama", "twisted"):
    import structlog

VALUE_MAX = 4_096
"""Characters of one value; a traceback may have four times as many."""
BURST = 100
"""Warnings and errors of one kind (part and event) at once ..."""
PER_S = 5.0
"""... and per second from then on."""
KINDS_MAX = 1_000
"""Kinds that are counted; beyond it those seen longest ago start afresh."""
_BOUNDED = frozenset({"warning", "error", "critical"})


def shortened(text: str, most: int = VALUE_MAX) -> str:
    """A text of `most` characters and a few: its beginning and its end."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} ... ({len(text)} characters) ... {text[-most // 2 :]}"


def bound_values(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: shortens every value that is too long as text."""
    for key, value in event.items():
        if value is None or isinstance(value, bool | int | float):
            continue
        text = value if isinstance(value, str) else str(value)
        most = 4 * VALUE_MAX if key == "exception" else VALUE_MAX
        if len(text) > most:
            event[key] = shortened(text, most)
    return event


@dataclass(slots=True)
class _Kind:
    left: float
    seen_at: float
    left_out: int = 0


class RateLimit:
    """A structlog processor: leaves out warnings beyond the rate; the next line of their kind says how many."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with a full burst for every kind."""
        self._clock = clock
        self._kinds: OrderedDict[tuple[object, object], _Kind] = OrderedDict()

    def __call__(self, _logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Raises DropEvent for a line to leave out."""
        if event.get("level") not in _BOUNDED:
            return event
        key, now = (event.get("part"), str(event.get("event"))[:VALUE_MAX]), self._clock()
        kind = self._kinds.pop(key, None) or _Kind(BURST, now)
        self._kinds[key] = kind
        if len(self._kinds) > KINDS_MAX:
            self._kinds.popitem(last=False)
        kind.left, kind.seen_at = min(BURST, kind.left + (now - kind.seen_at) * PER_S), now
        if kind.left < 1:
            kind.left_out += 1
            raise structlog.DropEvent
        kind.left -= 1
        if kind.left_out:
            event["left_out"], kind.left_out = kind.left_out, 0
        return event
