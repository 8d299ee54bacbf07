"""What survives when servers are killed, frozen or restarted: real nats-servers only."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Self

import psutil
import pytest
from factories.broker.bus_rigs import NODE, NatsRig, View, ensured, order, place, raw, say, settled, watching, word
from factories.broker.nats_server import Broker, Launch, NatsServer
from factories.waiting import until

from sluice.contracts.bus.events import Stream, WriteAccepted, WriteRefused, WriteUnknown
from sluice.contracts.ids import NodeName
from sluice.runtime.bus import Bus
from sluice.runtime.nats.connection import Connection
from sluice.runtime.nats.jetstream_bus import NatsBus

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Load:
    """Writers that remember what was acknowledged: one node each, always the same guard until there is an answer."""

    def __init__(self, buses: list[NatsBus]) -> None:
        self._buses = buses
        self.acknowledged: dict[str, tuple[int, str]] = {}
        self.count = 0
        self._stop = False

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._write(n, bus)) for n, bus in enumerate(self._buses)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop = True
        await asyncio.gather(*self._tasks)

    async def _write(self, lane: int, bus: NatsBus) -> None:
        node, last, number = NodeName(f"gpu-{lane}"), 0, 0
        while not self._stop:
            number += 1
            address = place(f"a{number % 5}", node)
            answer = await settled(bus, order(address, last, word(address, str(number))), within_s=40)
            if isinstance(answer, WriteAccepted):
                last = answer.sequence
            else:  # refused: an attempt of it that got no answer has landed
                assert isinstance(answer, WriteRefused)
                found = await _last(bus, address.subject)
                assert found == (answer.last_sequence, str(number))
                last = found[0]
            self.acknowledged[address.subject] = (last, str(number))
            self.count += 1

    async def more(self, writes: int) -> None:
        wanted = self.count + writes

        await until(lambda: self.count >= wanted, "writes are acknowledged")


async def _last(bus: Bus, subject: str) -> tuple[int, str]:
    found = await until(lambda: bus.last(Stream.BOOK, subject), yet=(TimeoutError,))
    return found.sequence, getattr(found.message, "cause", "")


def _agrees(load: Load, view: View) -> bool:
    return {s: e.sequence for s, e in view.known.items()} == {s: said[0] for s, said in load.acknowledged.items()}


async def test_no_acknowledged_grant_is_lost_when_the_broker_is_killed(nats: NatsRig) -> None:
    """Killed twice under load; every acknowledged value is the last one afterwards, and a reader knows them all."""
    load = Load([await nats.bus() for _ in range(6)])
    reader = await nats.bus()
    async with watching(reader.read(Stream.BOOK)) as view:
        async with load:
            for _ in range(2):
                await load.more(300)
                await nats.broker.servers[0].kill()
                await nats.broker.servers[0].start()
                await load.more(100)
        await view.until(lambda view: _agrees(load, view))
        assert len(view.starts) >= 3


async def test_no_acknowledged_grant_is_lost_when_one_server_of_three_is_killed(tmp_path: Path, launch: Launch) -> None:
    """The stream's leader may be the one; the others go on."""
    async with Broker(tmp_path, size=3, launch=launch) as broker, AsyncExitStack() as stack:
        rig = NatsRig(broker, stack)
        await ensured(await rig.bus("administrator"))
        load = Load([await rig.bus() for _ in range(4)])
        async with watching((await rig.bus()).read(Stream.BOOK)) as view:
            async with load:
                await load.more(100)
                leader = await _leader(rig)
                await leader.kill()
                await load.more(100)
                await leader.start()
            await view.until(lambda view: _agrees(load, view))


async def _leader(rig: NatsRig) -> NatsServer:
    async with raw(rig.broker.url) as connection:
        name = (await connection.ask("STREAM.INFO.BOOK"))["cluster"]["leader"]
    return next(server for server in rig.broker.servers if server.plan.name == name)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_frozen_broker_is_noticed(nats: NatsRig) -> None:
    """A write is reported unknown within seconds, not minutes, and readers go on when it runs again."""
    bus = await nats.bus()
    last = await say(bus, place("a"), 0)
    async with watching(bus.read(Stream.BOOK)) as view:
        await view.until(lambda view: view.caught_up == 1)
        await _frozen(nats.broker.servers[0])
        try:
            began = time.monotonic()
            write = order(place("b"), last)
            assert await bus.write(write, {}) == WriteUnknown(write.operation)
            took_s = time.monotonic() - began
        finally:
            nats.broker.servers[0].thaw()
        assert took_s < 9
        await settled(bus, write)  # it may have landed: refused or accepted, but settled
        await view.until(lambda view: place("b").subject in view.known)
    gc.collect()  # nats-py abandons the sockets of attempts to a frozen server; their warnings shall be ours


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_frozen_broker_that_takes_no_more_is_left_for_another_one(nats: NatsRig, tmp_path: Path) -> None:
    """What was sent and not taken would be waited for as long as the server is frozen, and all that time work stops."""
    async with (
        Broker(tmp_path / "other") as other,
        raw(f"{nats.broker.url},{other.url}") as connection,
        _frozen_under(connection, nats.broker.servers[0], other.servers[0]) as has_left,
    ):
        await _stuffed(connection)
        await until(has_left, within_s=15)
    gc.collect()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("within_s", [6, 20], ids=["while it awaits an answer", "while it only reads"])
async def test_an_agent_leaves_a_frozen_broker_for_another_one(nats: NatsRig, tmp_path: Path, within_s: int) -> None:
    """It pings seldom, so that a fleet is quiet: its node would get no orders as long as the server is frozen."""
    async with Broker(tmp_path / "other") as other:
        url = f"{nats.broker.url},{other.url}"
        agent = await NatsBus.connect(url, name="agent", quiet=True)
        try:
            await ensured(agent)
            await agent.ensure_agent(NODE)
            async with watching(agent.read_ledger(NODE)) as view:
                await view.until(lambda view: view.caught_up == 1)
                connection = agent._connection
                async with _frozen_under(connection, nats.broker.servers[0], other.servers[0]) as has_left:
                    if within_s == 6:
                        with pytest.raises(TimeoutError):
                            await agent.last(Stream.STATE, place("a").subject)
                    async with asyncio.timeout(within_s):
                        await until(has_left)
        finally:
            await agent.close()
    gc.collect()


@asynccontextmanager
async def _frozen_under(connection: Connection, *servers: NatsServer) -> AsyncIterator[Callable[[], Awaitable[bool]]]:
    """Freeze the server of a connection; yields whether it has gone to another one."""
    at = connection._client.connected_url
    frozen = next(server for server in servers if at is not None and server.plan.port == at.port)
    await _frozen(frozen)

    async def has_left() -> bool:
        now = connection._client.connected_url
        return connection.up and now is not None and now.port != frozen.plan.port

    try:
        yield has_left
    finally:
        frozen.thaw()


async def _stuffed(connection: Connection) -> None:
    for _ in range(32):
        await connection.publish("unheard.subject", bytes(1_000_000))
    await asyncio.sleep(0.1)  # the client sends in a task of its own


async def _frozen(server: NatsServer) -> None:
    server.freeze()
    process = psutil.Process(server.process.pid)

    await until(lambda: process.status() == psutil.STATUS_STOPPED)


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_a_write_that_a_broker_did_not_take_is_unknown_and_does_not_land_later(nats: NatsRig, how: str) -> None:
    """The client buffers nothing for the next run of a server: neither while disconnected, nor behind a full pipe."""
    bus = await nats.bus()
    if how == "frozen":
        await _frozen(nats.broker.servers[0])
        await _stuffed(bus._connection)
    else:
        await nats.broker.servers[0].kill()
    write = order(place("a"), 0)
    assert await bus.write(write, {}) == WriteUnknown(write.operation)
    if how == "frozen":
        await nats.broker.servers[0].kill()
    await nats.broker.servers[0].start()
    await nats.broker.ready()
    async with watching(bus.read(Stream.BOOK)) as view:
        await view.until(lambda view: view.caught_up == 1)
        assert view.known == {}


async def test_an_agent_reads_its_ledger_again_after_the_broker_was_killed(nats: NatsRig) -> None:
    """Also what it had acknowledged: the reading starts over."""
    bus = await nats.bus("administrator")
    await bus.ensure_agent(NODE)
    last = await say(bus, place("a"), 0)
    async with watching((await nats.bus("node-agent")).read_ledger(NODE)) as view:
        await view.until(lambda view: view.caught_up == 1)
        await nats.broker.servers[0].kill()
        await nats.broker.servers[0].start()
        await view.until(lambda view: view.caught_up == 2)
        assert {s: entry.sequence for s, entry in view.known.items()} == {place("a").subject: last}


async def test_a_reader_restarts_now_and_then_although_nothing_is_wrong(nats: NatsRig) -> None:
    """The timer is what finds a broker that lies by omission."""
    bus = await nats.bus(refresh_s=0.2)
    await say(bus, place("a"), 0)
    async with watching(bus.read(Stream.BOOK)) as view:
        await say(bus, place("b"), (await _last(bus, place("a").subject))[0])
        await view.until(lambda view: len(view.starts) == 2)
        await view.until(lambda view: view.caught_up == 2)
        assert set(view.known) == {place("a").subject, place("b").subject}


async def test_a_consumer_that_vanishes_is_made_again(nats: NatsRig) -> None:
    """An operator deletes it, or its server is gone: the reading starts over."""
    bus = await nats.bus()
    async with watching(bus.read(Stream.BOOK)) as view, raw(nats.broker.url) as connection:
        await view.until(lambda view: view.caught_up == 1)
        for name in (await connection.ask("CONSUMER.NAMES.BOOK"))["consumers"]:
            await connection.ask(f"CONSUMER.DELETE.BOOK.{name}")
        await view.until(lambda view: view.caught_up == 2)
