"""How the page stands with the broker, and how a storm of words becomes few changes."""

import asyncio
import json
from dataclasses import dataclass

import pytest

from sluice.contracts.bus.events import Entry, Observed, ReadingCaughtUp, ReadingStarted, Stream
from sluice.contracts.ids import Incarnation, OperationId
from sluice_console.core.web.board import Board
from sluice_console.shell.live.live_fleet import LiveFleet
from sluice_console.shell.web import feed as feed_module
from sluice_console.shell.web.feed import Feed
from sluice_console.shell.web.hub import Hub


@dataclass
class Connection:
    connected: bool = True
    unread_s: float = 0.0


def seen(stream, subject, message, sequence=1):
    return Observed(stream, Entry(subject, sequence, OperationId("o"), message))


BOTH = (Stream.BOOK, Stream.STATE)


async def read(live):
    await live.apply([ReadingStarted(each, Incarnation("1")) for each in BOTH])
    await live.apply([ReadingCaughtUp(each) for each in BOTH])


@pytest.fixture
def fed():
    board = Board()
    feed = Feed(board, Hub(board))
    return board, feed, LiveFleet(feed._heard)


def standing(board):
    return json.loads(bytes(dict(board.picture()[1])["bus"]))


async def test_lost_is_said_at_once_and_since_when_until_it_is_live_again(fed):
    board, feed, live = fed
    bus = Connection()
    await feed._look(bus, live)
    assert standing(board)["state"] == "reading"
    await read(live)
    await feed._look(bus, live)
    assert standing(board)["state"] == "live"
    bus.connected = False
    await feed._look(bus, live)
    lost = standing(board)
    assert (lost["state"], lost["message"]) == ("lost", "the broker does not answer")
    await feed._look(bus, live)
    assert standing(board) == lost, "since when does not move"
    bus.connected = True
    await feed._look(bus, live)
    assert standing(board)["state"] == "live"


async def test_a_broker_that_answers_and_has_nothing_to_read_is_lost_too(fed, monkeypatch):
    """Streams that are away look like a connection that works."""
    board, feed, live = fed
    await read(live)
    await live.apply([ReadingStarted(Stream.BOOK, Incarnation("1"))])
    await feed._look(Connection(), live)
    assert standing(board)["state"] == "live", "a second reading is nothing to tell people of"
    monkeypatch.setattr(feed_module, "UNREAD_MAX_S", -1.0)
    await feed._look(Connection(), live)
    assert standing(board)["message"].startswith("the broker answers, but its streams cannot be read")


async def test_a_broker_that_cannot_store_is_not_live_although_it_answers(fed, monkeypatch):
    board, feed, live = fed
    said = iter(["the disk is full: 1 MiB free", "the disk is full: 0 MiB free", ""])

    async def trouble(_url):
        return next(said)

    monkeypatch.setattr(feed_module, "trouble_at", trouble)
    monkeypatch.setattr(feed_module, "ASK_BROKER_S", 0.0)
    await read(live)
    await feed._look(Connection(), live)
    full = standing(board)
    assert (full["state"], full["message"]) == ("full", "the disk is full: 1 MiB free")
    monkeypatch.setattr(feed_module, "datetime", None)  # its start is not published again with each MiB
    await feed._look(Connection(), live)
    assert standing(board) == full | {"message": "the disk is full: 0 MiB free"}
    monkeypatch.undo()
    feed._trouble = ""
    await feed._look(Connection(), live)
    assert standing(board)["state"] == "live"


async def test_a_broker_whose_streams_are_gone_is_lost_too(fed):
    """Wiped while no allocator runs: the fleet that was must not look as if it were there."""
    board, feed, live = fed
    await read(live)
    await feed._look(Connection(unread_s=feed_module.UNREAD_MAX_S), live)
    assert standing(board)["state"] == "live"
    await feed._look(Connection(unread_s=feed_module.UNREAD_MAX_S + 1), live)
    assert standing(board)["state"] == "lost"
    await feed._look(Connection(), live)
    assert standing(board)["state"] == "live"


async def test_half_a_reading_is_never_shown_and_what_it_does_not_have_is_gone(fed, make):
    """A wipe must take away what was, and a second reading must not empty the page first."""
    board, feed, live = fed
    subject = f"sluice.request.{make.request}"
    await live.apply([ReadingStarted(each, Incarnation("1")) for each in BOTH])
    await live.apply([seen(Stream.STATE, subject, make.asked())])
    await feed._look(Connection(), live)
    assert f"request/{make.request}" not in dict(board.picture()[1])
    await live.apply([ReadingCaughtUp(each) for each in BOTH])
    await feed._look(Connection(), live)
    assert f"request/{make.request}" in dict(board.picture()[1])
    await live.apply([ReadingStarted(Stream.STATE, Incarnation("2"))])
    await feed._look(Connection(), live)
    assert f"request/{make.request}" in dict(board.picture()[1])
    await live.apply([ReadingCaughtUp(Stream.STATE)])
    await feed._look(Connection(), live)
    assert f"request/{make.request}" not in dict(board.picture()[1])


async def test_a_storm_about_one_request_is_one_change(fed, make, monkeypatch):
    """A page cannot be drawn a thousand times a second, and need not be."""
    board, feed, live = fed
    monkeypatch.setattr(feed_module, "COLLECT_S", 0.0)
    await read(live)
    await feed._look(Connection(), live)
    before = board.revision
    for number in range(1, 1000):
        await live.apply([seen(Stream.STATE, f"sluice.request.{make.request}", make.asked(revision=number), number)])
    async with asyncio.timeout(5):
        await feed._wait()
    await feed._look(Connection(), live)
    assert board.revision == before + 1
