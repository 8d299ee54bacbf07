"""The history as people read it, on real servers."""

import asyncio

import pytest
from factories.buses import NatsRig, place, raw, say

from sluice.runtime.bus import BusError
from sluice.runtime.nats_history import Recorded, open_history

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_reading_that_the_server_ends_ends_in_a_sentence(nats: NatsRig) -> None:
    """Somebody makes the streams anew under `sluice events -f`."""
    bus = await nats.bus()
    await say(bus, place("a"), 0)
    heard: asyncio.Queue[list[Recorded]] = asyncio.Queue()

    async def follow() -> None:
        async with open_history(nats.broker.url, name="console") as history:
            async for batch in history.read(follow=True):
                await heard.put(batch)

    following = asyncio.create_task(follow())
    async with raw(nats.broker.url) as connection, asyncio.timeout(20):
        assert [recorded.subject for recorded in await heard.get()] == [f"hist.{place('a').subject}"]
        (name,) = (await connection.ask("CONSUMER.NAMES.HISTORY"))["consumers"]
        while not (await connection.ask(f"CONSUMER.INFO.HISTORY.{name}"))["num_waiting"]:  # noqa: ASYNC110 - a server
            await asyncio.sleep(0.01)
        await connection.ask("STREAM.DELETE.HISTORY")
        with pytest.raises(BusError, match="the server ended the reading"):
            await following
