"""Messages that nobody can read, on real servers: each is said and counted once, and what is behind it is read."""

import json

import pytest
from factories.buses import NODE, NatsRig, place, raw, say, watching, word
from nats.errors import Error

from sluice.contracts import subjects
from sluice.contracts.codec import MESSAGE_BYTES_MAX, SCHEMA
from sluice.contracts.exchange import Stream
from sluice.contracts.ids import RequestId
from sluice.runtime import metrics
from sluice.runtime.runtime_metrics import POISON

pytestmark = pytest.mark.asyncio(loop_scope="session")


def envelope(message: dict, **changes) -> bytes:
    """What some writer might have stored."""
    whole = {"id": "1", "operation": "o-1", "request": "", "schema": SCHEMA, "time": "", "message": message}
    return json.dumps(whole | changes).encode()


CLOSED = {"type": "Closed", "revision": 1, "allocation": "p", "request": "r", "node": NODE, "cause": ""}
DEVICE = {"container": "c", "gpu": "g", "profile": None, "start": 2**40, "size": 1}
BOOKING = {
    "allocation": "p",
    "request": "r",
    "request_revision": 1,
    "source": "s",
    "owner": "o",
    "namespace": "n",
    "name": "n",
    "node": NODE,
    "devices": [DEVICE],
}
POISONS = {
    "no JSON": (b"\xff\x00 not ours", "bytes"),
    "nothing": (b"", "bytes"),
    "a JSON of nobody": (b"[1, 2, 3]", "bytes"),
    "too large": (b" " * (MESSAGE_BYTES_MAX + 1), "bytes"),
    "nested too deep": (b'{"message":' + b"[" * 200_000, "bytes"),
    "a newer schema": (envelope(CLOSED, schema=SCHEMA + 1), "bytes"),
    "an unknown kind": (envelope(CLOSED | {"type": "Teleported"}), "bytes"),
    "a field that lacks": (envelope({"type": "Closed"}), "bytes"),
    "a name that fits nowhere": (envelope(CLOSED | {"request": "a b"}), "bytes"),
    "a place beyond every GPU": (
        envelope({"type": "Grant", "revision": 1, "incarnation": "1", "booking": BOOKING}),
        "bytes",
    ),
    "a word of another noun": (envelope({"type": "WaitOver", "request": "r"}), "place"),
    "an order of another node": (envelope(CLOSED | {"node": "elsewhere"}), "place"),
}


async def test_what_is_behind_a_message_that_nobody_can_read_is_read(nats: NatsRig, capfd) -> None:
    """A stream's reader and an agent's durable pass all of them, tell each once, and still hold them for the guard."""
    allocator = await nats.bus()
    await allocator.ensure_agent(NODE)
    before = {fault: metrics.value(POISON, "BOOK", fault) for fault in ("bytes", "place", "subject")}
    async with raw(nats.broker.url) as connection:
        for number, (data, _) in enumerate(POISONS.values()):
            await connection.request(place(f"p{number}").subject, data)
        await connection.request("sluice.ledger.gpu-1_example.a.b.c", b"nobody's subject")
        await connection.request(place("status").subject, b"", headers={"Status": "409", "Description": "gone"})
    last = await allocator.last(Stream.BOOK, place("status").subject)
    assert last.message is None, "a header of a stored message is no word of the server"
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


async def test_one_value_that_cannot_be_read_is_told_to_who_asks_for_it(nats: NatsRig) -> None:
    """An agent that looks for the last word about its node finds that there is one, and does not take it for none."""
    bus = await nats.bus()
    subject = subjects.binding(RequestId("r")).subject
    async with raw(nats.broker.url) as connection:
        await connection.request(subject, b"{}")
    found = await bus.last(Stream.BOOK, subject)
    assert (found.message, bool(found.why)) == (None, True)


async def test_a_message_over_the_servers_limit_never_reaches_anybody(nats: NatsRig) -> None:
    """100 MB are refused at the door: the client of whoever tries is told, and no reader sees a byte."""
    async with raw(nats.broker.url) as connection:
        with pytest.raises(Error, match="maximum payload"):
            await connection.request(place("huge").subject, b" " * 100_000_000)
