"""An invalid NATS address is reported before connecting."""

import msgspec
import pytest
from factories.inventory import news

from sluice.contracts.bus import subjects
from sluice.contracts.bus.codec import SCHEMA, encode
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.contracts.messages import AnyMessage, Closed, Envelope, SliceFailed
from sluice.runtime.bus import BusError
from sluice.runtime.nats.connection import Connection
from sluice.runtime.nats.credentials import parse_server_urls
from sluice.runtime.nats.wire_format import AGENTS_WORD_BYTES_MAX, read_stored

NO_PORT = "has a port that is no number from 1 to 65535"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        *((f"nats://{at}", NO_PORT) for at in ("127.0.0.1:PORT", "h:99999", "h:0")),
        ("nats://[::1", "has a host that cannot be read"),
        *((url, "has no host") for url in ("nats://", "nats://:4222", "::1")),
        (" ", "'' (in ' ') has no host"),
        (",", "'' (in ',') has no host"),
        ("nats://a:1,nats://b:x", "'nats://b:x' (in 'nats://a:1,nats://b:x') has a port"),
        ("http://h:4222", "begins with 'http'"),
        ("ws://h:4222", "begins with 'ws'"),
        *((f"nats://{host}:4222", "holds a blank or what cannot be printed") for host in ("a b", "\x1b[2J")),
    ],
)
async def test_an_address_that_cannot_be_one_is_said(url, says):
    """A user who kept the PORT of the README got a traceback about a client that must be connected first."""
    with pytest.raises(BusError) as refused:
        await Connection.open(url, name="console", within_s=5)
    assert says in str(refused.value)
    assert "it must be nats://HOST:PORT or tls://HOST:PORT" in str(refused.value)
    assert "\x1b" not in str(refused.value)


def test_every_address_that_the_client_takes_is_taken():
    servers = ["nats://h:4222", "tls://h", "h", "h:4222", "[::1]:4222", "nats://[fe80::1%eth0]:4222", "nats://h:"]
    assert parse_server_urls(", ".join(servers)) == servers


def test_a_password_is_not_repeated():
    with pytest.raises(BusError) as refused:
        parse_server_urls("nats://u:s3cret@h:PORT")
    assert "s3cret" not in str(refused.value)


async def test_a_client_that_never_began_to_connect_does_not_hide_why():
    """The client's own refusal is shown, not an error of closing it."""
    with pytest.raises(BusError, match="invalid hostname"):
        await Connection.open("nats://none:4222", name="console", within_s=5)


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
    closed = Closed(revision=1, allocation=A1, request=R1, node=NODE, cause="")
    found = read_stored(subjects.ledger(NODE, A1).subject, 7, of_size(closed, "cause", AGENTS_WORD_BYTES_MAX * 2))
    assert found.why == ""
