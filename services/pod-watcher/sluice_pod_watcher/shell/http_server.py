"""Serve an aiohttp application with bounds on connections and silence: the webhook by TLS, health in plain HTTP."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing

import msgspec
from aiohttp import web

from sluice.runtime import addresses, errors, logs

DRAIN_S = 3.0  # how long running requests may take when the server stops; within the time a service has to end
KEEP_ALIVE_S = 120.0
"""How long a connection may be idle. Longer than its clients keep one: an API server does for 90 s (Go's
DefaultTransport), and would lose a review that it starts to send just when we close it."""

HEALTH, READY = "/healthz", "/readyz"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ListenAddress(msgspec.Struct, frozen=True):
    """Where to listen. Port 0 picks a free one."""

    host: str = "127.0.0.1"  # empty: every address of the machine, as 0.0.0.0 and ::, which must be explicit
    port: int = 9443


class ConnectionLimits(msgspec.Struct, frozen=True):
    """Limits on connections."""

    connections_max: int = 512  # Open at once. An API server holds few; more are closed right after their handshake.
    silence_s: float = 10.0  # for a handshake, and until a new connection has sent something


@asynccontextmanager
async def serving(
    what: str, app: web.Application, address: ListenAddress, context: ssl.SSLContext | None, limits: ConnectionLimits
) -> AsyncIterator[int]:
    """Listen, and yield the port. At the end all connections are closed, and requests that had started are answered.
    `what` names the server in log lines and errors; without a `context` it is plain HTTP. Raises ServiceError."""
    connections = _Connections(limits)
    app.middlewares.insert(0, connections.heard)
    runner = web.AppRunner(
        app, handle_signals=False, access_log=None, shutdown_timeout=DRAIN_S, keepalive_timeout=KEEP_ALIVE_S
    )
    await runner.setup()
    try:
        assert runner.server is not None
        try:
            server = await asyncio.get_running_loop().create_server(
                connections.of(runner.server),
                **addresses.listening_at(address.host, address.port),
                ssl=context,
                ssl_handshake_timeout=limits.silence_s if context is not None else None,
                ssl_shutdown_timeout=DRAIN_S if context is not None else None,
                backlog=128,
            )
        except OSError as error:
            where = addresses.joined(address.host or "*", address.port)
            raise errors.ServiceError(f"the {what} cannot listen on {where}: {error.strerror or error}") from error
        with closing(server):
            port: int = server.sockets[0].getsockname()[1]
            logs.get(what).info("listening", port=port)
            yield port
    finally:
        await runner.cleanup()


class _Connections:
    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._silent: set[asyncio.BaseProtocol] = set()  # new, without a request; keep-alive bounds later silence

    def of(self, server: web.Server) -> Callable[[], asyncio.Protocol]:
        loop = asyncio.get_running_loop()

        def make() -> asyncio.Protocol:
            if len(self._silent.union(server.connections)) >= self._limits.connections_max:
                return _Closed()
            protocol = server()
            self._silent.add(protocol)
            loop.call_later(self._limits.silence_s, self._close_if_silent, protocol)
            return protocol

        return make

    @web.middleware
    async def heard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._silent.discard(request.protocol)
        return await handler(request)

    def _close_if_silent(self, protocol: web.RequestHandler) -> None:
        if protocol in self._silent:
            self._silent.discard(protocol)
            protocol.force_close()


class _Closed(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def add_health(app: web.Application, why_not_ready: Callable[[], Awaitable[str]]) -> None:
    """Answer `/healthz`, and `/readyz` with 200, or 503 with the reason."""

    async def health(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def ready(_request: web.Request) -> web.Response:
        why = await why_not_ready()
        return web.Response(status=503 if why else 200, text=why or "ok")

    app.router.add_get(HEALTH, health)
    app.router.add_get(READY, ready)


LIMITS = ConnectionLimits(connections_max=32, silence_s=5.0)  # kubelets and people, each on a connection of its own


@asynccontextmanager
async def serving_health(address: ListenAddress, why_not_ready: Callable[[], Awaitable[str]]) -> AsyncIterator[int]:
    """Serve `/healthz` and `/readyz` over plain HTTP, as kubelets' probes have no client certificate. Yields the port.
    Raises ServiceError when it is not available."""
    app = web.Application(client_max_size=1024)
    add_health(app, why_not_ready)
    async with serving("health", app, address, None, LIMITS) as port:
        yield port
