"""
What the server answers: reviews, and whether it is alive and ready. Errors are told in a sentence, never a traceback.

A review is CPU alone; reading its body is the only wait, and is bounded in time, size and number.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from aiohttp import web

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.kube.names import DEFAULT_MODES
from sluice.contracts.reasons import shorten
from sluice.runtime import logs
from sluice.runtime.prometheus import metrics
from sluice_pod_watcher.admission import AdmissionConfig, AdmissionResponse, MalformedReview, review_pod
from sluice_pod_watcher.shell.http_server import ConnectionLimits
from sluice_pod_watcher.shell.metrics import REVIEW_SECONDS

MUTATE, HEALTH, READY = "/mutate", "/healthz", "/readyz"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class ServingLimits(ConnectionLimits):
    """What one caller may cost."""

    body_bytes_max: int = 8 * 1024 * 1024
    """An API server takes objects up to 3 MiB, and an update's review holds two of them, and its own words."""
    request_s: float = 5.0
    """For a whole request: no more than the API server waits."""
    reviews_max: int = 64
    """Bodies read at once, so that memory has a bound; others wait for their turn within their time."""


def make_app(
    config: AdmissionConfig,
    why_not_ready: Callable[[], str],
    limits: ServingLimits,
    heard: Callable[[web.Request], None],
) -> web.Application:
    """
    The application. `why_not_ready` is asked at each readiness probe, `heard` is told of each request as it begins.

    MUTATE uses the rules as they are; MUTATE/<mode> with this default mode, for namespaces that have it: the API server
    chooses the path by the namespace's label, for a review does not hold it.
    """
    handlers = _Handlers(config, why_not_ready, limits)

    @web.middleware
    async def in_words(request: web.Request, handler: Handler) -> web.StreamResponse:
        heard(request)
        return await _in_words(request, handler)

    app = web.Application(middlewares=[in_words], client_max_size=limits.body_bytes_max)
    app.router.add_post(MUTATE, handlers.mutate)
    app.router.add_post(f"{MUTATE}/{{mode:{'|'.join(DEFAULT_MODES)}}}", handlers.mutate)
    app.router.add_get(HEALTH, handlers.health)
    app.router.add_get(READY, handlers.ready)
    return app


def answer_to(body: bytes, config: AdmissionConfig) -> AdmissionResponse | MalformedReview:
    """The answer to the bytes of a request. Never raises, whatever they are."""
    try:
        raw = msgspec.json.decode(body)
    except NOT_READABLE as error:
        return MalformedReview(f"the body is not JSON: {shorten(str(error), 300)}")
    return review_pod(raw, config)


class _Handlers:
    def __init__(self, config: AdmissionConfig, why_not_ready: Callable[[], str], limits: ServingLimits) -> None:
        self._config = {"": config} | {mode: replace(config, default_mode=mode) for mode in DEFAULT_MODES}
        self._why_not_ready = why_not_ready
        self._limits = limits
        self._turns = asyncio.Semaphore(limits.reviews_max)
        self._log = logs.get("webhook")

    async def mutate(self, request: web.Request) -> web.Response:
        """One review."""
        try:
            async with asyncio.timeout(self._limits.request_s), self._turns:
                body = await request.read()
                began = time.monotonic()
                response = answer_to(body, self._config[request.match_info.get("mode", "")])
                metrics.observe(REVIEW_SECONDS, time.monotonic() - began, _kind(response))
        except TimeoutError:
            raise web.HTTPRequestTimeout(text=f"the request took longer than {self._limits.request_s:g} s") from None
        except ConnectionError:  # nobody hears the answer; the log shall not call it a defect of ours
            raise web.HTTPBadRequest(text="the caller disconnected before its request was complete") from None
        if isinstance(response, MalformedReview):
            raise web.HTTPBadRequest(text=response.why)
        if not response.allowed:
            self._log.info("denied", code=response.code, why=response.message, review=shorten(response.uid))
        return web.Response(body=msgspec.json.encode(response.as_review()), content_type="application/json")

    async def health(self, _request: web.Request) -> web.Response:
        """Whether the process still serves."""
        return web.Response(text="ok")

    async def ready(self, _request: web.Request) -> web.Response:
        """Whether an API server could be served."""
        why = self._why_not_ready()
        return web.Response(status=503 if why else 200, text=why or "ok")


async def _in_words(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every refusal as one line of text, and a log line for each; a defect of ours told without its insides."""
    log = logs.get("webhook")
    try:
        return await handler(request)
    except web.HTTPException as refusal:
        text = shorten(refusal.text or refusal.reason, 400)
        log.warning("refused a request", status=refusal.status, why=text, **_caller(request))
        headers = {"Allow": refusal.headers["Allow"]} if "Allow" in refusal.headers else {}
        return web.Response(status=refusal.status, text=text, headers=headers)
    except Exception:  # the border: the caller must learn that it failed, and nothing of how
        log.exception("a request failed", **_caller(request))
        return web.Response(status=500, text="the webhook failed; see its log")


def _kind(response: AdmissionResponse | MalformedReview) -> str:
    if isinstance(response, MalformedReview):
        return "unreadable"
    return "allowed" if response.allowed else "denied"


def _caller(request: web.Request) -> dict[str, Any]:
    return {"method": shorten(request.method, 20), "path": shorten(request.path), "peer": request.remote or ""}
