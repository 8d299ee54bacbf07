"""How the page stands with the broker, and how a storm of messages becomes few changes."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from sluice.contracts.bus.events import Entry, Observed, ReadingCaughtUp, ReadingStarted, Stream
from sluice.contracts.ids import Incarnation, OperationId
from sluice_console.core.web.board import Board
from sluice_console.shell.live.live_fleet import LiveFleet
from sluice_console.shell.web import feed as feed_module
from sluice_console.shell.web.feed import Feed
from sluice_console.shell.web.hub import Hub

BOTH = (Stream.BOOK, Stream.STATE)


class Fed:
    """A page, what feeds it, and the bus that it reads."""

    def __init__(self) -> None:
        self.board = Board()
        self.feed = Feed(self.board, Hub(self.board))
        self.live = LiveFleet(self.feed._heard)

    async def look(self, *, connected: bool = True, unread_s: float = 0.0):
        """How it stands with a broker of which this is known."""
        await self.feed._look(SimpleNamespace(connected=connected, unread_s=unread_s), self.live)
        return json.loads(bytes(dict(self.board.picture()[1])["bus"]))

    async def begin(self, *streams: Stream, life: str = "1") -> None:
        await self.live.apply([ReadingStarted(each, Incarnation(life)) for each in streams])

    async def end(self, *streams: Stream) -> None:
        await self.live.apply([ReadingCaughtUp(each) for each in streams])

    async def read(self) -> None:
        await self.begin(*BOTH)
        await self.end(*BOTH)

    async def hear(self, subject, message, sequence=1) -> None:
        await self.live.apply([Observed(Stream.STATE, Entry(subject, sequence, OperationId("o"), message))])


@pytest.fixture
def page() -> Fed:
    return Fed()


async def test_lost_is_said_at_once_and_since_when_until_it_is_live_again(page):
    assert (await page.look())["state"] == "reading"
    await page.read()
    assert (await page.look())["state"] == "live"
    lost = await page.look(connected=False)
    assert (lost["state"], lost["message"]) == ("lost", "the broker does not answer")
    assert await page.look(connected=False) == lost, "since when does not move"
    assert (await page.look())["state"] == "live"


async def test_a_broker_that_answers_and_has_nothing_to_read_is_lost_too(page, monkeypatch):
    """Streams that are away look like a connection that works."""
    await page.read()
    await page.begin(Stream.BOOK)
    assert (await page.look())["state"] == "live", "a second reading is nothing to tell people of"
    monkeypatch.setattr(feed_module, "UNREAD_MAX_S", -1.0)
    assert (await page.look())["message"].startswith("the broker answers, but its streams cannot be read")


async def test_a_broker_that_cannot_store_is_not_live_although_it_answers(page, monkeypatch):
    said = iter(["the disk is full: 1 MiB free", "the disk is full: 0 MiB free", ""])

    async def trouble(_url):
        return next(said)

    monkeypatch.setattr(feed_module, "trouble_at", trouble)
    monkeypatch.setattr(feed_module, "ASK_BROKER_S", 0.0)
    await page.read()
    full = await page.look()
    assert (full["state"], full["message"]) == ("full", "the disk is full: 1 MiB free")
    monkeypatch.setattr(feed_module, "datetime", None)  # its start is not published again with each MiB
    assert await page.look() == full | {"message": "the disk is full: 0 MiB free"}
    monkeypatch.undo()
    page.feed._trouble = ""
    assert (await page.look())["state"] == "live"


async def test_a_broker_whose_streams_are_gone_is_lost_too(page):
    """Wiped while no allocator runs: the fleet of before would look as if it were there."""
    await page.read()
    most_s = feed_module.UNREAD_MAX_S
    for unread_s, state in ((most_s, "live"), (most_s + 1, "lost"), (0.0, "live")):
        assert (await page.look(unread_s=unread_s))["state"] == state


async def test_half_a_reading_is_never_shown_and_what_it_does_not_have_is_gone(page, make):
    """A wipe takes away what was, and a second reading keeps the page filled meanwhile."""

    async def is_shown() -> bool:
        await page.look()
        return f"request/{make.request}" in dict(page.board.picture()[1])

    await page.begin(*BOTH)
    await page.hear(f"sluice.request.{make.request}", make.asked())
    assert not await is_shown()
    await page.end(*BOTH)
    assert await is_shown()
    await page.begin(Stream.STATE, life="2")
    assert await is_shown()
    await page.end(Stream.STATE)
    assert not await is_shown()


async def test_a_storm_about_one_request_is_one_change(page, make, monkeypatch):
    """A page cannot be drawn a thousand times a second, and need not be."""
    monkeypatch.setattr(feed_module, "COLLECT_S", 0.0)
    await page.read()
    await page.look()
    before = page.board.revision
    for number in range(1, 1000):
        await page.hear(f"sluice.request.{make.request}", make.asked(revision=number), number)
    async with asyncio.timeout(5):
        await page.feed._wait()
    await page.look()
    assert page.board.revision == before + 1
