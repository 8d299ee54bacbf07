"""Serve liveness and readiness of the watch over plain HTTP: a kubelet's probe has no client certificate and needs no
secret. `/healthz`: the process serves. `/readyz`: 200, or 503 with the reason in a sentence.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from sluice_pod_watcher.shell.http_server import ConnectionLimits, ListenAddress, OnRequest, serving

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
HEALTH, READY = "/healthz", "/readyz"
LIMITS = ConnectionLimits(connections_max=32, silence_s=5.0)  # kubelets and people, each on a connection of its own


@asynccontextmanager
async def serving_health(address: ListenAddress, why_not_ready: Callable[[], Awaitable[str]]) -> AsyncIterator[int]:
    """Listen, and yield the port. Raises ServiceError when it is not available."""

    async def health(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def ready(_request: web.Request) -> web.Response:
        why = await why_not_ready()
        return web.Response(status=503 if why else 200, text=why or "ok")

    def make(heard: OnRequest) -> web.Application:
        @web.middleware
        async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
            heard(request)
            return await handler(request)

        app = web.Application(middlewares=[note], client_max_size=1024)
        app.router.add_get(HEALTH, health)
        app.router.add_get(READY, ready)
        return app

    async with serving("health", make, address, None, LIMITS) as port:
        yield port
