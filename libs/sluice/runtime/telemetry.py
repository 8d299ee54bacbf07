"""
Traces: which request a word on the bus or a call belongs to, as W3C trace context.

One trace per request. Its `traceparent` travels in NATS headers and gRPC metadata whether or not anybody collects
spans; spans are made and sent (OTLP over HTTP) only when an endpoint is configured, and only then is the
OpenTelemetry SDK imported. Nothing here may block or fail a service: a collector that is away costs dropped spans.
"""

import re
import secrets
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

TRACEPARENT = "traceparent"
"""The header of W3C Trace Context, level 1 (https://www.w3.org/TR/trace-context/)."""
REQUESTS_MAX = 10_000
"""Requests whose trace is remembered; the one not heard of for longest is forgotten first."""
FLUSH_TIMEOUT_S = 2.0
"""How long closing may wait for the collector."""

_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")
_current: ContextVar[str] = ContextVar("sluice_traceparent", default="")

SpanKind = Literal["internal", "producer", "consumer", "client", "server"]


def is_traceparent(text: str) -> bool:
    """Whether `text` is a `traceparent` of version 00 with ids that are not all zero."""
    return _TRACEPARENT.fullmatch(text) is not None


def current() -> str:
    """The `traceparent` of the span we are in; empty outside of any."""
    return _current.get()


def ids_of(traceparent: str) -> tuple[str, str] | None:
    """Trace id and span id (hex) of a `traceparent`, or None when it is none."""
    match = _TRACEPARENT.fullmatch(traceparent)
    return (match[1], match[2]) if match else None


def inject(metadata: Mapping[str, str] | None = None) -> dict[str, str]:
    """A new dict of `metadata` with the current trace context, for a call to another process."""
    out = dict(metadata or {})
    if traceparent := _current.get():
        out[TRACEPARENT] = traceparent
    return out


def enter(traceparent: str) -> None:
    """Go on with the rest of this task on behalf of a caller's trace."""
    if is_traceparent(traceparent):
        _current.set(traceparent)


@contextmanager
def within(traceparent: str) -> Iterator[None]:
    """Do something on behalf of a caller's trace. Anything that is no `traceparent` changes nothing."""
    if not is_traceparent(traceparent):
        yield
        return
    token = _current.set(traceparent)
    try:
        yield
    finally:
        _current.reset(token)


class TraceBook:
    """
    Request id -> the trace it belongs to, bounded; and spans in those traces.

    Without a provider (no endpoint configured) spans are only named places: nothing is recorded, and what came in
    goes out again.
    """

    def __init__(self, provider: "TracerProvider | None" = None, *, requests_max: int = REQUESTS_MAX) -> None:
        """Start with an empty book; `provider` records spans."""
        self._provider = provider
        self._tracer = provider.get_tracer("sluice") if provider is not None else None
        self._requests_max = requests_max
        self._book: OrderedDict[str, str] = OrderedDict()

    def remember(self, request: str, headers: Mapping[str, str] | None) -> None:
        """Take the trace of `request` from the headers of a message about it, when they carry one."""
        if not request or not headers:
            return
        traceparent = headers.get(TRACEPARENT, "")
        if traceparent and is_traceparent(traceparent):
            self._enter(request, traceparent)

    def headers(self, request: str) -> dict[str, str]:
        """The headers of a new message about `request`: a fresh dict, empty when no trace is known."""
        traceparent = _current.get() or self._book.get(request, "")
        return {TRACEPARENT: traceparent} if traceparent else {}

    def start(self, request: str, name: str) -> None:
        """Begin the trace of `request`, at its source, unless one is known already."""
        if not request or request in self._book:
            return
        if self._tracer is None:
            self._enter(request, f"00-{_hex(16)}-{_hex(8)}-01")
            return
        from opentelemetry.context import Context  # noqa: PLC0415 - only where spans are recorded

        root = self._tracer.start_span(name, context=Context(), attributes={"sluice.request": request})
        root.end()  # a request outlives the process that began it: its root is a moment
        self._enter(request, _traceparent_of(root))

    def span(
        self, name: str, request: str = "", *, kind: SpanKind = "internal", **attributes: str | float | bool
    ) -> AbstractContextManager[None]:
        """
        A span in the trace of `request` (or, without one, in the current trace) for the time of a `with`.

        An exception that leaves it marks it as failed and goes on.
        """
        parent = self._book.get(request, "") if request else _current.get()
        if self._tracer is None:
            return within(parent)
        return self._recorded(name, request, parent, kind, attributes)

    def close(self, timeout_s: float = FLUSH_TIMEOUT_S) -> None:
        """Send what is still held back, within a bounded time."""
        if self._provider is not None:
            self._provider.force_flush(int(timeout_s * 1000))
            self._provider.shutdown()

    @contextmanager
    def _recorded(
        self, name: str, request: str, parent: str, kind: SpanKind, attributes: Mapping[str, str | float | bool]
    ) -> Iterator[None]:
        from opentelemetry import trace  # noqa: PLC0415 - only where spans are recorded
        from opentelemetry.context import Context  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        assert self._tracer is not None
        carrier = {TRACEPARENT: parent} if parent else {}
        context = TraceContextTextMapPropagator().extract(carrier, context=Context())
        known = {"sluice.request": request} if request else {}
        with self._tracer.start_as_current_span(
            name, context=context, kind=trace.SpanKind[kind.upper()], attributes={**known, **attributes}
        ) as span:
            token = _current.set(_traceparent_of(span))
            try:
                yield
            finally:
                _current.reset(token)

    def _enter(self, request: str, traceparent: str) -> None:
        self._book[request] = traceparent
        self._book.move_to_end(request)
        while len(self._book) > self._requests_max:
            self._book.popitem(last=False)


def connect(endpoint: str, *, service: str, run: str) -> TraceBook:
    """
    A book that sends spans to `endpoint` (an OTLP/HTTP base URL such as `http://127.0.0.1:4318`).

    Empty means none: nothing is recorded and the SDK is not imported. `run` tells restarts of one service apart.
    """
    if not endpoint:
        return TraceBook()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

    base = endpoint.rstrip("/")
    url = base if base.endswith("/v1/traces") else f"{base}/v1/traces"
    return TraceBook(provider(OTLPSpanExporter(endpoint=url, timeout=FLUSH_TIMEOUT_S), service=service, run=run))


def provider(exporter: "SpanExporter", *, service: str, run: str) -> "TracerProvider":
    """A provider that batches spans to `exporter` in a thread of its own; what does not fit its queue is dropped."""
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    made = TracerProvider(
        resource=Resource.create({"service.name": f"sluice-{service}", "service.instance.id": run}),
        shutdown_on_exit=False,
    )
    made.add_span_processor(
        BatchSpanProcessor(exporter, max_queue_size=2048, max_export_batch_size=512, schedule_delay_millis=1000)
    )
    return made


def _traceparent_of(span: Any) -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _hex(size_bytes: int) -> str:
    """Random hex digits that are not all zero (an all-zero id is invalid)."""
    return (secrets.randbits(size_bytes * 8) or 1).to_bytes(size_bytes, "big").hex()
