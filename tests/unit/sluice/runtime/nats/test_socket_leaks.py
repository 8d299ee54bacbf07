"""A foreign server at the broker's address costs a service no sockets."""

import asyncio

import pytest
from factories.broker.bus_rigs import raw

from sluice.runtime.nats_server.process import Broker

PATIENCE_S = 10.0


class Stranger:
    """Sends a line that no broker sends, and counts connections that come before the last one is closed."""

    def __init__(self, line: bytes = b"hello\r\n") -> None:
        self._line = line
        self.left, self.too_early = asyncio.Semaphore(0), 0
        self._here = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.too_early += self._here
        self._here += 1
        writer.write(self._line)
        await reader.read()
        writer.close()
        self._here -= 1
        self.left.release()


async def test_a_failed_try_to_reach_the_bus_again_leaves_no_socket(tmp_path):
    """Each try would leave one, until the garbage collector finds it."""
    stranger = Stranger()
    async with Broker(tmp_path / "nats") as broker, raw(broker.url) as connection:
        (server,) = broker.servers
        await server.kill()
        async with await asyncio.start_server(stranger, "127.0.0.1", server.plan.port):
            async with asyncio.timeout(PATIENCE_S):
                for _ in range(3):
                    await stranger.left.acquire()
        assert stranger.too_early == 0
        await server.start()
        await broker.ready()
        await connection.up_within(PATIENCE_S)
        assert connection.up


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"INFOrmation: nothing is here\r\n", id="no JSON"),
        pytest.param(b"INFO 3\r\n", id="other JSON"),
        pytest.param(b"INFO " + b"x" * 200_000, id="no end"),
    ],
)
async def test_a_stranger_at_the_brokers_address_does_not_end_the_search_for_it(tmp_path, line):
    """The client's task would end silently, and the service stay away from the bus until it is restarted."""
    stranger = Stranger(line)
    async with Broker(tmp_path / "nats") as broker, raw(broker.url) as connection:
        (server,) = broker.servers
        await server.kill()
        async with await asyncio.start_server(stranger, "127.0.0.1", server.plan.port):
            async with asyncio.timeout(PATIENCE_S):
                await stranger.left.acquire()
        await server.start()
        await broker.ready()
        await connection.up_within(PATIENCE_S)
        assert connection.up
