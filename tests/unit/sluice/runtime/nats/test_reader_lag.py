"""The progress of a reading, as metrics show it."""

import asyncio
import json
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
from factories.waiting import until

from sluice.contracts.bus.events import Entry, Observed, ReadingCaughtUp, Stream
from sluice.contracts.ids import Incarnation, OperationId
from sluice.runtime.nats.reader import PENDING_MAX_S, Opened, Pull, Reader, _Position
from sluice.runtime.prometheus import metrics
from sluice.runtime.prometheus.metrics import MetricRegistry
from sluice.runtime.prometheus.runtime_metrics import LAG, REDELIVERIES


@pytest.fixture
def counts(monkeypatch):
    own = MetricRegistry()
    monkeypatch.setattr(metrics, "count", own.count)
    monkeypatch.setattr(metrics, "collecting_from", own.collecting_from)
    return own


def take(subject, sequence, _message):
    return SimpleNamespace(entry=Entry(subject, sequence, OperationId("o"), None))


def opened(*, pending: int = 1, ends_at: int = 0) -> Opened:
    return Opened("c", pending, Incarnation("1"), ends_at)


def heartbeat(*, delivered: int, upto: int):
    headers = {"Status": "100", "Nats-Last-Consumer": str(delivered), "Nats-Last-Stream": str(upto)}
    return SimpleNamespace(subject="", reply="", headers=headers, data=b"")


def delivered(sequence: int, *, of_consumer: int, pending: int):
    reply = f"$JS.ACK.BOOK.c.1.{sequence}.{of_consumer}.1700000000000000000.{pending}"
    return SimpleNamespace(subject=f"sluice.x.{sequence}", reply=reply, headers=None, data=b"x")


async def test_metrics_show_how_far_a_reader_is_behind(counts, monkeypatch):
    """A service that cannot keep up would only be noticed by waiting pods."""
    position = _Position(Stream.BOOK, take, 0.0, opened())
    assert position.behind == 1
    position.absorb([delivered(5, of_consumer=1, pending=70), delivered(6, of_consumer=2, pending=69)], 1.0)
    assert position.behind == 69
    reader = Reader(SimpleNamespace(name="x"), SimpleNamespace(stream=Stream.BOOK), take, refresh_s=1.0)

    async def endless(_):
        yield []

    monkeypatch.setattr(Reader, "_endless", endless)
    async for _ in reader.batches():
        assert counts.samples()[LAG] == {("BOOK",): 0}


def test_what_is_delivered_again_is_taken_once_and_counted(counts):
    """A broker without acknowledgements would go unnoticed, or an order be carried out twice."""
    position = _Position(Stream.BOOK, take, 0.0, opened())
    first, _ = position.absorb([delivered(5, of_consumer=1, pending=0)], 1.0)
    again, acks = position.absorb([delivered(5, of_consumer=2, pending=0)], 2.0)
    assert [type(each) for each in first].count(Observed) == 1
    assert again == []
    assert len(acks) == 1
    assert counts.value(REDELIVERIES, "BOOK") == 1


def test_what_is_pending_and_does_not_come_ends_the_reading_but_nothing_does_once_all_is_known(counts):
    """A service would wait for expired messages, or reread everything whenever the bus is quiet."""
    position = _Position(Stream.BOOK, take, 0.0, opened())
    position.absorb([delivered(5, of_consumer=1, pending=1)], 10.0)
    position.absorb([], 10.0 + PENDING_MAX_S)
    assert position.broken == ""
    position.absorb([], 10.1 + PENDING_MAX_S)
    assert "expired" in position.broken

    quiet = _Position(Stream.BOOK, take, 0.0, opened())
    quiet.absorb([delivered(5, of_consumer=1, pending=0)], 1.0)
    quiet.absorb([], 1_000.0)
    assert quiet.broken == ""


def complete(position, *messages) -> bool:
    """Whether the reading is said to be complete when these have come."""
    batch, _ = position.absorb(list(messages), 1.0)
    return any(isinstance(each, ReadingCaughtUp) for each in batch)


def test_a_reading_is_complete_when_its_server_has_what_the_leader_had(counts):
    """A server that lags would hide the latest, and what it does not show counts as gone (P-012)."""
    position = _Position(Stream.BOOK, take, 0.0, opened(ends_at=9))
    assert not complete(position, delivered(5, of_consumer=1, pending=0))
    assert not complete(position, heartbeat(delivered=1, upto=8))
    assert not complete(position, delivered(8, of_consumer=2, pending=1))
    assert not complete(position, heartbeat(delivered=2, upto=9)), "one message is pending"
    assert complete(position, delivered(9, of_consumer=3, pending=0))
    assert not complete(position, delivered(11, of_consumer=4, pending=0)), "it is said once"


@pytest.mark.parametrize("pending", [0, 1])
def test_a_heartbeat_tells_that_nothing_more_is_for_this_reader(counts, pending):
    """The last messages of the stream are of other subjects, or have expired: it would wait for ever."""
    position = _Position(Stream.BOOK, take, 0.0, opened(pending=pending, ends_at=9))
    assert [*position.completed_at(0)] == []
    came = [delivered(5, of_consumer=1, pending=0)] * pending
    assert complete(position, *came, heartbeat(delivered=pending, upto=9))


def test_a_server_that_stays_behind_is_left_for_another(counts):
    """The service would not start for as long as one server of three is slow."""
    position = _Position(Stream.BOOK, take, 0.0, opened(ends_at=9))
    position.absorb([delivered(5, of_consumer=1, pending=0)], 1.0)
    position.absorb([heartbeat(delivered=1, upto=5)], 1.1 + PENDING_MAX_S)
    assert "behind" in position.broken


class Quiet:
    """A connection to a stream to which nothing is published."""

    name = "x"

    def __init__(self) -> None:
        self.pulls: list[dict] = []

    def new_inbox(self) -> str:
        return "inbox"

    async def subscribe(self, _subject, hear, *, messages_max):
        self.hear = hear
        return SimpleNamespace(unsubscribe=AsyncMock())

    async def publish(self, _subject, body, *, reply):
        self.pulls.append(json.loads(body))


async def test_the_end_of_an_idle_stream_is_noticed_soon_and_then_waited_at_quietly(counts):
    """A successor would stand idle for a second, as nothing but a heartbeat says that all was read."""
    connection = Quiet()
    consumer = SimpleNamespace(
        stream=Stream.BOOK,
        acknowledges=False,
        outlives_reading=False,
        messages_max=10,
        open=AsyncMock(return_value=opened(pending=0, ends_at=9)),
        next_pull=lambda _behind, wanted, _left_s: None if wanted > 0 else Pull(10, 60.0, 1.0),
    )
    reading = Reader(connection, consumer, take, refresh_s=100.0)._read(Incarnation("1"))
    first = asyncio.create_task(anext(reading))
    await until(lambda: connection.pulls)
    await connection.hear(heartbeat(delivered=0, upto=9))
    assert [type(each) for each in await first] == [ReadingCaughtUp]
    expired = {"Status": "408", "Nats-Pending-Messages": "10"}
    await connection.hear(SimpleNamespace(subject="", reply="", headers=expired, data=b""))
    waiting = asyncio.create_task(anext(reading))
    await until(lambda: len(connection.pulls) == 2)
    waiting.cancel()
    await asyncio.wait((waiting,))
    await reading.aclose()
    assert [each["idle_heartbeat"] / 1e9 for each in connection.pulls] == [0.25, 1.0]
    assert {each["expires"] / 1e9 for each in connection.pulls} == {60.0}, (
        "what is pending at its end counts as expired"
    )
