"""Connections of the page's server whose other side takes its answer slowly, or never: over real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from starlette.responses import Response
from starlette.types import ASGIApp

from sluice_console.core.web.board import Board
from sluice_console.shell.web import hub as hub_module
from sluice_console.shell.web import server, stream
from sluice_console.shell.web.hub import Hub
from sluice_console.shell.web.listen_address import listen

LARGE = b"x" * 16 * 2**20
"""More than the kernel holds of one connection for both sides."""
RECEIVES_BYTES = 64 * 1024
TAKE_WITHIN_S = 0.5
ENDS_WITHIN_S = 60.0


@dataclass
class Asked:
    """One who has asked, and the server's side of it."""

    here: socket.socket
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    looked: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, size: int) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.here, size)


@pytest.fixture
def asking(monkeypatch) -> Callable:
    """Asks a server with a short bound for the answer of `app`."""
    monkeypatch.setattr(server, "TAKE_WITHIN_S", TAKE_WITHIN_S)
    monkeypatch.setattr(stream, "TAKE_WITHIN_S", TAKE_WITHIN_S)

    @asynccontextmanager
    async def ask(app: ASGIApp, hub: Hub) -> AsyncIterator[Asked]:
        taken = listen("127.0.0.1:0")
        with socket.socket() as here:
            asked = Asked(here)

            class Seen(server.BoundedProtocol):
                def connection_lost(self, exc):
                    super().connection_lost(exc)
                    asked.ended.set()

                def _look(self):
                    super()._look()
                    asked.looked.set()

            monkeypatch.setattr(server, "BoundedProtocol", Seen)
            here.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVES_BYTES)
            here.setblocking(False)
            async with server.serving(app, hub, taken):
                loop = asyncio.get_running_loop()
                await loop.sock_connect(here, taken.getsockname())
                await loop.sock_sendall(here, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                yield asked

    return ask


async def test_who_never_reads_his_answer_is_put_out(asking):
    """A few clients that ask for the map and do not read it kept their connections, and all the memory, for good."""
    async with asking(Response(LARGE), Hub(Board())) as asked:
        async with asyncio.timeout(ENDS_WITHIN_S):
            await asked.ended.wait()
            came = 0
            while part := await asked.take(2**20):
                came += len(part)
        assert came < len(LARGE)


async def test_who_never_reads_his_stream_is_put_out_with_his_connection(asking, monkeypatch):
    """The watcher's place was free again, but its connection stayed."""

    async def always(_):
        return b"data: " + bytes(64 * 1024) + b"\n\n"

    monkeypatch.setattr(hub_module.BrowserClient, "next", always)
    hub = Hub(Board())
    async with asking(stream.EventStream(hub, hub.join(), {}), hub) as asked:
        async with asyncio.timeout(ENDS_WITHIN_S):
            await asked.ended.wait()
        assert len(hub) == 0


async def test_who_reads_slowly_gets_everything(asking):
    """A page behind a thin line would never come whole: it takes many times the bound, and always takes some."""
    async with asking(Response(LARGE), Hub(Board())) as asked:
        came = 0
        async with asyncio.timeout(ENDS_WITHIN_S):
            for _ in range(3 * server.LOOKS):
                asked.looked.clear()
                await asked.looked.wait()
                came += len(await asked.take(RECEIVES_BYTES))
            assert not asked.ended.is_set()
            while came < len(LARGE):
                part = await asked.take(2**20)
                assert part, f"it ended after {came} bytes"
                came += len(part)
