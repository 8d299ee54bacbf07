"""Trace ids of requests, and the headers that carry timed steps with a message. No decision may depend on them.

Trace ids are derived from the request's id: every process can compute them, and a wiped bus loses none."""

import hashlib
from collections.abc import Sequence
from typing import Literal, NamedTuple

TracePart = Literal["request", "running", "release"]
"""The traces of a request: until its gate opens; while its pod runs; from its withdrawal to its last message."""
TRACE_PARTS: tuple[TracePart, ...] = ("request", "running", "release")
"""In order; a request never returns to an earlier one."""

STEPS = "Sluice-Steps"
"""Header of a message: the steps its writer did for the request since its previous message, and their durations."""
COMMIT = "Sluice-Commit-Ms"
"""Header of a message in HISTORY: how long the broker took to store it, in milliseconds."""
STEPS_MAX = 32
"""Steps in one header; earlier ones are left out."""
_NAME_MAX = 40
_ABSURD_MS = 30 * 24 * 3600 * 1000.0
"""Durations above a month are not ours and are ignored."""


def trace_id(request: str, part: TracePart = "request") -> str:
    """The id of one of a request's traces: 32 hex digits, evenly spread as samplers want it (W3C, level 2)."""
    return _digest(request, part)[:32]


def root_traceparent(request: str, part: TracePart = "request") -> str:
    digest = _digest(request, part)
    return f"00-{digest[:32]}-{digest[32:48]}-01"


def _digest(request: str, part: TracePart) -> str:
    return hashlib.sha256(f"sluice/{part}/{request}".encode("utf-8", "replace")).hexdigest()


class TimedStep(NamedTuple):
    """One timed step of a request."""

    name: str
    began_ms: float
    """How long before the message was written the step began; never below 0."""
    took_ms: float


def steps_text(steps: Sequence[tuple[str, float, float]]) -> str:
    """The value of `STEPS` for these (as in `TimedStep`): `name=began+took`, separated by `;`, the last STEPS_MAX."""
    return ";".join(["%s=%.2f+%.2f" % step for step in steps[-STEPS_MAX:]])  # noqa: UP031 - for every word; half the time


def steps_of(text: str) -> tuple[TimedStep, ...]:
    """Parse what `steps_text` wrote. Headers are untrusted: unreadable parts are left out."""
    found = []
    for part in text.split(";")[:STEPS_MAX]:
        name, _, times = part.partition("=")
        began, _, took = times.partition("+")
        began_ms, took_ms = milliseconds(began), milliseconds(took)
        if began_ms is not None and took_ms is not None and name.isidentifier() and len(name) <= _NAME_MAX:
            found.append(TimedStep(name, began_ms, took_ms))
    return tuple(found)


def milliseconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= _ABSURD_MS else None
