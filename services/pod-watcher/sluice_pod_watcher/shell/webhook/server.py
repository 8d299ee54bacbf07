"""Serves the webhook over HTTPS until it is cancelled, and keeps its certificate good meanwhile."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

from aiohttp import web

from sluice_pod_watcher.admission import AdmissionConfig
from sluice_pod_watcher.shell.http_server import ListenAddress, OnRequest, serving
from sluice_pod_watcher.shell.webhook.cert_rotator import CertificateRotator
from sluice_pod_watcher.shell.webhook.handlers import ServingLimits, make_app

DEFAULT_ADDRESS = ListenAddress()
DEFAULT_LIMITS = ServingLimits()


async def serve_webhook(
    config: AdmissionConfig,
    context: ssl.SSLContext,
    keeper: CertificateRotator,
    address: ListenAddress = DEFAULT_ADDRESS,
    *,
    limits: ServingLimits = DEFAULT_LIMITS,
) -> None:
    """Serve, and keep the certificate good, until cancelled. Raises ServiceError when the port cannot be had."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(keeper.run(), name="certificate")
        async with listening(config, context, keeper, address, limits=limits):
            await asyncio.get_running_loop().create_future()  # until cancelled


@contextlib.asynccontextmanager
async def listening(
    config: AdmissionConfig,
    context: ssl.SSLContext,
    keeper: CertificateRotator,
    address: ListenAddress,
    *,
    limits: ServingLimits = DEFAULT_LIMITS,
) -> AsyncIterator[int]:
    """Listen, and give the port. At the end no connection is left, and requests that had begun are answered."""

    def make(heard: OnRequest) -> web.Application:
        return make_app(config, keeper.why_not_ready, limits, heard)

    async with serving("webhook", make, address, context, limits) as port:
        yield port
