"""Reviews, liveness and readiness. An error is a sentence. Reading a body is the only wait, and bounded."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.kube.names import DEFAULT_MODES, HAND_OVERS
from sluice.contracts.reasons import shorten
from sluice.runtime import logs
from sluice.runtime.prometheus import metrics
from sluice_pod_watcher.admission import AdmissionConfig, AdmissionResponse, MalformedReview, review_pod
from sluice_pod_watcher.shell.http_server import ConnectionLimits, Handler, ListenAddress, add_health, serving
from sluice_pod_watcher.shell.metrics import REVIEW_SECONDS
from sluice_pod_watcher.shell.webhook.cert_rotator import CertificateRotator

BYTES_MAX = 64


@dataclass(slots=True)
class HandOverFile:
    """The file with the present value, read for each review. It may be missing: then tickets hand over, as everywhere.
    Tickets also where it cannot be read or holds another word: they need nothing of the kubelet."""

    path: Path
    _told: str = field(default="", init=False)

    def __call__(self) -> str:
        try:
            with self.path.open("rb") as file:
                text = file.read(BYTES_MAX).decode("utf-8", "replace").strip()
        except FileNotFoundError:
            return "tickets"
        except OSError as error:
            return self._tickets(f"{self.path} cannot be read: {error.strerror}")
        if text not in HAND_OVERS:
            allowed = " or ".join(HAND_OVERS)
            return self._tickets(f"{self.path} holds {shorten(text)!r}: it must hold {allowed}")
        self._told = ""
        return text

    def _tickets(self, why: str) -> str:
        if why != self._told:
            self._told = why
            logs.get("webhook").warning("new pods get their devices by tickets", why=why)
        return "tickets"


MUTATE = "/mutate"
HandOver = Callable[[], str]  # how new pods get their devices now: one of HAND_OVERS


class ServingLimits(ConnectionLimits, frozen=True):
    """Limits for one caller."""

    body_bytes_max: int = 8 * 1024 * 1024  # objects have up to 3 MiB, and an update's review holds two of them
    request_s: float = 5.0  # for a whole request: no more than the API server waits
    reviews_max: int = 64  # bodies read at once, which bounds memory; others queue within their time


def make_app(
    config: AdmissionConfig, why_not_ready: Callable[[], str], limits: ServingLimits, hand_over: HandOver
) -> web.Application:
    """The application. `why_not_ready` is called at each readiness probe: whether API servers can connect and be
    answered. MUTATE applies `config` as it is; MUTATE/<mode> with this default mode, and a further /dra or /tickets
    with this hand-over: the API server chooses the path by the namespace's labels, which a review does not contain.
    Without that `hand_over` tells the hand-over of now."""

    async def ready() -> str:
        return why_not_ready()

    reviews = _Reviews(config, limits, hand_over)
    app = web.Application(middlewares=[in_words], client_max_size=limits.body_bytes_max)
    mode, way = f"/{{mode:{'|'.join(DEFAULT_MODES)}}}", f"/{{way:{'|'.join(HAND_OVERS)}}}"
    for path in ("", mode, way, f"{mode}{way}"):
        app.router.add_post(f"{MUTATE}{path}", reviews.mutate)
    add_health(app, ready)
    return app


def answer_to(body: bytes, config: AdmissionConfig) -> AdmissionResponse | MalformedReview:
    """The answer to the bytes of a request. Never raises."""
    try:
        raw = msgspec.json.decode(body)
    except NOT_READABLE as error:
        return MalformedReview(f"the body is not JSON: {shorten(str(error), 300)}")
    return review_pod(raw, config)


class _Reviews:
    def __init__(self, config: AdmissionConfig, limits: ServingLimits, hand_over: HandOver) -> None:
        self._config = {
            (mode, way): replace(config, default_mode=mode or config.default_mode, hand_over=way)
            for mode in ("", *DEFAULT_MODES)
            for way in HAND_OVERS
        }
        self._hand_over, self._limits = hand_over, limits
        self._turns = asyncio.Semaphore(limits.reviews_max)
        self._log = logs.get("webhook")

    async def mutate(self, request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(self._limits.request_s), self._turns:
                body = await request.read()
                began = time.monotonic()
                way = request.match_info.get("way") or self._hand_over()
                response = answer_to(body, self._config[request.match_info.get("mode", ""), way])
                metrics.observe(REVIEW_SECONDS, time.monotonic() - began, _kind(response))
        except TimeoutError:
            raise web.HTTPRequestTimeout(text=f"the request took longer than {self._limits.request_s:g} s") from None
        except ConnectionError:  # the caller is gone; this is no error of ours
            raise web.HTTPBadRequest(text="the caller disconnected before its request was complete") from None
        if isinstance(response, MalformedReview):
            raise web.HTTPBadRequest(text=response.why)
        if not response.allowed:
            self._log.info("denied", code=response.code, why=response.message, review=shorten(response.uid))
        return web.Response(body=msgspec.json.encode(response.as_review()), content_type="application/json")


@web.middleware
async def in_words(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every failure as one line of text and a log line; an internal error without its details."""
    log = logs.get("webhook")
    try:
        return await handler(request)
    except web.HTTPException as refusal:
        text = shorten(refusal.text or refusal.reason, 400)
        log.warning("refused a request", status=refusal.status, why=text, **_caller(request))
        headers = {"Allow": refusal.headers["Allow"]} if "Allow" in refusal.headers else {}
        return web.Response(status=refusal.status, text=text, headers=headers)
    except Exception:  # the boundary: the caller learns that it failed, without details
        log.exception("a request failed", **_caller(request))
        return web.Response(status=500, text="the webhook failed; see its log")


def _kind(response: AdmissionResponse | MalformedReview) -> str:
    if isinstance(response, MalformedReview):
        return "unreadable"
    return "allowed" if response.allowed else "denied"


def _caller(request: web.Request) -> dict[str, Any]:
    return {"method": shorten(request.method, 20), "path": shorten(request.path), "peer": request.remote or ""}


DEFAULT_ADDRESS, DEFAULT_LIMITS = ListenAddress(), ServingLimits()


async def serve_webhook(
    config: AdmissionConfig,
    context: ssl.SSLContext,
    keeper: CertificateRotator,
    address: ListenAddress = DEFAULT_ADDRESS,
    *,
    hand_over: HandOver | None = None,
) -> None:
    """Serve until cancelled, with certificate rotation. Raises ServiceError when the port is not available."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(keeper.run(), name="certificate")
        async with listening(config, context, keeper, address, hand_over=hand_over):
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
    """Listen, and yield the port. At the end requests that had started are answered. `hand_over`: as for a review."""
    app = make_app(config, keeper.why_not_ready, limits, hand_over or (lambda: config.hand_over))
    async with serving("webhook", app, address, context, limits) as port:
        yield port
