"""
Serves an aiohttp application, with bounds on connections and silence: the webhook over TLS, health without.

aiohttp, because the Kubernetes client brings it along anyway: a second HTTP stack would be a second set of defects in
the service that can stop every pod of a cluster. What is served is decided elsewhere.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from aiohttp import web

from sluice.runtime import logs
from sluice.runtime.addresses import joined, listening_at
from sluice.runtime.errors import ServiceError

DRAIN_S = 3.0
"""How long requests that are being answered may take when the server stops; within the time a service has to end."""
KEEP_ALIVE_S = 120.0
"""
How long a connection may be silent. Longer than its clients keep one: an API server does for 90 s (Go's
DefaultTransport), and would lose a review that it begins to send in the moment in which we close it.
"""

OnRequest = Callable[[web.Request], None]
"""Is to be told of each request as it begins."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where to listen. Port 0 is any free one."""

    host: str = "127.0.0.1"
    """Empty is every address of the machine, as 0.0.0.0 and :: are, which somebody has to say."""
    port: int = 9443


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What connections may cost."""

    connections_max: int = 512
    """Open at once. An API server holds few; what is above is closed as soon as its handshake is done."""
    silence_s: float = 10.0
    """For a handshake, and until a new connection has said something."""


@contextlib.asynccontextmanager
async def serving(
    what: str,
    make: Callable[[OnRequest], web.Application],
    address: ListenAddress,
    context: ssl.SSLContext | None,
    limits: ConnectionLimits,
) -> AsyncIterator[int]:
    """
    Listen, and give the port. At the end no connection is left, and requests that had begun are answered.

    `what` says in log lines and errors who listens; without a `context` it is plain HTTP. Raises ServiceError when the
    port cannot be had.
    """
    connections = _Connections(limits)
    runner = web.AppRunner(
        make(connections.heard),
        handle_signals=False,
        access_log=None,
        shutdown_timeout=DRAIN_S,
        keepalive_timeout=KEEP_ALIVE_S,
    )
    await runner.setup()
    try:
        assert runner.server is not None
        server = await _listen(what, connections.of(runner.server), address, context, limits)
        try:
            port: int = server.sockets[0].getsockname()[1]
            logs.get(what).info("listening", port=port)
            yield port
        finally:
            server.close()
    finally:
        await runner.cleanup()


async def _listen(
    what: str,
    factory: Callable[[], asyncio.Protocol],
    address: ListenAddress,
    context: ssl.SSLContext | None,
    limits: ConnectionLimits,
) -> asyncio.Server:
    tls = context is not None
    try:
        return await asyncio.get_running_loop().create_server(
            factory,
            **listening_at(address.host, address.port),
            ssl=context,
            ssl_handshake_timeout=limits.silence_s if tls else None,
            ssl_shutdown_timeout=DRAIN_S if tls else None,
            backlog=128,
        )
    except OSError as error:
        where = joined(address.host or "*", address.port)
        raise ServiceError(f"the {what} cannot listen on {where}: {error.strerror or error}") from error


class _Connections:
    """Makes the protocol of each new connection; closes those that are too many, and those that never say anything."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._silent: set[asyncio.BaseProtocol] = set()
        """New ones on which no request has begun. Later silence is bounded by the keep-alive time."""

    def of(self, server: web.Server) -> Callable[[], asyncio.Protocol]:
        """What makes the protocols of `server`."""
        loop = asyncio.get_running_loop()

        def make() -> asyncio.Protocol:
            if len(self._silent.union(server.connections)) >= self._limits.connections_max:
                return _Closed()
            protocol = server()
            self._silent.add(protocol)
            loop.call_later(self._limits.silence_s, self._close_if_silent, protocol)
            return protocol

        return make

    def heard(self, request: web.Request) -> None:
        """A request has begun."""
        self._silent.discard(request.protocol)

    def _close_if_silent(self, protocol: web.RequestHandler) -> None:
        if protocol in self._silent:
            self._silent.discard(protocol)
            protocol.force_close()


class _Closed(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
