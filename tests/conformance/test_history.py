"""The history as people read it, on real servers."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
from factories.broker.bus_rigs import OTHER_NODE, NatsRig, ensured, order, place, raw, say, watching
from factories.waiting import until
from msgspec import structs
from nats.aio.msg import Msg

from sluice.contracts.bus.events import Stream, WriteRefused, WriteUnknown
from sluice.runtime.bus import BusError
from sluice.runtime.nats.client import JetStreamContext
from sluice.runtime.nats.connection import Connection
from sluice.runtime.nats.history import HistoryRecord, NatsHistory, open_history
from sluice_console.shell.live.history import follow_history

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_reading_that_the_server_ends_ends_in_a_sentence(nats: NatsRig) -> None:
    """The streams are created again under `sluice events -f`."""
    await say(await nats.bus(), place("a"), 0)
    heard: asyncio.Queue[list[HistoryRecord]] = asyncio.Queue()

    async def follow() -> None:
        async with open_history(nats.broker.url, name="console") as history:
            async for batch in history.read(follow=True):
                await heard.put(batch)

    following = asyncio.create_task(follow())
    async with raw(nats.broker.url) as connection, asyncio.timeout(60):
        assert [recorded.subject for recorded in await heard.get()] == [f"hist.{place('a').subject}"]
        await until_followed(connection)
        await connection.ask("STREAM.DELETE.HISTORY")
        with pytest.raises(BusError, match="the server ended the reading"):
            await following


async def test_who_follows_the_history_of_a_broker_that_is_emptied_hears_what_comes_after(nats: NatsRig) -> None:
    """`sluice events -f` in a terminal for a day survives a restart of the broker and repeats no event."""
    last = await say(await nats.bus(), place("a"), 0)
    lost: list[str] = []
    async with (
        raw(nats.broker.url) as connection,
        asyncio.timeout(60),
        aclosing(follow_history(nats.broker.url, since_s=60.0, lost=lambda error: lost.append(str(error)))) as batches,
    ):
        assert [each.subject for each in await anext(batches)] == [f"hist.{place('a').subject}"]
        assert await anext(batches) == [], "all that was recorded"
        following = asyncio.ensure_future(anext(batches))
        await until_followed(connection)
        await connection.ask("STREAM.DELETE.HISTORY")
        await until(lambda: lost)
        await ensured(await nats.bus("administrator"))
        await say(await nats.bus(), place("b"), last)
        assert [each.subject for each in await following] == [f"hist.{place('b').subject}"]
    assert lost[0].startswith("the server ended the reading"), lost


async def until_followed(connection: Connection) -> None:
    """Until a reader waits for what comes."""

    async def is_waiting() -> bool:
        names = (await connection.ask("CONSUMER.NAMES.HISTORY"))["consumers"]
        return any([(await connection.ask(f"CONSUMER.INFO.HISTORY.{each}"))["num_waiting"] for each in names])

    await until(is_waiting)


async def read_after(history: NatsHistory, happens: Callable[[], Awaitable[object]]) -> list[HistoryRecord]:
    """What is there to be read, where something `happens` just when the server has said how much there is."""
    bind = history._stream.pull_subscribe_bind

    async def bind_late(**asked: Any) -> JetStreamContext.PullSubscription:
        subscription = await bind(**asked)
        await happens()
        return subscription

    history._stream.pull_subscribe_bind = bind_late
    async with asyncio.timeout(60):
        return [recorded async for batch in history.read() for recorded in batch]


@pytest.mark.parametrize("status", ["404", "409", "503", "100"])
async def test_a_stored_word_is_no_word_of_the_servers(nats: NatsRig, status: str) -> None:
    """An agent that writes such a header to its own messages would break the history: no timeline, no events."""
    bus = await nats.bus()
    first = await say(bus, place("a"), 0)
    await bus.incarnation(Stream.HISTORY)  # by now it is stored
    async with raw(nats.broker.url) as connection:
        forged = {"Status": status, "Description": "gone"}
        await connection.publish(f"hist.{place('forged').subject}", b"", headers=forged)
        await connection.ask("STREAM.INFO.HISTORY")
    await say(bus, place("b"), first)
    await bus.incarnation(Stream.HISTORY)
    async with open_history(nats.broker.url, name="console") as history, asyncio.timeout(60):
        read = [recorded.subject async for batch in history.read() for recorded in batch]
    assert read == [f"hist.{place(name).subject}" for name in ("a", "forged", "b")]


async def test_a_reading_ends_although_what_was_to_come_has_run_out(nats: NatsRig) -> None:
    """The last messages of a pod grow too old for HISTORY, or an operator purges it, under `sluice explain`."""
    await say(await nats.bus(), place("a"), 0)
    async with open_history(nats.broker.url, name="console") as history, raw(nats.broker.url) as connection:
        assert await read_after(history, lambda: connection.ask("STREAM.PURGE.HISTORY")) == []


async def test_a_server_that_falls_silent_just_when_no_call_waits_ends_no_reading(nats: NatsRig) -> None:
    """On a busy machine `sluice explain` reported that HISTORY was recreated, and it was not."""
    await say(await nats.bus(), place("a"), 0)
    async with open_history(nats.broker.url, name="console") as history, asyncio.timeout(60):
        bind = history._stream.pull_subscribe_bind

        async def bind_empty(**asked: Any) -> JetStreamContext.PullSubscription:
            subscription = await bind(**asked)
            fetch = subscription.fetch

            async def nothing(*_asked: Any, **_more: Any) -> list[Any]:
                subscription.fetch = fetch
                return []  # what the client gives when the server's 408 comes in the moment in which its own time ends

            subscription.fetch = nothing
            return subscription

        history._stream.pull_subscribe_bind = bind_empty
        assert len([recorded async for batch in history.read() for recorded in batch]) == 1


async def test_a_reading_of_a_server_that_freezes_ends_in_a_sentence(nats: NatsRig) -> None:
    """`sluice explain` beside a broker that hangs gets an answer."""
    await say(await nats.bus(), place("a"), 0)
    (server,) = nats.broker.servers
    async with open_history(nats.broker.url, name="console", timeout_s=1.0) as history:
        try:
            with pytest.raises(BusError, match="the NATS server went away"):
                await read_after(history, lambda: asyncio.to_thread(server.freeze))
        finally:
            server.thaw()


async def test_who_follows_a_server_that_freezes_is_told(nats: NatsRig) -> None:
    """A reader of `sluice events -f` can tell silence from a frozen server."""
    await say(await nats.bus(), place("a"), 0)
    (server,) = nats.broker.servers
    async with open_history(nats.broker.url, name="console") as history, asyncio.timeout(60):
        batches = history.read(follow=True)
        assert len(await anext(batches)) == 1
        server.freeze()
        try:
            with pytest.raises(BusError, match="the NATS server went away"):
                [batch async for batch in batches]
        finally:
            server.thaw()


async def test_a_program_goes_on_after_the_last_message_that_it_has_taken_in(nats: NatsRig) -> None:
    """A recorder that starts again counts nothing twice; and it learns the server's time and that nothing comes."""
    bus = await nats.bus()
    last = 0
    for name in "abc":
        last = await say(bus, place(name), last)
    async with open_history(nats.broker.url, name="test") as history, asyncio.timeout(60):
        created = await history.created()
        read = [recorded async for batch in history.read() for recorded in batch]
        rest = [recorded async for batch in history.read(after=read[0].sequence) for recorded in batch]
        assert rest == read[1:]
        assert time.time() - 20 < read[0].stored_at <= read[2].stored_at < time.time() + 1
        assert await anext(history.read(after=read[2].sequence, follow=True)) == []
        assert await history.created() == created


async def test_a_copy_that_cannot_be_sent_is_sent_with_the_next(nats: NatsRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that was lost for a moment, and the timeline of a pod has no beginning."""
    bus = await nats.bus()

    async def away(*_: Any, **__: Any) -> None:
        raise TimeoutError("not connected")

    with monkeypatch.context() as patch:
        patch.setattr(bus._connection, "publish", away)
        await say(bus, place("a"), 0)
    await say(bus, place("b", OTHER_NODE), 0)
    async with open_history(nats.broker.url, name="console") as history, asyncio.timeout(60):
        found: list[str] = []
        while len(found) < 2:
            found = [recorded.subject async for batch in history.read() for recorded in batch]
    assert found == [f"hist.{each.subject}" for each in (place("a"), place("b", OTHER_NODE))]


@pytest.mark.parametrize("observed", ["before the answer is given up", "after the answer was given up"])
@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_write_whose_answer_is_lost_is_in_the_history_once(nats, monkeypatch, observed, attempts) -> None:
    """On a starved machine a client reads its own message, then gives up its answer: the timeline would have a gap."""
    bus = await nats.bus()
    written = order(place("a"), 0)
    early = observed.startswith("before")
    request = bus._connection.request

    async def lose_answer(subject: str, data: bytes = b"", **more: Any) -> Msg:
        answer = await request(subject, data, **more)
        if subject != written.subject or written.attempt > 1:
            return answer
        if early:
            await view.until(lambda view: bool(view.observed))
        raise TimeoutError(f"no answer to {subject}")

    monkeypatch.setattr(bus._connection, "request", lose_answer)
    if not early:
        assert isinstance(await bus.write(written, {}), WriteUnknown)
    async with watching(bus.read(Stream.BOOK)) as view:
        await view.until(lambda view: view.caught_up == 1)
        if early:
            assert isinstance(await bus.write(written, {}), WriteUnknown)
        if attempts == 2:
            written = structs.replace(written, attempt=2)
            assert isinstance(await bus.write(written, {}), WriteRefused)
        await view.until(lambda view: bool(view.observed))
        await say(bus, place("b", OTHER_NODE), 0)
        async with open_history(nats.broker.url, name="console") as history:
            found: list[str] = []
            while len(set(found)) < 2:
                found = [recorded.subject async for batch in history.read() for recorded in batch]
    assert sorted(found) == sorted(f"hist.{each.subject}" for each in (place("a"), place("b", OTHER_NODE)))
