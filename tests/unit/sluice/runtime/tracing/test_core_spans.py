"""Turns of a core in traces: connected, bounded, and without private text."""

import time

import msgspec
import pytest
from message_examples import EXAMPLES
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import hw_attributes, k8s_attributes, messaging_attributes
from opentelemetry.semconv._incubating.attributes import rpc_attributes as rpc
from opentelemetry.semconv.attributes import error_attributes

from sluice.contracts.bus.events import Entry, Observed, Stream, Ticked, Write
from sluice.contracts.bus.trace_headers import root_traceparent, trace_id
from sluice.contracts.ids import OperationId
from sluice.contracts.messages import AllocationRequested, Grant, RequestWithdrawn, WaitOver
from sluice.runtime.tracing.core_spans import BECAUSE_MAX, CoreSpans, SpanPhase
from sluice.runtime.tracing.otel_spans import Spans
from sluice.runtime.tracing.request_traces import RequestTraces
from sluice.runtime.tracing.span_attributes import KEYS, of_call, of_instruction, of_message, of_subject


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
        return {span.name: span for span in exporter.get_finished_spans()}

    return found


ASKED = next(each for each in EXAMPLES if isinstance(each, AllocationRequested))
GRANT = next(each for each in EXAMPLES if isinstance(each, Grant))
WITHDRAWN = next(each for each in EXAMPLES if isinstance(each, RequestWithdrawn))


def write(message, request="r1", operation="op-1", attempt=1):
    return Write(OperationId(operation), attempt, Stream.BOOK, "sluice.x.y", "sluice.x.y", 0, message, request)


def read(sequence=1):
    return Observed(Stream.STATE, Entry("sluice.request.r1", sequence, OperationId("o"), ASKED))


def test_a_word_that_came_the_decision_and_the_word_that_went_are_one_line(book, spans):
    """A Grant leads to the message that caused it."""
    turns = CoreSpans(book)
    book.arrived("sluice.request.r1", 1, "r1", {"traceparent": root_traceparent("r1")}, time.time_ns() - 1000)
    doing = write(GRANT)
    cause = turns.turn(read(), "", [(doing, "r1")], 0.001)
    with turns.publishing(doing, cause):
        headers = book.headers("r1")
    deliver, decide, publish = (spans()[name] for name in ("deliver AllocationRequested", "decide", "publish Grant"))
    assert f"{deliver.parent.span_id:016x}" == root_traceparent("r1").split("-")[2]
    assert decide.parent.span_id == deliver.context.span_id
    assert publish.parent.span_id == decide.context.span_id
    assert f"{publish.context.span_id:016x}" in headers["traceparent"]
    assert decide.end_time - decide.start_time == pytest.approx(1_000_000, rel=0.01)


def test_what_was_delivered_again_names_the_first_time(book, spans, exporter):
    """A redelivery is shown as one, not as a second request."""
    turns = CoreSpans(book)
    for _ in range(2):
        book.arrived("sluice.request.r1", 1, "r1", {"traceparent": root_traceparent("r1")})
        turns.turn(read(), "", [(write(GRANT), "r1")], 0.001)
    spans()
    first, second = (span for span in exporter.get_finished_spans() if span.name.startswith("deliver"))
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert "sluice.delivered_again" not in first.attributes
    assert second.attributes["sluice.delivered_again"] is True


def test_an_attempt_names_the_one_before_it(book, spans, exporter):
    """A slow write's trace shows that the broker did not answer the first time."""
    turns = CoreSpans(book)
    for attempt in (1, 2):
        with turns.publishing(write(GRANT, attempt=attempt), ""):
            turns.published(write(GRANT), unknown=attempt == 1)
    spans()
    first, second = exporter.get_finished_spans()
    assert [link.context.span_id for link in second.links] == [first.context.span_id]


def test_a_decision_about_who_waits_names_what_freed_the_place(book, spans):
    """The trace of a pod that waited leads to the pod that ended."""
    turns = CoreSpans(book)
    book.arrived("sluice.request.r1", 1, "other", {"traceparent": root_traceparent("other")})
    turns.turn(read(), "", [(write(GRANT), "r1")], 0.001)
    decide = spans()["decide"]
    assert f"{decide.context.trace_id:032x}" == trace_id("r1")
    assert [f"{link.context.trace_id:032x}" for link in decide.links] == [trace_id("other")]


def test_a_phase_is_from_its_first_signal_to_its_last(book, spans):
    """The wait in the queue is one bar, whatever else was published meanwhile."""
    turns = CoreSpans(book, (SpanPhase("queue wait", "saw AllocationRequested", "decided Grant"),))
    for sequence in (1, 2):
        book.arrived("sluice.request.r1", sequence, "r1", {"traceparent": root_traceparent("r1")})
        turns.turn(read(sequence), "", [], 0.0)
    turns.turn(Ticked(), "", [(write(GRANT), "r1")], 0.0)
    turns.turn(Ticked(), "", [(write(GRANT), "r1")], 0.0)
    assert [name for name in spans() if name == "queue wait"] == ["queue wait"]
    assert spans()["queue wait"].end_time >= spans()["queue wait"].start_time


def test_a_source_begins_both_traces(book, spans):
    """On a cluster as in a folder: a pod's trace begins with its request."""
    turns = CoreSpans(book)
    turns.turn(Ticked(), "", [(write(ASKED), "r1")], 0.0)
    turns.turn(Ticked(), "", [(write(WITHDRAWN), "r1")], 0.0)
    found = spans()
    assert f"{found['request seen'].context.trace_id:032x}" == trace_id("r1")
    assert f"{found['request given back'].context.trace_id:032x}" == trace_id("r1", "release")
    assert found["request seen"].attributes["k8s.pod.name"] == ASKED.name


def test_a_listing_of_a_whole_cluster_does_not_make_a_span_for_each_pod(book, spans, exporter):
    """A turn that concerns all pods stays short."""
    doing = [(write(WaitOver(request=f"r{number}"), f"r{number}"), f"r{number}") for number in range(500)]
    CoreSpans(book).turn(Ticked(), "", doing, 0.001)
    spans()
    assert len(exporter.get_finished_spans()) == BECAUSE_MAX


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_nothing_but_names_and_places_leaves_the_process(message):
    """No ticket, no environment, no annotation, no text of a person reaches a collector."""
    told = {
        **of_message(message),
        **of_subject("sluice.x.y", "publish"),
        **of_call("/a.B/C"),
        **of_instruction(message),
    }
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
