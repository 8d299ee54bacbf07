"""Traces of requests, as W3C trace context on bus messages (NATS headers) and calls (gRPC metadata).

Spans are created and exported (OTLP over HTTP) only when an endpoint is configured, and only then is the OpenTelemetry
SDK imported. Nothing here may block or fail a service: an absent collector costs dropped spans."""

import re
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Literal

from sluice.contracts.bus import trace_headers
from sluice.runtime.bounded_dict import BoundedDict
from sluice.runtime.tracing.inbound_messages import InboundMessages

if TYPE_CHECKING:
    from sluice.runtime.tracing.otel_spans import Spans

TRACEPARENT = "traceparent"
"""The header of W3C Trace Context, level 1 (https://www.w3.org/TR/trace-context/)."""
REQUESTS_MAX = 10_000
"""Requests whose trace is remembered; the least recently used is dropped first."""
LINGER_S = 10.0
"""How long after the last message of a request's start a process may continue that trace."""
FLUSH_TIMEOUT_S = 2.0

_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")
_current: ContextVar[str] = ContextVar("sluice_traceparent", default="")

SpanKind = Literal["internal", "producer", "consumer", "client", "server"]
Attributes = Mapping[str, str | int | float | bool]
NO_ATTRIBUTES: Attributes = {}


def is_traceparent(text: str) -> bool:
    """Whether `text` is a `traceparent` of version 00 with ids that are not all zero."""
    return _TRACEPARENT.fullmatch(text) is not None


def current() -> str:
    return _current.get()


def ids_of(traceparent: str) -> tuple[str, str] | None:
    """Trace id and span id (hex) of a `traceparent`, or None when it is invalid."""
    match = _TRACEPARENT.fullmatch(traceparent)
    return (match[1], match[2]) if match else None


def enter(traceparent: str) -> None:
    """Continue the rest of this task within a caller's trace."""
    if is_traceparent(traceparent):
        _current.set(traceparent)


class within:  # noqa: N801 - a function to those who use it; a generator would take five times as long, for every word
    """Work within a caller's trace. An invalid `traceparent` changes nothing."""

    __slots__ = ("_token", "_traceparent")

    def __init__(self, traceparent: str) -> None:
        self._traceparent = traceparent
        self._token: Token[str] | None = None

    def __enter__(self) -> None:
        if is_traceparent(self._traceparent):
            self._token = _current.set(self._traceparent)

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            _current.reset(self._token)
            self._token = None


class RequestTraces:
    """Request id -> its position in its trace, bounded; spans, where an endpoint is configured; recent steps."""

    def __init__(self, spans: "Spans | None" = None, *, requests_max: int = REQUESTS_MAX) -> None:
        self._spans = spans
        self._book: BoundedDict[str, str] = BoundedDict(requests_max)
        self._over: BoundedDict[str, float] = BoundedDict(requests_max)
        """Requests that this process finished starting, and until when it lingers in that trace."""
        self._unbegun: BoundedDict[str, None] = BoundedDict(requests_max)
        """Requests whose pods run, without a span since."""
        self._news: BoundedDict[str, str] = BoundedDict(requests_max)
        """Subjects of messages without a request -> the trace that they were published in."""
        self._steps: BoundedDict[str, deque[tuple[str, int, int]]] = BoundedDict(requests_max)
        """Request -> name, begin and end (monotonic, ns) of the steps since the last message about it."""
        self.arrivals = InboundMessages()

    @property
    def recording(self) -> bool:
        return self._spans is not None

    def remember(self, request: str, headers: Mapping[str, str] | None, subject: str = "") -> None:
        """Take the trace of `request` (or of the message at `subject`) from a message's headers, if any."""
        traceparent = headers.get(TRACEPARENT, "") if headers else ""
        if not traceparent:
            return
        if request and self._book.get(request) == traceparent:
            self._book.move_to_end(request)  # as for most messages: checked when it came first
            return
        if not is_traceparent(traceparent):
            return
        if not request:
            if subject:
                self._news.put(subject, traceparent)
        elif not self._takes_back(request, traceparent):
            self._book.put(request, traceparent)
            self._unbegun.pop(request, None)

    def arrived(
        self, subject: str, sequence: int, request: str, headers: Mapping[str, str] | None, stored_ns: int = 0
    ) -> None:
        """A message was read: remember its trace, and, where spans are recorded, when it came."""
        self.remember(request, headers, subject)
        if self._spans is not None:
            traceparent = headers.get(TRACEPARENT, "") if headers else ""
            usable = traceparent if is_traceparent(traceparent) else ""
            self.arrivals.put(subject, sequence, request, usable, stored_ns)

    def _takes_back(self, request: str, traceparent: str) -> bool:
        """Whether this would return a request to a finished trace: it comes late."""
        known = self._book.get(request, "")
        if not known or _trace(known) == _trace(traceparent):
            return False
        later = [trace_headers.trace_id(request, part) for part in trace_headers.TRACE_PARTS[1:]]
        return _trace(known) in later and _trace(traceparent) not in later[later.index(_trace(known)) :]

    def at(self, request: str) -> str:
        """A request's position in its trace: its last known span, else the root."""
        if not request:
            return ""
        if request in self._over:
            self._settle(request)
        return self._book.get(request) or trace_headers.root_traceparent(request)

    def at_once(self, subject: str) -> str:
        """The trace that the message at `subject` was published in, for its first handler; then empty."""
        return self._news.pop(subject, "")

    def headers(self, request: str) -> dict[str, str]:
        """The headers of a new message about `request`: a fresh dict, empty without a trace."""
        traceparent = _current.get() or self.at(request)
        return {TRACEPARENT: traceparent} if traceparent else {}

    def start(
        self,
        request: str,
        name: str,
        part: trace_headers.TracePart = "request",
        *,
        ago_s: float = 0.0,
        attributes: Attributes = NO_ATTRIBUTES,
    ) -> None:
        """Begin a trace of `request`, at its source, `ago_s` ago, unless it has begun."""
        known = self._book.get(request, "")
        if not request or (known and part == "request"):
            return  # before deriving its id, which is expensive: callers may ask repeatedly
        root = trace_headers.root_traceparent(request, part)
        if known and _trace(known) == _trace(root):
            return
        self._book.put(request, root)
        if self._spans is not None:
            links = (trace_headers.root_traceparent(request),) if part == "release" else ()
            self._unbegun.pop(request, None)
            self._spans.root(name, root, links=links, ago_s=ago_s, attributes=_about(request, attributes))

    def runs(self, request: str, *, linger_s: float = LINGER_S) -> None:
        """The pod's start is over: messages after `linger_s` are in the trace of its running."""
        if request and request not in self._over:
            self._over.put(request, time.monotonic() + linger_s)

    def _settle(self, request: str) -> None:
        until = self._over.get(request)
        if until is None or time.monotonic() < until:
            return
        del self._over[request]
        root = trace_headers.root_traceparent(request, "running")
        if not self._takes_back(request, root) and _trace(self._book.get(request, "")) != _trace(root):
            self._book.put(request, root)
            self._unbegun.put(request, None)

    def _begin_running(self, request: str) -> None:
        if self._spans is not None and self._unbegun.pop(request, True) is None:
            root, before = (
                trace_headers.root_traceparent(request, "running"),
                (trace_headers.root_traceparent(request),),
            )
            self._spans.root("request runs", root, links=before, attributes=_about(request, NO_ATTRIBUTES))

    def span(
        self,
        name: str,
        request: str = "",
        *,
        parent: str = "",
        kind: SpanKind = "internal",
        links: Sequence[str] = (),
        attributes: Attributes = NO_ATTRIBUTES,
    ) -> AbstractContextManager[None]:
        """A span of `request` (else of `parent`, or the current one) for the time of a `with`."""
        above = self.at(request) or parent or _current.get()
        if self._spans is None or not above:
            return within(above)
        self._begin_running(request)
        return self._live(name, above, kind, links, _about(request, attributes))

    def past(
        self,
        name: str,
        request: str,
        *,
        began_ns: int,
        ended_ns: int,
        parent: str = "",
        kind: SpanKind = "internal",
        links: Sequence[str] = (),
        attributes: Attributes = NO_ATTRIBUTES,
        enter_it: bool = False,
    ) -> str:
        """Record a finished span (Unix, ns); gives its `traceparent`. With `enter_it` later spans are inside."""
        at = self.at(request)
        above = parent or at
        if self._spans is None or not above:
            return ""
        if parent and request and self._takes_back(request, parent):
            above, links = at, (*links, parent)
        self._begin_running(request)
        about = _about(request, attributes)
        made = self._spans.past(
            name, above, began_ns=began_ns, ended_ns=ended_ns, kind=kind, links=links, attributes=about
        )
        if enter_it and request and not self._takes_back(request, made):
            self._book.put(request, made)
        return made

    @contextmanager
    def _live(
        self, name: str, above: str, kind: SpanKind, links: Sequence[str], attributes: Attributes
    ) -> Iterator[None]:
        assert self._spans is not None
        with self._spans.live(name, above, kind=kind, links=links, attributes=attributes) as own:
            token = _current.set(own)
            try:
                yield
            finally:
                _current.reset(token)

    def took(self, request: str, name: str, took_s: float) -> None:
        """A step of `request` just ended: the next message about it carries it."""
        if not request:
            return
        now_ns = time.monotonic_ns()
        steps = self._steps.get(request)
        if steps is None:
            steps = deque(maxlen=trace_headers.STEPS_MAX)
            self._steps.put(request, steps)
        steps.append((name, now_ns - int(took_s * 1e9), now_ns))

    def steps(self, request: str) -> dict[str, str]:
        steps = self._steps.get(request)
        if not steps:
            return {}
        now_ns = time.monotonic_ns()
        told = [(name, (now_ns - began) / 1e6, (ended - began) / 1e6) for name, began, ended in steps]
        return {trace_headers.STEPS: trace_headers.steps_text(told)}

    def told(self, request: str, headers: Mapping[str, str]) -> None:
        """A message with these headers has landed: later ones do not repeat its steps."""
        steps = self._steps.get(request)
        if steps is None or trace_headers.STEPS not in headers:
            return
        count = headers[trace_headers.STEPS].count(";") + 1
        if count >= len(steps):
            del self._steps[request]
            return
        for _ in range(count):
            steps.popleft()

    def close(self, timeout_s: float = FLUSH_TIMEOUT_S) -> None:
        if self._spans is not None:
            self._spans.close(timeout_s)


def connect(endpoint: str, *, service: str, run: str) -> RequestTraces:
    """Traces exported to an OTLP/HTTP base URL; empty records nothing. `run` distinguishes restarts of one service."""
    if not endpoint:
        return RequestTraces()
    from sluice.runtime.tracing.otel_spans import exporting  # noqa: PLC0415 - only where spans are recorded

    return RequestTraces(exporting(endpoint, service=service, run=run))


def _trace(traceparent: str) -> str:
    return traceparent[3:35]


def _about(request: str, attributes: Attributes) -> Attributes:
    return {"sluice.request": request, **attributes} if request else attributes
