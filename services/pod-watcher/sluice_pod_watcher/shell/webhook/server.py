"""Serve the webhook over HTTPS until cancelled, and keep its certificate valid."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

from aiohttp import web

from sluice_pod_watcher.admission import AdmissionConfig
from sluice_pod_watcher.shell.http_server import ListenAddress, OnRequest, serving
from sluice_pod_watcher.shell.webhook.cert_rotator import CertificateRotator
from sluice_pod_watcher.shell.webhook.handlers import HandOver, ServingLimits, make_app

DEFAULT_ADDRESS = ListenAddress()
DEFAULT_LIMITS = ServingLimits()


async def serve_webhook(
    config: AdmissionConfig,
    context: ssl.SSLContext,
    keeper: CertificateRotator,
    address: ListenAddress = DEFAULT_ADDRESS,
    *,
    limits: ServingLimits = DEFAULT_LIMITS,
    hand_over: HandOver | None = None,
) -> None:
    """Serve until cancelled, with certificate rotation. Raises ServiceError when the port is not available."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(keeper.run(), name="certificate")
        async with listening(config, context, keeper, address, limits=limits, hand_over=hand_over):
            await asyncio.get_running_loop().create_future()  # until cancelled


@contextlib.asynccontextmanager
async def listening(
    config: AdmissionConfig,
    context: ssl.SSLContext,
    keeper: CertificateRotator,
    address: ListenAddress,
    *,
    limits: ServingLimits = DEFAULT_LIMITS,
    hand_over: HandOver | None = None,
) -> AsyncIterator[int]:
    """Listen, and yield the port. At the end all connections are closed, and requests that had started are answered.
    `hand_over` is called for each review; without it that of `config` holds.
    """
    now = hand_over if hand_over is not None else lambda: config.hand_over

    def make(heard: OnRequest) -> web.Application:
        return make_app(config, keeper.why_not_ready, limits, heard, now)

    async with serving("webhook", make, address, context, limits) as port:
        yield port
