"""Agents' messages are read up to a size at which they still fit into what other services publish about them."""

import msgspec
import pytest
from factories.inventory import news

from sluice.contracts.bus import subjects
from sluice.contracts.bus.codec import SCHEMA, encode
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.contracts.messages import AnyMessage, Closed, Envelope, SliceFailed
from sluice.runtime.nats.wire_format import AGENTS_WORD_BYTES_MAX, read_stored

NODE = NodeName("gpu-1.example.internal")
A1 = AllocationId("a1")
R1 = RequestId("r1")
FAILED = SliceFailed(allocation=A1, request=R1, revision=1, error="E", message="")


def envelope(message: AnyMessage) -> bytes:
    return encode(Envelope(id="1", operation="o-1", request=R1, schema=SCHEMA, time="", message=message))


def of_size(message: AnyMessage, field: str, size_bytes: int) -> bytes:
    spare = size_bytes - len(envelope(msgspec.structs.replace(message, **{field: ""})))
    return envelope(msgspec.structs.replace(message, **{field: "x" * spare}))


@pytest.mark.parametrize("prefix", ["", subjects.HISTORY_PREFIX], ids=["last value", "history"])
@pytest.mark.parametrize(
    ("address", "message", "field"),
    [
        pytest.param(subjects.slice_(NODE, A1), FAILED, "message", id="slice"),
        pytest.param(subjects.node(NODE), news(), "endpoint", id="node"),
    ],
)
def test_a_long_message_of_an_agent_is_set_aside(prefix: str, address: Address, message: AnyMessage, field: str):
    """The allocator quotes it in its own message, which the bus then refuses: every allocator would end, repeatedly."""
    subject = prefix + address.subject
    largest = read_stored(subject, 7, of_size(message, field, AGENTS_WORD_BYTES_MAX))
    assert (largest.why, largest.entry.message is None) == ("", False)
    found = read_stored(subject, 7, of_size(message, field, AGENTS_WORD_BYTES_MAX + 1))
    assert (found.entry.message, found.fault) == (None, "bytes")
    assert found.why == found.entry.why == "128001 bytes is over the limit of 128000 for what agents say"


def test_a_message_of_a_service_may_be_larger():
    """It quotes agents, and must not be limited like one."""
    closed = Closed(revision=1, allocation=A1, request=R1, node=NODE, cause="")
    found = read_stored(subjects.ledger(NODE, A1).subject, 7, of_size(closed, "cause", AGENTS_WORD_BYTES_MAX * 2))
    assert found.why == ""
