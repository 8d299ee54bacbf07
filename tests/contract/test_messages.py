"""Messages as other processes see them: each has an example, survives the wire, and tolerates other versions."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from message_examples import EXAMPLES

from sluice.contracts.bus.codec import MESSAGE_BYTES_MAX, SCHEMA, MessageTooLargeError, Undecodable, decode, encode
from sluice.contracts.bus.streams import SUBJECT_KINDS
from sluice.contracts.messages import Envelope, Released


def wrapped(message) -> Envelope:
    return Envelope(
        id="r-1.1", operation="r-1", request="p1", schema=SCHEMA, time="2026-01-01T00:00:00Z", message=message
    )


def test_every_message_of_the_bus_is_documented_by_an_example():
    """A message without an example would be missing from docs/events.md."""
    assert {type(example) for example in EXAMPLES} == {kind for noun in SUBJECT_KINDS for kind in noun.messages}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: type(e).__name__)
def test_no_message_changes_on_its_way(example):
    """Encode and decode give the same message."""
    assert decode(encode(wrapped(example))) == wrapped(example)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: type(e).__name__)
def test_a_newer_writer_may_add_fields(example):
    """An older reader ignores unknown fields."""
    raw = json.loads(encode(wrapped(example)))
    raw["added_later"] = raw["message"]["added_later"] = {"x": [1]}
    assert decode(json.dumps(raw).encode()) == wrapped(example)


def test_a_newer_schema_is_set_aside_and_says_so():
    """A reader that would misunderstand does not guess."""
    later = msgspec.structs.replace(wrapped(Released(request="p1", cause="c")), schema=SCHEMA + 1)
    assert decode(encode(later)) == Undecodable(
        f"schema {SCHEMA + 1} is newer than {SCHEMA}, the newest this process knows"
    )


def test_an_unknown_message_is_set_aside():
    """A message type from the future stops nothing."""
    raw = json.loads(encode(wrapped(Released(request="p1", cause="c"))))
    raw["message"]["type"] = "Teleported"
    assert isinstance(decode(json.dumps(raw).encode()), Undecodable)


def test_a_message_that_no_server_takes_is_refused_where_it_is_made():
    """Too large is an error of the writer, with the size."""
    with pytest.raises(MessageTooLargeError, match="over the limit"):
        encode(wrapped(Released(request="p1", cause="x" * MESSAGE_BYTES_MAX)))


@given(st.binary(max_size=400))
def test_no_bytes_can_stop_a_reader(data):
    """Anything decodes to a message or to the reason why not."""
    assert isinstance(decode(data), Undecodable | Envelope)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda c: st.lists(c) | st.dictionaries(st.text(max_size=5), c),
        max_leaves=20,
    )
)
def test_no_json_can_stop_a_reader(value):
    """Well-formed JSON of any other shape is set aside."""
    assert isinstance(decode(json.dumps({"message": value}).encode()), Undecodable)
