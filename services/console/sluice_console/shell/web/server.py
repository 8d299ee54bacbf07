"""
Runs the page's server in this process on an open socket; the caller handles signals.

Connections are limited in number, in how long they may stay silent, and in how long they may leave an answer unread:
uvicorn closes a connection only after everything was read.
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
"""Connections at once: a browser has up to six, one of them its stream."""
ASK_WITHIN_S = 10.0
"""Seconds within which a connection has to send its request."""
ASKING_BYTES_MAX = 16 * 1024
LOOKS = 10
"""How often within TAKE_WITHIN_S a connection's progress is checked."""
_ACKED_AT, _ACKED_BYTES = 120, 8
"""Offset of the acknowledged bytes in the kernel's `struct tcp_info` (Linux)."""
STOP_WITHIN_S = 2.0
"""Seconds for open answers when the server stops."""


@asynccontextmanager
async def serving(app: ASGIApp, hub: Hub, taken: socket.socket) -> AsyncIterator[None]:
    """Serve at `taken` during the context; ends within about STOP_WITHIN_S."""
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
    """Uvicorn's server without its signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The caller handles signals."""
        yield


class BoundedProtocol(H11Protocol):
    """One connection: closed if there are too many, if it sends no request in time, or if it reads no answer."""

    _asking: asyncio.TimerHandle | None = None
    _looking: asyncio.TimerHandle | None = None
    _left_bytes = 0
    """Unsent bytes of its answers at the last check, and the bytes acknowledged by then."""
    _acked = b""
    _took_at = 0.0
    """When it last made progress, or had nothing to read."""

    def connection_made(self, transport: Any) -> None:
        """The connection opens."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()
            return
        self._await_question()
        self._took_at = asyncio.get_running_loop().time()
        self._look_again()

    def data_received(self, data: bytes) -> None:
        """Part of a request, also of a later one, for which uvicorn waits without limit."""
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
        if not self._is_answered():  # no complete request yet
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
        """Also for a closed one: it stays until its unread data is gone."""
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
        """The connection ends."""
        self._end_waiting()
        if self._looking is not None:
            self._looking.cancel()
        super().connection_lost(exc)


def _acked(transport: Any) -> bytes:
    """Bytes acknowledged by the client, as the kernel counts them; None if it does not.

    Shows a slow reader long before the send buffer fills, which takes megabytes."""
    try:
        told = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:
        return b""
    return bytes(told[_ACKED_AT : _ACKED_AT + _ACKED_BYTES])
