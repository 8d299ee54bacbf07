"""
Runs the page's server in this process, on a socket that is taken already.

Signals belong to whoever runs us. Connections are limited in number, and each in how long it may say nothing, and in
how long it may leave what it asked for: uvicorn closes one only when it has taken everything.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from sluice_console.shell.web.hub import Hub
from sluice_console.shell.web.stream import TAKE_WITHIN_S

CONNECTIONS_MAX = 256
"""Open at once: a browser has up to six, one of them its stream."""
ASK_WITHIN_S = 10.0
"""How long a connection may take to say what it wants."""
ASKING_BYTES_MAX = 16 * 1024
LOOKS = 10
"""How often within TAKE_WITHIN_S it is looked whether a connection takes anything."""
_ACKED_AT, _ACKED_BYTES = 120, 8
"""Where the kernel's `struct tcp_info` (Linux) counts what the other side has acknowledged."""
STOP_WITHIN_S = 2.0
"""How long answers may take to end when the server does."""


@asynccontextmanager
async def serving(app: ASGIApp, hub: Hub, taken: socket.socket) -> AsyncIterator[None]:
    """Answer at `taken` for the time of the context; end within STOP_WITHIN_S and a little."""
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        loop="none",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=CONNECTIONS_MAX,
        h11_max_incomplete_event_size=ASKING_BYTES_MAX,
        timeout_graceful_shutdown=int(STOP_WITHIN_S),
    )
    server = _Server(config)
    task = asyncio.ensure_future(server.serve(sockets=[taken]))
    try:
        yield
    finally:
        hub.close()
        server.should_exit = True
        _, late = await asyncio.wait((task,), timeout=3 * STOP_WITHIN_S)
        if late:
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        taken.close()


class _Server(uvicorn.Server):
    """One that leaves signals alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Whoever runs us hears them."""
        yield


class BoundedProtocol(H11Protocol):
    """One connection: closed when there are too many, when it does not ask in time, or when it takes no answer."""

    _asking: asyncio.TimerHandle | None = None
    _looking: asyncio.TimerHandle | None = None
    _left_bytes = 0
    """What of its answers was still with us at the last look, and how much the other side had acknowledged then."""
    _acked = b""
    _took_at = 0.0
    """When it was seen last that it takes something, or has nothing to take."""

    def connection_made(self, transport: Any) -> None:
        """It begins."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()
            return
        self._await_question()
        self._took_at = asyncio.get_running_loop().time()
        self._look_again()

    def data_received(self, data: bytes) -> None:
        """A part of what it asks: of a further question, too, which uvicorn waits for as long as it takes."""
        super().data_received(data)
        if self._is_answered():
            self._end_waiting()
        else:
            self._await_question()

    def _await_question(self) -> None:
        if self._asking is None:
            self._asking = asyncio.get_running_loop().call_later(ASK_WITHIN_S, self._has_asked)

    def _has_asked(self) -> None:
        self._asking = None
        if not self._is_answered():  # no question has come whole
            self.transport.abort()

    def _is_answered(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _end_waiting(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    def _look_again(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(TAKE_WITHIN_S / LOOKS, self._look)

    def _look(self) -> None:
        """Also at one that was closed: it stays, with all that it has not taken, until that is gone."""
        now = asyncio.get_running_loop().time()
        left_bytes, acked = self.transport.get_write_buffer_size(), _acked(self.transport)
        if not left_bytes or left_bytes < self._left_bytes or acked != self._acked:
            self._took_at = now
        self._left_bytes, self._acked = left_bytes, acked
        if now - self._took_at >= TAKE_WITHIN_S:
            self.transport.abort()
            return
        self._look_again()

    def connection_lost(self, exc: Exception | None) -> None:
        """It ends."""
        self._end_waiting()
        if self._looking is not None:
            self._looking.cancel()
        super().connection_lost(exc)


def _acked(transport: Any) -> bytes:
    """
    How much the other side has acknowledged, as the kernel counts it; empty where it does not.

    A slow reader is seen here long before the kernel takes more of us, which it does by the megabyte.
    """
    try:
        told = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:
        return b""
    return bytes(told[_ACKED_AT : _ACKED_AT + _ACKED_BYTES])
