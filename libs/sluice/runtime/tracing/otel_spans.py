"""Spans as the OpenTelemetry SDK records and exports them. Imported only where an endpoint is configured.

A span is a child of a `traceparent`, never of the SDK's "current span". What does not fit the queue is dropped."""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from sluice.runtime.tracing.request_traces import NO_ATTRIBUTES, Attributes, SpanKind, ids_of
from sluice.runtime.version import sluice_version

EXPORT_TIMEOUT_S = 2.0
QUEUE_MAX = 2048
"""Spans that wait for export. About 2 kB each."""
BATCH_MAX = 512
BATCH_EVERY_MS = 1000
TOLD_EVERY_S = 60.0
"""An absent collector is logged once in this time, not with every batch."""
MOMENT_NS = 1
"""Jaeger warns of a span without duration, as of one that ended before it began."""
_LOGGERS = ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk._shared_internal")
_NS = 1_000_000_000


class _Ids(RandomIdGenerator):
    """Random ids, except for the root of a request's trace, whose ids are derived from the request."""

    def __init__(self) -> None:
        self._wanted = threading.local()

    def want(self, trace_id: int, span_id: int) -> None:
        """Set the ids of this thread's next span without a parent."""
        self._wanted.ids = (trace_id, span_id)

    def generate_trace_id(self) -> int:
        wanted = getattr(self._wanted, "ids", None)
        return wanted[0] if wanted else super().generate_trace_id()

    def generate_span_id(self) -> int:
        wanted = getattr(self._wanted, "ids", None)
        self._wanted.ids = None
        return wanted[1] if wanted else super().generate_span_id()

    def is_trace_id_random(self) -> bool:
        return False


class RateLimitedLog(logging.Filter):
    """Lets one line of each kind through in `TOLD_EVERY_S`; kinds are the library's few texts."""

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now < self._told.get(record.msg, now):
            return False
        self._told[record.msg] = now + TOLD_EVERY_S
        return True


class Spans:
    """Records spans of one service and exports them."""

    def __init__(self, exporter: SpanExporter, *, service: str, run: str) -> None:
        self._ids = _Ids()
        resource = {
            "service.name": f"sluice-{service}",
            "service.namespace": "sluice",
            "service.version": sluice_version(),
            "service.instance.id": run,
        }
        self._provider = TracerProvider(
            resource=Resource.create(resource), shutdown_on_exit=False, id_generator=self._ids
        )
        self._batches = BatchSpanProcessor(
            exporter, max_queue_size=QUEUE_MAX, max_export_batch_size=BATCH_MAX, schedule_delay_millis=BATCH_EVERY_MS
        )
        self._provider.add_span_processor(self._batches)
        self._tracer = self._provider.get_tracer("sluice", sluice_version())

    def root(
        self,
        name: str,
        root: str,
        *,
        links: Sequence[str] = (),
        ago_s: float = 0.0,
        attributes: Attributes = NO_ATTRIBUTES,
    ) -> None:
        """The first span of a trace, a moment: a request outlives the process that began it."""
        found = ids_of(root)
        if found is None:
            return
        began_ns = time.time_ns() - int(ago_s * _NS)
        self._ids.want(int(found[0], 16), int(found[1], 16))
        span = self._tracer.start_span(
            name, context=Context(), start_time=began_ns, links=_links(links), attributes=dict(attributes)
        )
        span.end(began_ns + MOMENT_NS)

    def past(
        self,
        name: str,
        parent: str,
        *,
        began_ns: int,
        ended_ns: int,
        kind: SpanKind = "internal",
        links: Sequence[str] = (),
        attributes: Attributes = NO_ATTRIBUTES,
    ) -> str:
        """A finished span; times are Unix, ns. Returns its `traceparent`."""
        span = self._tracer.start_span(
            name,
            context=_context(parent),
            kind=trace.SpanKind[kind.upper()],
            start_time=began_ns,
            links=_links(links),
            attributes=dict(attributes),
        )
        span.end(max(began_ns + MOMENT_NS, ended_ns))
        return _traceparent_of(span)

    @contextmanager
    def live(
        self, name: str, parent: str, *, kind: SpanKind, links: Sequence[str], attributes: Attributes
    ) -> Iterator[str]:
        """A span for the time of a `with`; gives its `traceparent`. An exception's type marks it as failed."""
        span = self._tracer.start_span(
            name,
            context=_context(parent),
            kind=trace.SpanKind[kind.upper()],
            links=_links(links),
            attributes=dict(attributes),
        )
        try:
            yield _traceparent_of(span)
        except BaseException as error:
            span.set_status(trace.StatusCode.ERROR)
            span.set_attribute("error.type", type(error).__qualname__)
            raise
        finally:
            span.end()

    def flush(self) -> None:
        """Export everything, however long it takes: for tests."""
        self._provider.force_flush()

    def close(self, timeout_s: float) -> None:
        """Export within `timeout_s`, in a thread: the SDK's own waiting has no bound (SDK 1.45, issue 4568)."""
        closing = threading.Thread(target=self._provider.shutdown, name="spans-close", daemon=True)
        closing.start()
        closing.join(timeout_s)


def exporting(endpoint: str, *, service: str, run: str) -> Spans:
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(each, RateLimitedLog) for each in logger.filters):
            logger.addFilter(RateLimitedLog())
    base = endpoint.rstrip("/")
    url = base if base.endswith("/v1/traces") else f"{base}/v1/traces"
    return Spans(OTLPSpanExporter(endpoint=url, timeout=EXPORT_TIMEOUT_S), service=service, run=run)


def _context(traceparent: str) -> Context:
    found = ids_of(traceparent)
    if found is None:
        return Context()
    return trace.set_span_in_context(trace.NonRecordingSpan(_span_context(*found)), Context())


def _span_context(trace_id: str, span_id: str) -> trace.SpanContext:
    return trace.SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED)
    )


def _links(traceparents: Sequence[str]) -> list[trace.Link]:
    found = (ids_of(traceparent) for traceparent in traceparents)
    return [trace.Link(_span_context(*ids)) for ids in found if ids is not None]


def _traceparent_of(span: trace.Span) -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
