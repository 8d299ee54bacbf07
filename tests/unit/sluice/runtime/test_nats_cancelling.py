"""A Ctrl-C counts whenever it comes, also at the very moment at which the bus answers."""

import asyncio

import pytest
from factories.buses import raw
from nats.aio.msg import Msg

from sluice.runtime.broker import Broker
from sluice.runtime.nats_connection import Connection


async def test_a_request_that_is_cancelled_as_it_is_answered_is_cancelled(tmp_path):
    """The client's own timeout swallows such a cancellation (Python 3.11, asyncio.wait_for): the process goes on."""
    async with Broker(tmp_path / "nats") as broker, raw(broker.url) as connection:
        asked: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        await connection.subscribe(
            "question", lambda message: asked.done() or asked.set_result(message), messages_max=8
        )
        task = asyncio.create_task(connection.request("question", b"?"))
        async with asyncio.timeout(10):
            question = await asked
            await answer_and_cancel(connection, question, task)
            with pytest.raises(asyncio.CancelledError):
                await task


async def answer_and_cancel(connection: Connection, question: Msg, task: asyncio.Task) -> None:
    """Give the answer to whoever waits for it, and cancel him before he has run."""
    token = question.reply.rsplit(".", 1)[1]
    connection._client._resp_map[token].set_result(question)
    task.cancel()
