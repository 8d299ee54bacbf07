"""What a service refuses to work with, with a sentence instead of a later failure."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path

import pytest
from factories.broker.bus_rigs import NODE, MemoryRig, NatsRig, order, place, raw, say, watching
from factories.broker.nats_server import Broker, Launch, NatsServer, NatsServerConfig, ServerProcess, launch_process
from factories.waiting import until

from sluice.contracts.bus.events import Stream
from sluice.contracts.bus.store_sizes import MIB, STORE_BYTES_MAX
from sluice.contracts.bus.streams import STREAMS, consumer_of
from sluice.contracts.ids import Incarnation, NodeName
from sluice.runtime.bus import BusError
from sluice.runtime.nats import connection as nats_connection
from sluice.runtime.nats import stream_management
from sluice.runtime.nats.connection import Connection
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.nats.wire_format import STREAM_NOT_FOUND, ApiError
from sluice.runtime.nats_server.free_ports import free_ports
from sluice.runtime.nats_server.server_config import BrokerError

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_stream_with_other_settings_is_not_used(nats: NatsRig) -> None:
    """A stream that keeps more than last values would let an expired message bring back the one before it."""
    bus = await nats.bus("administrator")
    async with raw(nats.broker.url) as connection:
        config = (await connection.ask("STREAM.INFO.BOOK"))["config"]
        await connection.ask("STREAM.UPDATE.BOOK", {**config, "max_msgs_per_subject": 2})
    with pytest.raises(BusError, match="max_msgs_per_subject is 2 instead of 1"):
        await bus.ensure_streams()


async def test_history_gets_the_size_of_the_disk_and_keeps_its_words(nats: NatsRig) -> None:
    """A data directory of a larger disk goes on with this one's size: what was booked and published is all there."""
    bus = await nats.bus("administrator")
    await say(bus, place("a"), 0)
    async with raw(nats.broker.url) as connection:
        for mib in (64, 16, 4096):
            await bus.resize_history(mib * MIB)
            await bus.ensure_streams()
            assert await bus.stream_problems() == []
            found = {name: await connection.ask(f"STREAM.INFO.{name}") for name in Stream}
            assert found[Stream.HISTORY]["config"]["max_bytes"] == mib * MIB
            assert [found[name]["state"]["messages"] for name in (Stream.BOOK, Stream.HISTORY)] == [1, 1]
            assert found[Stream.BOOK]["config"]["max_bytes"] == -1, "what is booked has no size"


@asynccontextmanager
async def without_streams(
    folder: Path, launch: Launch = launch_process, port: int = 0
) -> AsyncIterator[tuple[Broker, NatsBus]]:
    """A broker of a test's own, and an administrator's bus."""
    async with Broker(folder, launch=launch, port=port) as broker, AsyncExitStack() as stack:
        yield broker, await NatsRig(broker, stack).bus("administrator")


def launching(tmp_path: Path, ours: str, others: str) -> Launch:
    """Starts brokers with `others` in place of our settings `ours`."""
    config = tmp_path / "nats-server.conf"

    def changed(plan: Path) -> Path:
        assert ours in plan.read_text()
        config.write_text(plan.read_text().replace(ours, others))
        return config

    async def launch(plan: Path, log: Path) -> ServerProcess:
        return await launch_process(changed(plan), log)

    return launch


async def test_a_store_without_room_for_history_is_named_with_what_to_set(tmp_path: Path) -> None:
    """At once, and not after twenty seconds with the last line of the broker's log."""
    launch = launching(tmp_path, f"max_file_store: {STORE_BYTES_MAX}", "max_file_store: 100MB")
    async with without_streams(tmp_path / "broker", launch) as (_, bus):
        with pytest.raises(BusError, match=r"HISTORY may take 4096 MiB.* no room for it: set SLUICE_HISTORY_MIB"):
            await bus.ensure_streams()
        await bus.ensure_streams(history_bytes=50 * MIB)
        with pytest.raises(BusError, match=r"HISTORY may take 200 MiB.* no room for it"):
            await bus.resize_history(200 * MIB)


@pytest.mark.parametrize("is_stream_of_before", [False, True], ids=["a new stream", "a stream of an earlier release"])
async def test_a_fleet_grows_beyond_the_consumers_that_a_broker_allows_by_default(
    tmp_path: Path, is_stream_of_before: bool
) -> None:
    """Of nats-server 2.15 that is 1,000 of a stream, so the thousandth node ended the allocator, again and again."""
    launch = launching(tmp_path, "default_max_consumers: -1", "default_max_consumers: 2")
    nodes = [NodeName(f"gpu-{number}") for number in range(4)]
    async with without_streams(tmp_path / "broker", launch) as (broker, bus):
        if is_stream_of_before:
            (book,) = (each for each in STREAMS if each.stream is Stream.BOOK)
            config = book.config(first_sequence=1, replicas=1) | {"max_consumers": -1}
            async with raw(broker.url) as connection:
                await connection.ask("STREAM.CREATE.BOOK", config)
        await bus.ensure_streams()
        assert await bus.stream_problems() == []
        for node in nodes[:2]:
            await bus.ensure_agent(node)
        for node in nodes[2:]:
            with pytest.raises(BusError, match="set default_max_cons") if is_stream_of_before else nullcontext():
                await bus.ensure_agent(node)


async def test_how_long_nothing_was_stored_is_known_by_the_brokers_clock(nats: NatsRig) -> None:
    """By that alone a broker of elsewhere shows that it cannot store."""
    bus = await nats.bus("administrator")
    assert await bus.unstored_s(Stream.BOOK) is None
    await say(bus, place("a"), 0)
    first = await bus.unstored_s(Stream.BOOK)
    assert first is not None

    async def later() -> bool:
        return (await bus.unstored_s(Stream.BOOK) or 0.0) > first

    await until(later)


async def test_a_durable_with_other_settings_is_not_used(nats: NatsRig) -> None:
    """One that filters another node would give an agent another's orders."""
    bus = await nats.bus("administrator")
    async with raw(nats.broker.url) as connection:
        name = consumer_of(NODE)
        config = {"name": name, "durable_name": name, "ack_policy": "explicit"}
        made = {"stream_name": "BOOK", "config": config, "action": "create"}
        await connection.ask(f"CONSUMER.CREATE.BOOK.{name}", made)
    with pytest.raises(BusError, match="filter_subject"):
        await bus.ensure_agent(NODE)


async def test_a_durable_that_lands_in_the_next_life_of_the_streams_is_told_of_it(nats: NatsRig, monkeypatch) -> None:
    """Its agent would take every order for one of another incarnation, for ever, and no allocator could go on."""
    bus = await nats.bus("administrator")
    of_now, of_before = await bus.incarnation(Stream.BOOK), Incarnation("1")
    asked = stream_management.incarnation

    async def late(connection: Connection, stream: Stream) -> Incarnation:
        monkeypatch.setattr(stream_management, "incarnation", asked)
        return of_before

    monkeypatch.setattr(stream_management, "incarnation", late)
    with pytest.raises(TimeoutError):
        await bus.ensure_agent(NODE)
    await bus.ensure_agent(NODE)
    async with watching((await nats.bus("node-agent")).read_ledger(NODE)) as view:
        await view.until(lambda view: view.caught_up == 1)
    assert [start.incarnation for start in view.starts] == [of_now]


async def test_streams_are_what_was_declared(nats: NatsRig) -> None:
    """Last values, on disk, synced for BOOK, beginning at the time of making."""
    async with raw(nats.broker.url) as connection:
        for declaration in STREAMS:
            config = (await connection.ask(f"STREAM.INFO.{declaration.stream}"))["config"]
            assert config["storage"] == "file"
            assert config["first_seq"] > 1_700_000_000_000
            assert config.get("persist_mode", "default") == ("async" if declaration.rebuildable else "default")


async def test_an_old_server_is_refused(nats: NatsRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its version and the one that is needed."""
    monkeypatch.setattr(nats_connection, "SERVER_FLOOR", (99, 0, 0))
    with pytest.raises(BusError, match=r"too old: 99\.0\.0"):
        await NatsBus.connect(nats.broker.url, name="allocator")


async def test_a_server_that_cannot_start_says_why(tmp_path: Path, launch: Launch) -> None:
    """Its last lines are in the error, at once instead of after a timeout."""
    (tmp_path / "store").write_text("a file where a folder should be")
    with pytest.raises(BrokerError, match="storage directory is not a directory"):
        async with Broker(tmp_path, launch=launch):
            pass


async def test_a_denied_word_in_memory_is_as_fatal_as_on_nats() -> None:
    """So that a test with the memory bus finds what production would refuse."""
    bus = MemoryRig().broker.bus("allocator")
    bus.denied = frozenset({place("a").subject})
    with pytest.raises(BusError):
        await bus.write(order(place("a"), 0), {})


async def test_without_streams_nothing_is_known(tmp_path: Path) -> None:
    """What needs a stream that is not there says so by TimeoutError: it may come."""
    async with without_streams(tmp_path) as (_, bus):
        for asked in (bus.incarnation(Stream.BOOK), bus.ensure_agent(NODE), bus.last(Stream.BOOK, "sluice.x.y")):
            with pytest.raises(TimeoutError):
                await asked


async def test_a_broker_comes_back_on_its_port_with_what_it_had(tmp_path: Path, launch: Launch) -> None:
    """Stopped in order and started again in the same folder."""
    port, found = free_ports(1)[0], []
    for _ in range(2):
        async with without_streams(tmp_path, launch, port=port) as (broker, bus):
            await bus.ensure_streams()
            found.append(await bus.incarnation(Stream.BOOK))
            assert broker.url.endswith(f":{port}")
    assert found[0] == found[1]
    assert not NatsServer(NatsServerConfig("x", tmp_path, port)).running


class OneOfThree:
    """What a cluster answers of which one server was alone before, when that leads."""

    clustered = True

    def __init__(self, *, there: bool) -> None:
        """`there`: the streams exist already."""
        self.there = there

    async def ask(self, verb: str, body: dict | None = None, *, timeout_s: float = 0.0) -> dict:
        """It was made to begin at the present time, and ends where the one server was."""
        _, what, stream = verb.split(".")
        if what == "INFO" and not self.there:
            raise ApiError(verb, {"code": 404, "err_code": STREAM_NOT_FOUND, "description": "stream not found"})
        (declaration,) = (each for each in STREAMS if each.stream.value == stream)
        config = body or declaration.config(first_sequence=2000, replicas=3)
        return {"config": config, "state": {"first_seq": 1000, "last_seq": 1003, "messages": 3}}


@pytest.mark.parametrize("there", [False, True])
async def test_three_brokers_on_the_disk_of_one_are_refused(there: bool) -> None:
    """The messages of before would be of an incarnation that no reader knows, and be gone when another server leads."""
    cluster = OneOfThree(there=there)
    with pytest.raises(BusError, match="a server of the cluster has kept"):
        await stream_management.ensure_streams(cluster)  # type: ignore[arg-type]
    cluster.there = True
    problems = await stream_management.stream_problems(cluster)  # type: ignore[arg-type]
    assert [each.split(" was made")[0] for each in problems] == [f"the stream {each.stream}" for each in STREAMS]


async def test_a_broker_that_takes_no_message_so_large_is_named(nats: NatsRig) -> None:
    """An allocator would end with a traceback after each start, and the broker would not be suspected."""
    bus = await nats.bus()
    bus._connection._client._max_payload = 100  # what the broker says of itself when it is connected to
    with pytest.raises(BusError, match=r"takes no message of \d+ bytes \(sluice.ledger.* max_payload is 100 bytes"):
        await bus.write(order(place("a"), 0), {})
