"""Connections that fail or are cancelled leave nothing behind."""

import asyncio

import pytest
from factories.broker.bus_rigs import raw
from factories.broker.nats_server import Broker
from nats.aio.msg import Msg

from sluice.runtime.nats.connection import Connection

PATIENCE_S = 10.0


class Stranger:
    """Sends a line that no broker sends, and counts connections that come before the last one is closed."""

    def __init__(self, line: bytes) -> None:
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


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"hello\r\n", id="no line of a broker"),
        pytest.param(b"INFOrmation: nothing is here\r\n", id="no JSON"),
        pytest.param(b"INFO 3\r\n", id="other JSON"),
        pytest.param(b"INFO " + b"x" * 200_000, id="no end"),
    ],
)
async def test_a_stranger_at_the_brokers_address_costs_no_socket_and_does_not_end_the_search_for_it(tmp_path, line):
    """Each try would leave a socket; or the client's task would end silently, and the service stays off the bus."""
    stranger = Stranger(line)
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


async def test_a_request_that_is_cancelled_as_it_is_answered_is_cancelled(tmp_path):
    """The client's own timeout swallows such a cancellation (Python 3.11, asyncio.wait_for): the process goes on."""
    async with Broker(tmp_path / "nats") as broker, raw(broker.url) as connection:
        asked: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

        async def heard(message: Msg) -> None:
            asked.set_result(message)

        await connection.subscribe("question", heard, messages_max=8)
        task = asyncio.create_task(connection.request("question", b"?"))
        async with asyncio.timeout(10):
            question = await asked
            # it is answered, and cancelled before it has run
            connection._client._resp_map[question.reply.rsplit(".", 1)[1]].set_result(question)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


async def test_a_server_that_dies_while_its_client_leaves_keeps_no_process_from_ending(tmp_path):
    """`sluice run` ended only minutes after its system was killed, or never: tasks of the client went on."""
    async with Broker(tmp_path / "nats") as broker:
        before = asyncio.all_tasks()
        connection = await Connection.open(broker.url, name="raw")
        broker.servers[0].freeze()
        closing = asyncio.create_task(connection.close())
        await asyncio.sleep(0.1)  # it waits for an answer to what it has flushed
        await broker.servers[0].kill()
        await closing
        assert asyncio.all_tasks() <= before


async def test_a_client_that_is_left_as_its_try_to_connect_is_refused_tries_no_more(tmp_path, monkeypatch):
    """Its own timeout swallows that cancellation, too, and the process would never end."""
    async with Broker(tmp_path / "nats") as broker:
        before = asyncio.all_tasks()
        connection = await Connection.open(broker.url, name="raw")
        tried, goes_on = asyncio.Event(), asyncio.Event()

        async def refused(**_: object) -> None:
            tried.set()
            await goes_on.wait()
            raise ConnectionRefusedError("refused")

        monkeypatch.setattr(asyncio, "open_connection", refused)
        await broker.servers[0].kill()
        async with asyncio.timeout(10):
            await tried.wait()
            goes_on.set()
            await asyncio.sleep(0)  # it is refused, and the waiting task has not run yet
            await connection.close()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() <= before
