"""Spans of one runner's turns in the traces of its requests: messages read, decisions, steps, messages written.

It inspects the input and output of a core after each turn. Without an exporter it only times decisions."""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from sluice.contracts.bus.events import Entry, Observed, Write
from sluice.contracts.bus.trace_headers import TracePart
from sluice.contracts.messages import AllocationRequested, Bound, RequestRejected, RequestWithdrawn, SliceReady
from sluice.runtime.bounded_dict import BoundedDict
from sluice.runtime.tracing.request_traces import NO_ATTRIBUTES, Attributes, RequestTraces, current
from sluice.runtime.tracing.span_attributes import of_message, of_subject

MARKS_MAX = 10_000
BECAUSE_MAX = 16
"""Requests of one turn with a span for its cause: a listing may concern all requests."""
_BEGINNINGS: dict[type, tuple[TracePart, str]] = {
    AllocationRequested: ("request", "request seen"),
    RequestRejected: ("request", "request seen"),
    RequestWithdrawn: ("release", "request given back"),
}
"""A source's messages that begin a trace: the trace part, and the name of its first span."""
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SpanPhase:
    """A phase of a request: a span between signals: `saw` a message, `decided` or `did` an instruction (types)."""

    name: str
    begins: str
    ends: str


class CoreSpans:
    """The turns of one core."""

    def __init__(self, traces: RequestTraces, phases: Sequence[SpanPhase] = ()) -> None:
        self._traces = traces
        self._begins: dict[str, list[SpanPhase]] = {}
        self._ends: dict[str, list[SpanPhase]] = {}
        for phase in phases:
            self._begins.setdefault(phase.begins, []).append(phase)
            self._ends.setdefault(phase.ends, []).append(phase)
        self._marks: BoundedDict[tuple[str, str], int] = BoundedDict(MARKS_MAX)
        self._attempts: BoundedDict[str, str] = BoundedDict(MARKS_MAX)
        """Operations whose write got no answer -> the span of that attempt."""

    def turn(self, event: object, cause: str, doing: Sequence[tuple[object, str]], took_s: float) -> str:
        """A turn on `event` (caused by `cause`) led to `doing`. Returns the span for what has no request."""
        read = event.entry if isinstance(event, Observed) else None
        if read is not None and isinstance(read.message, AllocationRequested) and _ends_start(read.message):
            self._traces.runs(read.subject.rpartition(".")[2])  # of a pod that runs: as a new process reads it, too
        writes = [each for each, request in doing if request and isinstance(each, Write)]
        for write in writes:
            self._begin(write, took_s)
            if write.attempt == 1:
                self._traces.took(write.request, "decide", took_s)
        if not self._traces.recording:
            return cause
        ended_ns = time.time_ns()
        began_ns = ended_ns - int(took_s * _NS)
        if read is not None:
            cause = self._handled(read, began_ns, doing=bool(doing))
        for request, words in _published_about(writes):
            because = (cause,) if cause and cause[:35] != self._traces.at(request)[:35] else ()
            self._traces.past(
                "decide",
                request,
                began_ns=began_ns,
                ended_ns=ended_ns,
                links=because,
                attributes={"sluice.decided": words, "sluice.event": type(event).__name__},
                enter_it=True,
            )
        for each, request in doing:
            kind = type(each.message if isinstance(each, Write) else each).__name__
            self.signal(f"decided {kind}", request, ended_ns)
        return cause

    def _begin(self, write: Write, ago_s: float) -> None:
        if type(write.message) in _BEGINNINGS:
            part, name = _BEGINNINGS[type(write.message)]
            attributes = of_message(write.message) if self._traces.recording else NO_ATTRIBUTES
            self._traces.start(write.request, name, part, ago_s=ago_s, attributes=attributes)

    def _handled(self, entry: Entry, began_ns: int, *, doing: bool) -> str:
        arrival = self._traces.arrivals.take(entry)
        if arrival is None or entry.message is None:
            return ""
        word = type(entry.message).__name__
        self.signal(f"saw {word}", arrival.request, arrival.arrived_ns)
        if not doing or not arrival.traceparent:
            return arrival.traceparent
        before = self._traces.arrivals.before(entry)
        stored_ns = arrival.stored_ns if 0 < arrival.stored_ns <= arrival.arrived_ns else arrival.arrived_ns
        attributes: Attributes = {
            **of_message(entry.message),
            **of_subject(entry.subject, "process"),
            "sluice.waited_here_ms": round((began_ns - arrival.arrived_ns) / 1e6, 3),
            **({"sluice.delivered_again": True} if before else {}),
        }
        own = self._traces.past(
            f"deliver {word}",
            arrival.request,
            began_ns=stored_ns,
            ended_ns=began_ns,
            parent=arrival.traceparent,
            kind="consumer",
            links=(before,) if before else (),
            attributes=attributes,
            enter_it=True,
        )
        self._traces.arrivals.taken(entry, own)
        return own

    def signal(self, signal: str, request: str, at_ns: int) -> None:
        if not request:
            return
        for phase in self._ends.get(signal, ()):
            began_ns = self._marks.pop((request, phase.name), None)
            if began_ns is not None:
                self._traces.past(phase.name, request, began_ns=began_ns, ended_ns=at_ns)
        for phase in self._begins.get(signal, ()):
            if (request, phase.name) not in self._marks:
                self._marks.put((request, phase.name), at_ns)

    def did(self, instruction: object, request: str) -> None:
        if self._traces.recording:
            self.signal(f"did {type(instruction).__name__}", request, time.time_ns())

    def publishing(self, write: Write, cause: str) -> AbstractContextManager[None]:
        """The span of one attempt to publish a message, linked to the attempt before it."""
        word = type(write.message).__name__
        if not self._traces.recording:
            return self._traces.span("publish", write.request, parent=cause)
        before = self._attempts.get(write.operation, "")
        attributes: Attributes = {
            **of_message(write.message),
            **of_subject(write.subject, "publish"),
            "messaging.message.id": write.operation,
            "sluice.attempt": write.attempt,
        }
        return self._traces.span(
            f"publish {word}",
            write.request,
            parent=cause,
            kind="producer",
            links=(before,) if before else (),
            attributes=attributes,
        )

    def published(self, write: Write, *, unknown: bool) -> None:
        """The attempt is over; called inside its span."""
        if not unknown and _ends_start(write.message):
            self._traces.runs(write.request)
        if not self._traces.recording:
            return
        if unknown:
            self._attempts.put(write.operation, current())
        else:
            self._attempts.pop(write.operation, None)


def _ends_start(message: object) -> bool:
    """Whether it is the writer's last message of a request's start; later ones belong to the running pod's trace."""
    if isinstance(message, AllocationRequested):
        return message.held is not None
    return isinstance(message, SliceReady | Bound)


def _published_about(writes: Sequence[Write]) -> Iterator[tuple[str, str]]:
    """Each request with something to publish, with the message types; at most BECAUSE_MAX."""
    found: dict[str, list[str]] = {}
    for write in writes:
        if write.request in found or len(found) < BECAUSE_MAX:
            found.setdefault(write.request, []).append(type(write.message).__name__)
    for request, words in found.items():
        yield request, ", ".join(words)
