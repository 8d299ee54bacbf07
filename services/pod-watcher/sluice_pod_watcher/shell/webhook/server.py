"""
Serves the webhook over HTTPS until it is cancelled, with bounds on connections, silence and requests.

aiohttp, because the Kubernetes client brings it along anyway: a second HTTP stack would be a second set of defects in
the service that can stop every pod of a cluster.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from aiohttp import web

from sluice.runtime import logs
from sluice.runtime.errors import ServiceError
from sluice_pod_watcher.admission import AdmissionRules
from sluice_pod_watcher.shell.webhook.handlers import ServingLimits, make_app
from sluice_pod_watcher.shell.webhook.keeper import CertificateKeeper

DRAIN_S = 3.0
"""How long requests that are being answered may take when the server stops; within the time a service has to end."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. Port 0 is any free one."""

    host: str = ""
    """Empty is every address of the machine."""
    port: int = 9443


DEFAULT_ADDRESS = Address()
DEFAULT_LIMITS = ServingLimits()


async def serve_webhook(
    rules: AdmissionRules,
    context: ssl.SSLContext,
    keeper: CertificateKeeper,
    address: Address = DEFAULT_ADDRESS,
    *,
    limits: ServingLimits = DEFAULT_LIMITS,
) -> None:
    """Serve, and keep the certificate good, until cancelled. Raises ServiceError when the port cannot be had."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(keeper.run(), name="certificate")
        async with listening(rules, context, keeper, address, limits=limits):
            await asyncio.get_running_loop().create_future()  # until cancelled


@contextlib.asynccontextmanager
async def listening(
    rules: AdmissionRules,
    context: ssl.SSLContext,
    keeper: CertificateKeeper,
    address: Address,
    *,
    limits: ServingLimits = DEFAULT_LIMITS,
) -> AsyncIterator[int]:
    """Listen, and give the port. At the end no connection is left, and requests that had begun are answered."""
    connections = _Connections(limits)
    app = make_app(rules, keeper.why_not_ready, limits, connections.heard)
    runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=DRAIN_S, keepalive_timeout=75.0)
    await runner.setup()
    try:
        assert runner.server is not None
        server = await _listen(connections.of(runner.server), address, context, limits)
        try:
            port: int = server.sockets[0].getsockname()[1]
            logs.get("webhook").info("listening", port=port)
            yield port
        finally:
            server.close()
    finally:
        await runner.cleanup()


async def _listen(
    factory: Callable[[], asyncio.Protocol], address: Address, context: ssl.SSLContext, limits: ServingLimits
) -> asyncio.Server:
    try:
        return await asyncio.get_running_loop().create_server(
            factory,
            address.host or None,
            address.port,
            ssl=context,
            ssl_handshake_timeout=limits.silence_s,
            ssl_shutdown_timeout=DRAIN_S,
            backlog=128,
        )
    except OSError as error:
        where = f"{address.host or '*'}:{address.port}"
        raise ServiceError(f"the webhook cannot listen on {where}: {error.strerror or error}") from error


class _Connections:
    """Makes the protocol of each new connection; closes those that are too many, and those that never say anything."""

    def __init__(self, limits: ServingLimits) -> None:
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
