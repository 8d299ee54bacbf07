"""Traces of requests, and spans of the cores."""

import logging
import threading
import time

import msgspec
import pytest
from factories.trace_attributes import KEYS
from message_examples import EXAMPLES
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import hw_attributes, k8s_attributes, messaging_attributes
from opentelemetry.semconv._incubating.attributes import rpc_attributes as rpc
from opentelemetry.semconv.attributes import error_attributes

from sluice.contracts.bus.events import Entry, Observed, Stream, Ticked, Write
from sluice.contracts.bus.trace_headers import root_traceparent, steps_of, trace_id
from sluice.contracts.ids import OperationId
from sluice.contracts.messages import AllocationRequested, Grant, RequestWithdrawn, WaitOver
from sluice.runtime.tracing import request_traces
from sluice.runtime.tracing.core_spans import BECAUSE_MAX, CoreSpans, SpanPhase
from sluice.runtime.tracing.otel_spans import RateLimitedLog, Spans
from sluice.runtime.tracing.request_traces import RequestTraces
from sluice.runtime.tracing.span_attributes import of_call, of_instruction, of_message, of_subject

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADERS = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
ROOT = {"traceparent": root_traceparent("r1")}


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def recorded(exporter):
    made = Spans(exporter, service="allocator", run="run1")
    yield made
    made.close(1)


@pytest.fixture
def book(recorded):
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
    assert book.headers("r1") == ROOT
    assert book.headers("r2") == {"traceparent": root_traceparent("r2")}
    assert book.headers("") == {}


def test_the_book_forgets_the_request_not_heard_of_for_longest():
    """Memory does not grow with the number of requests ever made."""
    book = RequestTraces(requests_max=2)
    for request in ("r1", "r2", "r1", "r3"):
        book.remember(request, HEADERS)
    assert [request for request in ("r1", "r2", "r3") if book.headers(request) == HEADERS] == ["r1", "r3"]


def test_a_source_begins_a_trace_once(book, spans):
    """All messages about one request belong to one trace, even repeated ones."""
    book.start("r1", "request seen")
    book.start("r1", "request seen")
    book.start("", "nothing")
    (root,) = spans()
    assert (root.name, root.parent, f"{root.context.trace_id:032x}") == ("request seen", None, trace_id("r1"))
    assert book.headers("r1") == ROOT


def test_a_late_word_does_not_take_a_release_back_into_the_first_trace():
    book = RequestTraces()
    book.remember("r1", {"traceparent": root_traceparent("r1", "release")})
    book.remember("r1", ROOT)
    assert book.headers("r1") == {"traceparent": root_traceparent("r1", "release")}


def test_spans_of_two_services_are_one_trace(book, recorded, spans):
    """A person sees request, decision and slice in one picture."""
    book.start("r1", "request seen")
    with book.span("publish AllocationRequested", "r1", kind="producer", attributes={"sluice.attempt": 1}):
        sent = book.headers("r1")
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


def test_what_is_no_requests_is_no_trace(book, spans):
    """Readings of GPUs and periodic pulls would hide the one trace under search."""
    with book.span("ReadGpu"):
        pass
    assert spans() == ()


def test_a_pull_is_in_the_trace_of_the_news_once(book, spans):
    """A trace would grow without end by periodic pulls of the same node."""
    book.remember("", ROOT, "sluice.node.a")
    parents = [book.at_once("sluice.node.a"), book.at_once("sluice.node.a")]
    assert parents == [root_traceparent("r1"), ""]


def test_a_failed_step_is_shown_as_failed_without_its_text_and_still_fails(book, spans):
    """Telemetry neither hides nor swallows an error; its text may hold a secret, so only its type is recorded."""
    with pytest.raises(OSError, match="password=x"), book.span("step", "r1"):
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


def test_spans_beyond_the_queue_are_dropped(exporter):
    """A stuck collector costs spans, not unbounded memory."""
    go = threading.Event()

    def answers_nothing(_spans):
        go.wait(20)  # bounded, so that a failing test leaves no thread
        return SpanExportResult.FAILURE

    exporter.export = answers_nothing
    spans = Spans(exporter, service="a", run="r")
    book = RequestTraces(spans)
    for _ in range(4000):
        with book.span("step", "r1"):
            pass
    assert len(spans._batches._batch_processor._queue) <= 2048
    book.close(timeout_s=0.1)
    go.set()


def test_a_collector_that_is_away_is_told_of_now_and_then():
    """A night without a collector fills no disk with the same line."""
    told = RateLimitedLog()
    lines = [logging.LogRecord("x", logging.ERROR, "", 0, text, (), None) for text in ("away", "away", "full")]
    assert [told.filter(line) for line in lines] == [True, False, True]


ASKED, GRANT, WITHDRAWN = (
    next(each for each in EXAMPLES if isinstance(each, kind)) for kind in (AllocationRequested, Grant, RequestWithdrawn)
)


def by_name(spans):
    return {span.name: span for span in spans}


def write(message, request="r1", attempt=1):
    return Write(OperationId("op-1"), attempt, Stream.BOOK, "sluice.x.y", "sluice.x.y", 0, message, request)


def read(sequence=1):
    return Observed(Stream.STATE, Entry("sluice.request.r1", sequence, OperationId("o"), ASKED))


def test_a_word_that_came_the_decision_and_the_word_that_went_are_one_line(book, spans):
    turns = CoreSpans(book)
    book.arrived("sluice.request.r1", 1, "r1", ROOT, time.time_ns() - 1000)
    doing = write(GRANT)
    cause = turns.turn(read(), "", [(doing, "r1")], 0.001)
    with turns.publishing(doing, cause):
        headers = book.headers("r1")
    found = by_name(spans())
    deliver, decide, publish = found["deliver AllocationRequested"], found["decide"], found["publish Grant"]
    assert f"{deliver.parent.span_id:016x}" == root_traceparent("r1").split("-")[2]
    assert decide.parent.span_id == deliver.context.span_id
    assert publish.parent.span_id == decide.context.span_id
    assert f"{publish.context.span_id:016x}" in headers["traceparent"]
    assert decide.end_time - decide.start_time == pytest.approx(1_000_000, rel=0.01)


def test_what_was_delivered_again_names_the_first_time(book, spans):
    turns = CoreSpans(book)
    for _ in range(2):
        book.arrived("sluice.request.r1", 1, "r1", ROOT)
        turns.turn(read(), "", [(write(GRANT), "r1")], 0.001)
    first, second = (span for span in spans() if span.name.startswith("deliver"))
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert "sluice.delivered_again" not in first.attributes
    assert second.attributes["sluice.delivered_again"] is True


def test_an_attempt_names_the_one_before_it(book, spans):
    """A slow write's trace shows that the broker did not answer the first time."""
    turns = CoreSpans(book)
    for attempt in (1, 2):
        with turns.publishing(write(GRANT, attempt=attempt), ""):
            turns.published(write(GRANT), unknown=attempt == 1)
    first, second = spans()
    assert [link.context.span_id for link in second.links] == [first.context.span_id]


def test_a_phase_is_from_its_first_signal_to_its_last(book, spans):
    """The wait in the queue is one bar, whatever else was published meanwhile."""
    turns = CoreSpans(book, (SpanPhase("queue wait", "saw AllocationRequested", "decided Grant"),))
    for sequence in (1, 2):
        book.arrived("sluice.request.r1", sequence, "r1", ROOT)
        turns.turn(read(sequence), "", [], 0.0)
    turns.turn(Ticked(), "", [(write(GRANT), "r1")], 0.0)
    turns.turn(Ticked(), "", [(write(GRANT), "r1")], 0.0)
    (wait,) = (span for span in spans() if span.name == "queue wait")
    assert wait.end_time >= wait.start_time


def test_a_source_begins_both_traces(book, spans):
    """On a cluster as in a folder: a pod's trace begins with its request."""
    turns = CoreSpans(book)
    turns.turn(Ticked(), "", [(write(ASKED), "r1")], 0.0)
    turns.turn(Ticked(), "", [(write(WITHDRAWN), "r1")], 0.0)
    found = by_name(spans())
    assert f"{found['request seen'].context.trace_id:032x}" == trace_id("r1")
    assert f"{found['request given back'].context.trace_id:032x}" == trace_id("r1", "release")
    assert found["request seen"].attributes["k8s.pod.name"] == ASKED.name


def test_a_listing_of_a_whole_cluster_does_not_make_a_span_for_each_pod(book, spans):
    doing = [(write(WaitOver(request=f"r{number}"), f"r{number}"), f"r{number}") for number in range(500)]
    CoreSpans(book).turn(Ticked(), "", doing, 0.001)
    assert len(spans()) == BECAUSE_MAX


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_nothing_but_names_and_places_leaves_the_process(message):
    """No ticket, no environment, no annotation, no text of a person reaches a collector."""
    told = of_message(message) | of_subject("sluice.x.y", "publish") | of_call("/a.B/C") | of_instruction(message)
    assert told.keys() <= KEYS
    secret = msgspec.to_builtins(message)
    for key in ("ticket", "containers", "claims", "message", "why", "cause", "annotations", "endpoint"):
        if isinstance(secret.get(key), str) and secret[key]:
            assert secret[key] not in told.values()


def test_names_are_those_of_the_semantic_conventions():
    """A viewer that knows OpenTelemetry's names groups and colours by them."""
    known = {
        value
        for module in (hw_attributes, k8s_attributes, messaging_attributes, rpc, error_attributes)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }
    assert {key for key in KEYS if not key.startswith("sluice.")} <= known
