"""Traces: one per request, carried along with and without a collector, never in the way of the service."""

import time

import pytest
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sluice.runtime import telemetry
from sluice.runtime.telemetry import TraceBook

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADERS = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}


@pytest.fixture
def exporter():
    """Keeps spans in memory."""
    return InMemorySpanExporter()


@pytest.fixture
def recording(exporter):
    """A book whose spans reach `exporter`."""
    book = TraceBook(telemetry.provider(exporter, service="allocator", run="run1"))
    yield book
    book.close()


def spans(recording, exporter):
    """What was recorded, oldest first."""
    recording._provider.force_flush()
    return exporter.get_finished_spans()


def test_a_trace_goes_on_through_a_service_that_records_nothing():
    """Without a collector the next service still knows which trace a word belongs to."""
    book = TraceBook()
    book.remember("r1", HEADERS)
    with book.span("decide", "r1"):
        assert book.headers("r1") == HEADERS
    assert book.headers("r1") == HEADERS
    assert book.headers("r2") == {}


def test_headers_are_new_each_time():
    """The NATS client adds to the dict it is given; that must not reach the next message."""
    book = TraceBook()
    book.remember("r1", HEADERS)
    book.headers("r1")["Nats-Expected-Last-Subject-Sequence"] = "1"
    assert book.headers("r1") == HEADERS


@pytest.mark.parametrize(
    "traceparent",
    ["", "x", f"00-{TRACE}-00f067aa0ba902b7", f"01-{TRACE}-00f067aa0ba902b7-01", f"00-{'0' * 32}-00f067aa0ba902b7-01"],
)
def test_what_is_no_trace_context_is_not_passed_on(traceparent):
    """Anybody may write headers; only well-formed ones travel."""
    book = TraceBook()
    book.remember("r1", {"traceparent": traceparent})
    book.remember("r2", None)
    book.remember("", HEADERS)
    assert book.headers("r1") == book.headers("r2") == book.headers("") == {}


def test_the_book_forgets_the_request_not_heard_of_for_longest():
    """Memory does not grow with the number of requests ever made."""
    book = TraceBook(requests_max=2)
    for request in ("r1", "r2", "r1", "r3"):
        book.remember(request, HEADERS)
    assert [request for request in ("r1", "r2", "r3") if book.headers(request)] == ["r1", "r3"]


def test_a_source_begins_a_trace_once():
    """All words about one request belong to one trace, even when its source says it twice."""
    book = TraceBook()
    book.start("r1", "pod asks")
    first = book.headers("r1")
    book.start("r1", "pod asks")
    book.start("", "nothing")
    assert telemetry.is_traceparent(first["traceparent"])
    assert book.headers("r1") == first
    assert book.headers("") == {}


def test_spans_of_two_services_are_one_trace(recording, exporter):
    """A person sees request, decision and slice in one picture."""
    recording.start("r1", "pod asks")
    with recording.span("publish AllocationRequested", "r1", kind="producer", subject="sluice.request.r1"):
        sent = recording.headers("r1")
    other = TraceBook(recording._provider)
    other.remember("r1", sent)
    with other.span("decide", "r1"):
        pass
    root, publish, decide = spans(recording, exporter)
    assert {span.context.trace_id for span in (root, publish, decide)} == {root.context.trace_id}
    assert publish.parent.span_id == root.context.span_id
    assert decide.parent.span_id == publish.context.span_id
    assert dict(publish.attributes) == {"sluice.request": "r1", "subject": "sluice.request.r1"}
    assert publish.resource.attributes["service.name"] == "sluice-allocator"


def test_a_span_inside_another_is_its_child(recording, exporter):
    """Steps of one instruction are shown inside of it."""
    with recording.span("outer"), recording.span("inner"):
        pass
    inner, outer = spans(recording, exporter)
    assert inner.parent.span_id == outer.context.span_id
    assert telemetry.current() == ""


def test_a_failed_step_is_shown_as_failed_and_still_fails(recording, exporter):
    """Telemetry neither hides nor swallows an error."""
    with pytest.raises(OSError, match="disk full"), recording.span("step", "r1"):
        raise OSError("disk full")
    (span,) = spans(recording, exporter)
    assert span.status.is_ok is False


def test_a_collector_that_is_away_does_not_hold_up_the_service():
    """Nobody listens at the endpoint: spans are lost, stopping takes a bounded time."""
    book = telemetry.connect("http://127.0.0.1:9", service="allocator", run="run1")
    began = time.monotonic()
    with book.span("step", "r1"):
        pass
    assert time.monotonic() - began < 1
    book.close()
    assert time.monotonic() - began < 10


def test_spans_beyond_the_queue_are_dropped():
    """A stuck collector costs spans, not memory without end."""

    class Stuck(InMemorySpanExporter):
        def export(self, spans):
            time.sleep(0.05)
            return SpanExportResult.FAILURE

    book = TraceBook(telemetry.provider(Stuck(), service="a", run="r"))
    processor = book._provider._active_span_processor._span_processors[0]
    for _ in range(3000):
        with book.span("step"):
            pass
    assert len(processor._batch_processor._queue) <= 2048
    book.close(timeout_s=0.1)


def test_without_an_endpoint_the_sdk_is_not_even_imported():
    """An idle agent stays small."""
    assert telemetry.connect("", service="a", run="r")._provider is None
