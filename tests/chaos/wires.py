"""Ports between services and brokers; a cut one is silent, as a network is, and never loses or reorders a byte."""

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

HOST = "127.0.0.1"
CHUNK_BYTES = 64 * 1024
UNDERWAY_MAX = 64
"""Chunks on their way in one direction; then the sender's socket fills up, as it does on a full network."""


@dataclass(eq=False)
class Wire:
    """One service's way to one server."""

    target: tuple[str, int]
    port: int = 0
    delay_s: float = 0.0
    _open: asyncio.Event = field(default_factory=asyncio.Event)
    _server: asyncio.Server | None = None
    _streams: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> None:
        self._open.set()
        self._server = await asyncio.start_server(self._accept, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        streams = tuple(self._streams)
        for stream in streams:
            stream.cancel()
        if streams:
            await asyncio.wait(streams)

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        self.delay_s = 0.0
        self._open.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        with _closed(writer), suppress(OSError, asyncio.CancelledError):
            await self._open.wait()
            there, back = await asyncio.open_connection(*self.target)
            with _closed(back):
                ways = {asyncio.ensure_future(self._pass(*way)) for way in ((reader, back), (there, writer))}
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.wait(ways)
        self._streams.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Everything of one direction, each chunk after the delay of its time."""
        clock = asyncio.get_running_loop().time
        underway: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(UNDERWAY_MAX)

        async def deliver() -> None:
            while True:
                due, chunk = await underway.get()
                if due > clock():
                    await asyncio.sleep(due - clock())
                await self._open.wait()
                if not chunk:
                    return
                writer.write(chunk)
                await writer.drain()

        delivering = asyncio.ensure_future(deliver())
        try:
            with suppress(OSError):
                while not delivering.done():
                    chunk = await reader.read(CHUNK_BYTES)
                    await underway.put((clock() + self.delay_s, chunk))
                    if not chunk:
                        await delivering
                        return
        finally:
            delivering.cancel()
            await asyncio.wait({delivering})
            if not delivering.cancelled():
                delivering.exception()  # the other end is gone: so is the connection, and both sides see that


@contextlib.contextmanager
def _closed(writer: asyncio.StreamWriter) -> Iterator[None]:
    try:
        yield
    finally:
        writer.close()
