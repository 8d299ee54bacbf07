"""The ids of traces, and the steps that travel with a message."""

import hashlib

import pytest

from sluice.contracts.bus.trace_headers import STEPS_MAX, TimedStep, root_traceparent, steps_of, steps_text, trace_id


def test_a_traces_id_is_that_of_the_request_for_everybody():
    """People find a pod's trace by its UID alone, in every version: the rule is in docs/traces.md and never changes."""
    assert trace_id("u1") == hashlib.sha256(b"sluice/request/u1").hexdigest()[:32]
    assert trace_id("u1", "release") == hashlib.sha256(b"sluice/release/u1").hexdigest()[:32]
    assert root_traceparent("u1").split("-")[1] == trace_id("u1")


def test_only_the_last_steps_are_told():
    """A slice that is retried for hours does not make an endless header."""
    many = [TimedStep("ReadGpu", float(number), 1.0) for number in range(100)]
    assert steps_of(steps_text(many)) == tuple(many[-STEPS_MAX:])


@pytest.mark.parametrize("text", ["", ";;", "a", "a=1", "a=x+y", "a=-1+2", "a=nan+1", "a=inf+1", "a b=1+2", "x" * 99])
def test_a_foreign_header_is_ignored(text):
    """Headers are untrusted; people are shown none of a foreign one."""
    assert steps_of(text) == ()
