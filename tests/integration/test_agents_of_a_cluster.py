"""A cluster of servers: agents, each in its account, get orders through any; a reading lacks nothing acknowledged."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from factories.broker.bus_rigs import NODE, View, agent_ensured, ensured, place, say, watching
from factories.broker.guarded_broker import Guarded, guarded_broker
from structlog.testing import capture_logs

from sluice.contracts.bus.events import Stream
from sluice.contracts.bus.streams import Role
from sluice.runtime.nats.jetstream_bus import NatsBus

pytestmark = pytest.mark.slow


class Cluster:
    """Three servers, an allocator, and a node's agent that may be connected to any of them."""

    def __init__(self, rig: Guarded, allocator: NatsBus) -> None:
        self.urls = [server.url for server in rig.broker.servers]
        self._allocator = allocator
        self._service, self._agent = rig.credentials(Role.ALLOCATOR), rig.credentials(Role.NODE_AGENT, NODE)
        self._last = 0

    async def order(self, name: str) -> None:
        self._last = await say(self._allocator, place(name), self._last)

    @asynccontextmanager
    async def agent(self, url: str, refresh_s: float = 300.0) -> AsyncIterator[tuple[NatsBus, View]]:
        bus = await NatsBus.connect(url, name="agent", credentials=self._agent, refresh_s=refresh_s)
        try:
            async with watching(bus.read_ledger(NODE)) as view:
                yield bus, view
        finally:
            await bus.close()

    @asynccontextmanager
    async def reading(self, url: str, *filters: str) -> AsyncIterator[View]:
        """BOOK, read by an allocator that is connected to this server."""
        bus = await NatsBus.connect(url, name="allocator", credentials=self._service)
        try:
            async with watching(bus.read(Stream.BOOK, filters)) as view:
                yield view
        finally:
            await bus.close()

    async def hears(self, view: View, name: str) -> None:
        """Wait until the agent gets an order that is published now."""
        await self.order(name)
        await view.until(lambda view: place(name).subject in view.known)


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[Cluster]:
    """With streams, the agent's durable, and some orders in its ledger."""
    async with guarded_broker(directory, NODE, size=3) as rig:
        bus = await rig.bus(Role.ALLOCATOR)
        await ensured(bus)
        await agent_ensured(bus)
        found = Cluster(rig, bus)
        for number in range(5):
            await found.order(f"before-{number}")
        yield found


async def test_an_agent_that_reads_again_goes_on_receiving_orders(tmp_path: Path) -> None:
    """It rereads every five minutes: nodes behind two servers of three would get nothing and release nothing."""
    async with cluster(tmp_path) as three:
        for number, url in enumerate(three.urls):
            async with three.agent(url) as (bus, view):
                await three.hears(view, f"first-{number}")
                bus.read_again(Stream.BOOK)
                await view.until(lambda view: len(view.starts) > 1)
                await three.hears(view, f"again-{number}")


async def test_an_agent_that_is_started_again_hears_orders(tmp_path: Path) -> None:
    """Pulls of the agent's previous run take no messages away from this one."""
    async with cluster(tmp_path) as three:
        for number, url in enumerate(three.urls):
            for life in range(2):
                async with three.agent(url) as (_, view):
                    await three.hears(view, f"life-{number}-{life}")


async def test_an_agent_misses_no_order_while_it_restarts_in_time(tmp_path: Path) -> None:
    """By then none of its pulls is open, so nothing is lost and no order waits."""
    async with cluster(tmp_path) as three:
        for number, url in enumerate(three.urls):
            async with three.agent(url, refresh_s=1.0) as (_, view):
                await three.hears(view, f"first-{number}")
                starts = len(view.starts)
                await view.until(lambda view, starts=starts: len(view.starts) >= starts + 2)
                caught_up, starts = view.caught_up, len(view.starts)
                await view.until(lambda view, now=caught_up: view.caught_up >= now + 2)
                assert len(view.starts) - starts <= view.caught_up - caught_up + 1, "each reading is read to its end"


async def test_a_reading_at_any_server_has_all_that_was_acknowledged(tmp_path: Path) -> None:
    """A new cordon would not be known, a released request be served. Also where the last message is for others."""
    async with cluster(tmp_path) as three:
        for number in range(12):
            name = f"order-{number}"
            await three.order(name)
            async with three.reading(three.urls[number % 3], "sluice.ledger.>") as view:
                await view.until(lambda view: view.caught_up > 0)
                assert place(name).subject in view.known
        for url in three.urls:
            with capture_logs() as lines:
                async with three.reading(url, "sluice.cordon.>") as view:
                    await view.until(lambda view: view.caught_up > 0)
            # A pull that comes before its server knows of the consumer has no responder (503): it is read again.
            too_early = [each for each in lines if str(each.get("why", "")).startswith("the server says 503")]
            assert (view.known, len(view.starts)) == ({}, 1 + len(too_early)), "a heartbeat says that it is complete"
