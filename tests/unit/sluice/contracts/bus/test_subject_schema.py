"""Which messages belong to a subject: one in the wrong place would book, or answer, something no other process sees."""

import hashlib

import golden
import pytest
from msgspec.structs import replace

from sluice.contracts.bus.codec import decode, schema_violation
from sluice.contracts.bus.streams import SUBJECT_KINDS
from sluice.contracts.bus.subjects import guarded, parse
from sluice.contracts.bus.trace_headers import STEPS_MAX, TimedStep, root_traceparent, steps_of, steps_text, trace_id
from sluice.contracts.messages import Grant, NodeInventory

LINES = [line.split(" ", 1) for line in (golden.recorded()[-1] / golden.WORDS).read_text().splitlines()]
WORDS = [(parse(subject), envelope.message) for subject, data in LINES if (envelope := decode(data.encode()))]
KEYED = [(a, m) for a, m in WORDS if a.kind not in {"request", "host"}]
"""Messages that name their own object; for the other two only the subject does."""


def test_every_recorded_message_belongs_to_its_subject():
    """A rule that is too narrow would set aside what our own services write."""
    assert not [why for address, message in WORDS if (why := schema_violation(address, message))]


def test_no_message_belongs_to_another_kind():
    for _, message in WORDS:
        for noun in SUBJECT_KINDS:
            if type(message) not in noun.messages:
                elsewhere = guarded(noun.kind, *("node" if part == "node" else "request" for part in noun.key))
                assert schema_violation(elsewhere, message).endswith(f"is no word of {noun.kind!r}")


@pytest.mark.parametrize("at", [0, -1])
def test_no_message_belongs_to_another_key(at: int):
    """An order of another node, or an answer to another request, however well formed."""
    for address, message in KEYED:
        key = list(address.key)
        key[at] = "another"
        why = schema_violation(guarded(address.kind, *key), message)
        assert "another" in why or (address.kind == "slice" and at == 0), (address, message)


def test_a_share_counts_where_it_is_booked():
    """Counted at another place, an agent would compare it with a device that it is not on."""
    (address, grant) = next((a, m) for a, m in WORDS if isinstance(m, Grant) and m.counts)
    more = replace(grant, counts=(*grant.counts, grant.counts[0]))
    assert schema_violation(address, more) == "allocation counts at other places than it is booked at"
    (address, inventory) = next((a, m) for a, m in WORDS if isinstance(m, NodeInventory) and m.snapshot.slices)
    moved = [replace(s, counts=tuple(replace(d, start=9) for d in s.counts)) for s in inventory.snapshot.slices]
    told = replace(inventory, snapshot=replace(inventory.snapshot, slices=tuple(moved)))
    assert "counts at other places" in schema_violation(address, told)


def test_a_traces_id_is_that_of_the_request_in_every_service():
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
    assert steps_of(text) == ()
