"""Undecodable messages, on real servers: each is reported and counted once, and what is behind it is read."""

import asyncio
import json
import re

import pytest
from factories.broker.bus_rigs import NODE, NatsRig, order, place, raw, say, watching, word
from factories.words import booking_of
from msgspec import to_builtins

from sluice.contracts.bus import subjects
from sluice.contracts.bus.codec import MESSAGE_BYTES_MAX, SCHEMA
from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import AllocationId, GpuUuid, Incarnation
from sluice.contracts.messages import DeviceGrant, Grant
from sluice.runtime.bus import BusError
from sluice.runtime.nats.wire_format import envelope_bytes
from sluice.runtime.prometheus import metrics
from sluice.runtime.prometheus.runtime_metrics import POISON

pytestmark = pytest.mark.asyncio(loop_scope="session")


def envelope(message: dict, **changes) -> bytes:
    whole = {"id": "1", "operation": "o-1", "request": "", "schema": SCHEMA, "time": "", "message": message}
    return json.dumps(whole | changes).encode()


CLOSED = to_builtins(word(place("p")))
DEVICE = DeviceGrant(container="c", gpu=GpuUuid("g"), profile=None, start=2**40, size=1)
BEYOND = to_builtins(Grant(revision=1, incarnation=Incarnation("1"), booking=booking_of("p", NODE, (DEVICE,))))
POISONS = {
    "no JSON": (b"\xff\x00 not ours", "bytes"),
    "nothing": (b"", "bytes"),
    "an unknown JSON": (b"[1, 2, 3]", "bytes"),
    "too large": (b" " * (MESSAGE_BYTES_MAX + 1), "bytes"),
    "nested too deep": (b'{"message":' + b"[" * 200_000, "bytes"),
    "a newer schema": (envelope(CLOSED, schema=SCHEMA + 1), "bytes"),
    "an unknown kind": (envelope(CLOSED | {"type": "Teleported"}), "bytes"),
    "a field that lacks": (envelope({"type": "Closed"}), "bytes"),
    "a name that fits nowhere": (envelope(CLOSED | {"request": "a b"}), "bytes"),
    "a place beyond every GPU": (envelope(BEYOND), "bytes"),
    "a word of another noun": (envelope({"type": "WaitOver", "request": "r"}), "place"),
    "an order of another node": (envelope(CLOSED | {"node": "elsewhere"}), "place"),
}


async def test_what_is_behind_an_unreadable_message_is_read(nats: NatsRig, capfd) -> None:
    """A stream's reader and an agent's durable pass all of them, log each once, and still hold them for the guard."""
    allocator = await nats.bus()
    await allocator.ensure_agent(NODE)
    before = {fault: metrics.value(POISON, "BOOK", fault) for fault in ("bytes", "place", "subject")}
    async with raw(nats.broker.url) as connection:
        for number, (data, _) in enumerate(POISONS.values()):
            await connection.request(place(f"p{number}").subject, data)
        await connection.request("sluice.ledger.gpu-1_example.a.b.c", b"unknown subject")
        await connection.request(place("status").subject, b"", headers={"Status": "409", "Description": "gone"})
    last = await allocator.last(Stream.BOOK, place("status").subject)
    assert last.message is None, "a header of a stored message is no word of the server"
    assert last.why, "who asks for the last word finds that there is one, and does not take it for none"
    poisoned = {place(f"p{number}").subject for number in range(len(POISONS))} | {last.subject}
    behind = await say(allocator, place("behind"), last.sequence)
    async with (
        watching(allocator.read(Stream.BOOK)) as stream,
        watching((await nats.bus("agent")).read_ledger(NODE)) as ledger,
    ):
        for view in (stream, ledger):
            await view.until(lambda view: view.caught_up == 1)
            assert view.known[place("behind").subject].message == word(place("behind"))
            assert {subject for subject, entry in view.known.items() if entry.message is None} == poisoned
            assert all(view.known[subject].why for subject in poisoned)
        allocator.read_again(Stream.BOOK)
        await stream.until(lambda view: view.caught_up == 2)
        await say(allocator, place("later"), behind)
        for view in (stream, ledger):
            await view.until(lambda view: place("later").subject in view.known)
    faults = [fault for _, fault in POISONS.values()] + ["subject", "bytes"]
    counted = {fault: metrics.value(POISON, "BOOK", fault) - before[fault] for fault in before}
    assert counted == {fault: 2 * faults.count(fault) for fault in before}, "by two connections, once each"


async def test_a_message_over_the_servers_limit_never_reaches_a_reader(nats: NatsRig) -> None:
    """100 MB are refused at the door: the sending client gets an error, and no reader sees a byte."""
    async with raw(nats.broker.url) as connection:
        with pytest.raises(BusError, match="takes no message of 100000000 bytes"):
            await connection.request(place("huge").subject, b" " * 100_000_000)


BEGIN = b"sluice.slice.gpu-1_example."
NO_TEXT = [BEGIN + end for end in (b"\xff\xfe", b"a\x0bb", b"\x0c", b"\x00", b"a\x85b", b"\xc3\xa9")]
"""Subjects that the broker lets this node's agent write to."""
NO_HEADERS = [
    b"NATS/1.0 \xff\xfe\r\n\r\n",
    b"NATS/1.0 100 \xff\r\n\r\n",
    b"NATS/1.0",
    b"xx",
    b"NATS/1.0\r\n\xff: \xff\r\n\r\n",
]
WHOSE = re.compile(r"nats stream rmm STATE ([0-9]+)")


async def store(nats: NatsRig, *commands: bytes) -> None:
    """Have the server take what no client of ours would send; it has, when it answers the ping behind it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", nats.broker.servers[0].plan.port)
    writer.write(b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n' + b"".join(commands) + b"PING\r\n")
    async with asyncio.timeout(60):
        while (line := await reader.readline()) != b"PONG\r\n":
            assert line.startswith(b"INFO"), line
    writer.close()
    await writer.wait_closed()


async def test_a_subject_that_is_no_text_stops_no_reader_and_can_be_removed(nats: NatsRig, capfd) -> None:
    """One agent could otherwise end every reading of all services for ever, and what is said in the log be no help."""
    bus = await nats.bus()
    before = metrics.value(POISON, "STATE", "subject")
    headed = b"NATS/1.0\r\na: b\r\n\r\n"
    sizes = b"%d %d" % (len(headed), len(headed) + 2)
    for subject in NO_TEXT:
        plain, with_headers = b"PUB %b 2\r\nhi\r\n" % subject, b"HPUB %bh %b\r\n%bhi\r\n" % (subject, sizes, headed)
        await store(nats, plain, with_headers)
    behind = subjects.slice_(NODE, AllocationId("behind"))
    await say(bus, behind, 0)
    async with watching(bus.read(Stream.STATE)) as view:
        await view.until(lambda view: view.caught_up == 1)
        assert set(view.known) == {behind.subject}
        assert metrics.value(POISON, "STATE", "subject") - before == 2 * len(NO_TEXT)
        printed = capfd.readouterr()
        sequences = WHOSE.findall(printed.out + printed.err)
        assert len(sequences) == 2 * len(NO_TEXT)
        async with raw(nats.broker.url) as connection:
            for sequence in sequences:
                await connection.ask("STREAM.MSG.DELETE.STATE", {"seq": int(sequence)})
            assert (await connection.ask("STREAM.INFO.STATE"))["state"]["messages"] == 1
    async with watching((await nats.bus()).read(Stream.STATE)) as view:
        await view.until(lambda view: view.caught_up == 1)
        assert set(view.known) == {behind.subject}
    assert metrics.value(POISON, "STATE", "subject") - before == 2 * len(NO_TEXT), "it is gone"


async def test_a_stored_message_does_not_say_that_no_service_answers(nats: NatsRig) -> None:
    """`sluice doctor` would wait in vain for a node's clock, and say that the broker is silent."""
    bus = await nats.bus()
    async with raw(nats.broker.url) as connection, asyncio.timeout(60):
        await connection.request(place("forged").subject, b"x", headers={"Status": "503"})
        last = await bus.last(Stream.BOOK, place("forged").subject)
    assert last.message is None


async def test_headers_that_are_none_stop_no_reader(nats: NatsRig) -> None:
    """As above. The message that they stand over is read."""
    bus = await nats.bus()
    places = [subjects.slice_(NODE, AllocationId(f"h{number}")) for number in range(len(NO_HEADERS))]
    for where, headers in zip(places, NO_HEADERS, strict=True):
        body = headers + envelope_bytes(order(where, 0), "")
        await store(nats, f"HPUB {where.subject} {len(headers)} {len(body)}\r\n".encode() + body + b"\r\n")
    async with watching(bus.read(Stream.STATE)) as view:
        await view.until(lambda view: view.caught_up == 1)
        known = {subject: entry.message for subject, entry in view.known.items()}
        assert known == {where.subject: word(where) for where in places}
