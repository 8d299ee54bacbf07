"""Traces: carried along with and without a collector, never in the way of the service."""

import logging
import threading
import time

import pytest
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sluice.contracts.bus.trace_headers import root_traceparent, steps_of, trace_id
from sluice.runtime.tracing import request_traces
from sluice.runtime.tracing.otel_spans import RateLimitedLog, Spans
from sluice.runtime.tracing.request_traces import RequestTraces

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADERS = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def recorded(exporter):
    made = Spans(exporter, service="allocator", run="run1")
    yield made
    made.close(1)


@pytest.fixture
def recording(recorded):
    return RequestTraces(recorded)


@pytest.fixture
def spans(recorded, exporter):
    def found():
        recorded.flush()
        return exporter.get_finished_spans()

    return found


def test_a_restarted_service_goes_on_in_the_same_trace():
    """A lost process does not break a trace: ids are derived from the request."""
    assert RequestTraces().headers("r2") == {"traceparent": root_traceparent("r2")}
    assert request_traces.ids_of(root_traceparent("r2"))[0] == trace_id("r2")
    assert RequestTraces().headers("") == {}


def test_headers_are_new_each_time():
    """The NATS client adds to the dict it is given; that must not reach the next message."""
    book = RequestTraces()
    book.remember("r1", HEADERS)
    book.headers("r1")["Nats-Expected-Last-Subject-Sequence"] = "1"
    assert book.headers("r1") == HEADERS


@pytest.mark.parametrize(
    "traceparent",
    ["", "x", f"00-{TRACE}-00f067aa0ba902b7", f"01-{TRACE}-00f067aa0ba902b7-01", f"00-{'0' * 32}-00f067aa0ba902b7-01"],
)
def test_what_is_no_trace_context_is_not_passed_on(traceparent):
    """Headers are untrusted; only well-formed ones travel."""
    book = RequestTraces()
    book.remember("r1", {"traceparent": traceparent})
    book.remember("r2", None)
    book.remember("", HEADERS)
    assert book.headers("r1") == {"traceparent": root_traceparent("r1")}
    assert book.headers("r2") == {"traceparent": root_traceparent("r2")}
    assert book.headers("") == {}


def test_the_book_forgets_the_request_not_heard_of_for_longest():
    """Memory does not grow with the number of requests ever made."""
    book = RequestTraces(requests_max=2)
    for request in ("r1", "r2", "r1", "r3"):
        book.remember(request, HEADERS)
    assert [request for request in ("r1", "r2", "r3") if book.headers(request) == HEADERS] == ["r1", "r3"]


def test_a_source_begins_a_trace_once(recording, spans):
    """All messages about one request belong to one trace, even repeated ones."""
    recording.start("r1", "request seen")
    recording.start("r1", "request seen")
    recording.start("", "nothing")
    (root,) = spans()
    assert (root.name, root.parent, f"{root.context.trace_id:032x}") == ("request seen", None, trace_id("r1"))
    assert recording.headers("r1") == {"traceparent": root_traceparent("r1")}


def test_a_release_is_a_trace_of_its_own_that_names_the_first(recording, spans):
    """A pod that ran for a month is not one trace of a month; and its end links to its beginning."""
    recording.start("r1", "request given back", "release")
    (root,) = spans()
    assert f"{root.context.trace_id:032x}" == trace_id("r1", "release") != trace_id("r1")
    assert [f"{link.context.trace_id:032x}" for link in root.links] == [trace_id("r1")]


def test_a_late_word_does_not_take_a_release_back_into_the_first_trace():
    """A late message does not tear the trace of a release apart."""
    book = RequestTraces()
    book.remember("r1", {"traceparent": root_traceparent("r1", "release")})
    book.remember("r1", {"traceparent": root_traceparent("r1")})
    assert book.headers("r1") == {"traceparent": root_traceparent("r1", "release")}


def test_spans_of_two_services_are_one_trace(recording, recorded, spans):
    """A person sees request, decision and slice in one picture."""
    recording.start("r1", "request seen")
    with recording.span("publish AllocationRequested", "r1", kind="producer", attributes={"sluice.attempt": 1}):
        sent = recording.headers("r1")
    other = RequestTraces(recorded)
    other.remember("r1", sent)
    with other.span("decide", "r1"):
        pass
    root, publish, decide = spans()
    assert {span.context.trace_id for span in (root, publish, decide)} == {root.context.trace_id}
    assert publish.parent.span_id == root.context.span_id
    assert decide.parent.span_id == publish.context.span_id
    assert dict(publish.attributes) == {"sluice.request": "r1", "sluice.attempt": 1}
    assert publish.resource.attributes["service.name"] == "sluice-allocator"


def test_a_span_inside_another_is_its_child(recording, spans):
    """Steps of one instruction are shown inside of it."""
    with recording.span("outer", "r1"), recording.span("inner"):
        pass
    inner, outer = spans()
    assert inner.parent.span_id == outer.context.span_id
    assert request_traces.current() == ""


def test_what_is_no_requests_is_no_trace(recording, spans):
    """Readings of GPUs and periodic pulls would hide the one trace that somebody looks for."""
    with recording.span("ReadGpu"):
        pass
    assert spans() == ()


def test_a_pull_is_in_the_trace_of_the_news_once(recording, spans):
    """A trace must not grow without end by periodic pulls of the same node."""
    recording.remember("", {"traceparent": root_traceparent("r1")}, "sluice.node.a")
    parents = [recording.at_once("sluice.node.a"), recording.at_once("sluice.node.a")]
    assert parents == [root_traceparent("r1"), ""]


def test_a_failed_step_is_shown_as_failed_without_its_text_and_still_fails(recording, spans):
    """Telemetry neither hides nor swallows an error; its text may hold a secret, so only its type is recorded."""
    with pytest.raises(OSError, match="password=x"), recording.span("step", "r1"):
        raise OSError("password=x")
    (span,) = spans()
    assert span.status.is_ok is False
    assert span.attributes["error.type"] == "OSError"
    assert "password" not in span.to_json()


def test_the_next_word_tells_what_steps_took_and_no_word_twice():
    """`sluice trace` shows device steps without a collector; and a message that did not land loses none of them."""
    book = RequestTraces()
    book.took("r1", "CreateGpuInstance", 0.5)
    first = book.steps("r1")
    assert book.steps("r1").keys() == first.keys()
    book.took("r1", "VerifyInstance", 0.25)
    book.told("r1", first)
    (left,) = steps_of(book.steps("r1")["Sluice-Steps"])
    assert (left.name, left.took_ms) == ("VerifyInstance", 250.0)
    book.told("r1", book.steps("r1"))
    assert book.steps("r1") == {}
    book.took("", "ReadGpu", 1.0)
    assert book.steps("") == {}


def test_a_collector_that_is_away_does_not_hold_up_the_service():
    """Nothing listens at the endpoint: spans are lost, stopping takes a bounded time."""
    book = request_traces.connect("http://127.0.0.1:9", service="allocator", run="run1")
    began = time.monotonic()
    with book.span("step", "r1"):
        pass
    book.close()
    assert time.monotonic() - began < 20  # an exporter left to itself tries again for a minute


class Stuck(InMemorySpanExporter):
    """A collector that accepts spans and does not answer until released."""

    def __init__(self):
        super().__init__()
        self.go = threading.Event()

    def export(self, spans):
        """Wait; bounded, so that a failing test leaves no thread."""
        self.go.wait(20)
        return SpanExportResult.FAILURE


@pytest.fixture
def stuck():
    exporter = Stuck()
    yield exporter
    exporter.go.set()


def test_spans_beyond_the_queue_are_dropped(stuck):
    """A stuck collector costs spans, not unbounded memory."""
    spans = Spans(stuck, service="a", run="r")
    book = RequestTraces(spans)
    for _ in range(4000):
        with book.span("step", "r1"):
            pass
    assert len(spans._batches._batch_processor._queue) <= 2048
    book.close(timeout_s=0.1)


def test_a_collector_that_is_away_is_told_of_now_and_then():
    """A night without a collector fills no disk with the same line."""
    told = RateLimitedLog()
    lines = [logging.LogRecord("x", logging.ERROR, "", 0, text, (), None) for text in ("away", "away", "full")]
    assert [told.filter(line) for line in lines] == [True, False, True]
