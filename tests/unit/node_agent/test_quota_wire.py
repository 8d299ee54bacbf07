"""Packets of the time quota, byte for byte: both sides are written in different languages."""

import struct

import pytest

from sluice_node_agent.core.quota import wire
from sluice_node_agent.core.quota.wire import Ask, GiveBack, Grant, Hello, Quota, Refused, Stop, WireError

UUID = bytes(range(16))


def _packet(kind, body=b"", *, magic=0x54514C53, version=1, sequence=5, size=64):
    return (struct.pack("<IHHQ", magic, version, kind, sequence) + body).ljust(size, b"\0")


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (_packet(1, struct.pack("<III16s", 42, 1, 0x010203, UUID)), Hello(42, True, 0x010203, UUID)),
        (_packet(1, struct.pack("<III16sI", 42, 1, 0x010203, UUID, 3)), Hello(42, True, 0x010203, UUID, 3)),
        (_packet(2, struct.pack("<QQ", 3_000, 8)), Ask(5, 3_000, 8)),
        (_packet(3, struct.pack("<QQ", 8, 9_999)), GiveBack(8, 9_999)),
    ],
)
def test_what_a_client_says_is_understood(sent, message):
    assert wire.read(sent) == message


@pytest.mark.parametrize(
    ("message", "kind", "body"),
    [
        (Quota(1, 2, 3, 4, 5, 6, 7), 17, struct.pack("<QQIIQQQ", 1, 2, 3, 4, 5, 6, 7)),
        (Quota(1, 2, 3, 4, 5, 6, 7, is_news=True), 19, struct.pack("<QQIIQQQ", 1, 2, 3, 4, 5, 6, 7)),
        (Grant(7, 10_000, 3), 18, struct.pack("<QQQ", 7, 10_000, 3)),
        (Stop(7), 20, struct.pack("<Q", 7)),
        (Refused(2), 21, struct.pack("<I", 2)),
    ],
)
def test_what_the_scheduler_says_has_its_place(message, kind, body):
    assert wire.written(message, 5) == _packet(kind, body)


@pytest.mark.parametrize(
    ("sent", "why", "reason"),
    [
        (_packet(2, size=63), "a packet of 63 bytes", 0),
        (_packet(2, size=65), "a packet of 65 bytes", 0),
        (b"", "a packet of 0 bytes", 0),
        (_packet(2, magic=1), "magic is 0x00000001", 0),
        (_packet(2, version=2), "version is 2", 1),
        (_packet(18), "kind is 18", 0),
        (_packet(2, b"\0" * 16 + b"x"), "something after its 16 bytes", 0),
        (_packet(1, struct.pack("<III16s", 42, 2, 1, UUID)), "flags are 0x2", 0),
    ],
)
def test_what_is_no_message_is_refused_in_words(sent, why, reason):
    """What a broken or newer client sends is taken for something else."""
    with pytest.raises(WireError, match=why) as caught:
        wire.read(sent)
    assert caught.value.reason == reason
