"""
Which trace a request belongs to, and how steps that were timed travel beside a word.

Ids of traces are derived from the request's id: so every process knows them, a restart or a wiped bus loses none, and
people find the trace of a pod without asking anybody. Nothing may be decided from what is here.
"""

import hashlib
from collections.abc import Sequence
from typing import Literal, NamedTuple

TracePart = Literal["request", "running", "release"]
"""
The traces of a request: from being asked for to the open gate; what is said of it while its pod runs (its slice is
ready again after a restart, or has another size); from being given back to its last word.
"""
TRACE_PARTS: tuple[TracePart, ...] = ("request", "running", "release")
"""In the order in which they follow each other. None is gone back to."""

STEPS = "Sluice-Steps"
"""The header of a word that tells what its writer did for the request since its last word, and how long it took."""
COMMIT = "Sluice-Commit-Ms"
"""The header of a word in HISTORY: how long the broker took to store it, in milliseconds."""
STEPS_MAX = 32
"""Steps that one word tells of; those before them are left out."""
_NAME_MAX = 40
_ABSURD_MS = 30 * 24 * 3600 * 1000.0
"""What a header says beyond a month was not written by us."""


def trace_id(request: str, part: TracePart = "request") -> str:
    """
    The id of one of a request's traces: 32 hex digits.

    Evenly spread, as samplers want it: https://www.w3.org/TR/trace-context-2/#considerations-for-trace-id-field-generation
    """
    return _digest(request, part)[:32]


def root_traceparent(request: str, part: TracePart = "request") -> str:
    """The `traceparent` of the first span of one of a request's traces."""
    digest = _digest(request, part)
    return f"00-{digest[:32]}-{digest[32:48]}-01"


def _digest(request: str, part: TracePart) -> str:
    return hashlib.sha256(f"sluice/{part}/{request}".encode("utf-8", "replace")).hexdigest()


class TimedStep(NamedTuple):
    """One step of a request, as its doer timed it."""

    name: str
    began_ms: float
    """Before the word was written: never below 0."""
    took_ms: float


def steps_text(steps: Sequence[tuple[str, float, float]]) -> str:
    """The value of `STEPS` for these (as in `TimedStep`): `name=began+took`, separated by `;`, the last STEPS_MAX."""
    return ";".join(["%s=%.2f+%.2f" % step for step in steps[-STEPS_MAX:]])  # noqa: UP031 - for every word; half the time


def steps_of(text: str) -> tuple[TimedStep, ...]:
    """What `steps_text` wrote. Anybody can write headers: what cannot be read is left out."""
    found = []
    for part in text.split(";")[:STEPS_MAX]:
        name, _, times = part.partition("=")
        began, _, took = times.partition("+")
        began_ms, took_ms = milliseconds(began), milliseconds(took)
        if began_ms is not None and took_ms is not None and name.isidentifier() and len(name) <= _NAME_MAX:
            found.append(TimedStep(name, began_ms, took_ms))
    return tuple(found)


def milliseconds(text: str) -> float | None:
    """A number of milliseconds from a header, or None when it is none that we would write."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= _ABSURD_MS else None
