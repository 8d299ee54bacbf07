"""Ask the API server whose ServiceAccount token this is (TokenReview), with a cache, a deadline, and bounds. Not by the
published keys (JWKS): only the API server knows that the token's pod has been deleted."""

import asyncio
import hashlib
from typing import Any

import msgspec

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.reasons import shorten
from sluice.runtime.clock import Clock
from sluice_pod_watcher.core import bus_access, workqueue
from sluice_pod_watcher.shell.callout.claims import payload_of
from sluice_pod_watcher.shell.kube.client import KubeApi, KubeError

PATH = "/apis/authentication.k8s.io/v1/tokenreviews"
REVIEW_S = 5.0
"""Half the time that the broker waits for an answer (`sluice.runtime.nats_server.users.CALLOUT_TIMEOUT_S`)."""
REVIEWS_MAX = 32
"""At once. A thousand agents that log in together take some seconds; the API server has others to serve."""
REMEMBER_S, REMEMBER_MAX = 60.0, 4096  # a token counts for so long after its pod was deleted, for new logins
_EXTRA = "authentication.kubernetes.io/"


class TokenRefusedError(Exception):
    """The token is not one that the broker may accept. One sentence, without the token."""


class _Claims(msgspec.Struct):
    exp: int
    aud: list[str] | str = ""


class _User(msgspec.Struct):
    username: str = ""
    extra: dict[str, list[str]] | None = None


class _Status(msgspec.Struct):
    authenticated: bool = False
    user: _User | None = None
    audiences: list[str] | None = None
    error: str = ""


class _Review(msgspec.Struct):
    status: _Status


class TokenReviews:
    """Reviews of tokens for one audience."""

    def __init__(self, api: KubeApi, audience: str, clock: Clock) -> None:
        self._api, self._audience, self._clock = api, audience, clock
        self._turn = asyncio.Semaphore(REVIEWS_MAX)
        self._kept: dict[bytes, tuple[float, bus_access.TokenOwner]] = {}

    async def owner_of(self, token: str) -> bus_access.TokenOwner:
        """Raises TokenRefusedError; KubeError or TimeoutError when the API server has not answered."""
        until = self._until(token)
        key = hashlib.sha256(token.encode()).digest()
        found = self._kept.get(key)
        if found is not None and self._clock.monotonic() < found[0]:
            return found[1]
        async with asyncio.timeout(REVIEW_S), self._turn:
            owner = await self._review(token, until)
        workqueue.remember(self._kept, key, (self._clock.monotonic() + REMEMBER_S, owner), at_most=REMEMBER_MAX)
        return owner

    def _until(self, token: str) -> int:
        """What needs no question: a token that has ended, or is for others. Its end, unix seconds."""
        try:
            claims = msgspec.json.decode(payload_of(token), type=_Claims)
        except (*NOT_READABLE, ValueError):
            why = "the password is no token of a ServiceAccount; set SLUICE_NATS_TOKEN_FILE"
            raise TokenRefusedError(why) from None
        audiences = [claims.aud] if isinstance(claims.aud, str) else claims.aud
        if self._audience not in audiences:
            shown = shorten(", ".join(audiences) or "none")
            raise TokenRefusedError(f"the token is for the audience {shown}; it must be for {self._audience}")
        if claims.exp <= self._clock.utc().timestamp():
            raise TokenRefusedError("the token has expired; the kubelet renews projected tokens")
        return claims.exp

    async def _review(self, token: str, until: int) -> bus_access.TokenOwner:
        body: dict[str, Any] = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [self._audience]},
        }
        answer = await self._api.call("POST", PATH, body=body, timeout_s=REVIEW_S)
        try:
            status = msgspec.json.decode(answer, type=_Review).status
        except NOT_READABLE as error:
            raise KubeError(0, f"the answer to {PATH} is no TokenReview: {shorten(str(error), 300)}") from error
        if not status.authenticated or status.user is None or self._audience not in (status.audiences or ()):
            why = shorten(status.error, 300) or "no reason given"
            raise TokenRefusedError(f"the API server does not accept the token: {why}")
        extra = status.user.extra or {}
        pod, node = ((extra.get(f"{_EXTRA}{what}-name") or [""])[0] for what in ("pod", "node"))
        return bus_access.TokenOwner(status.user.username, pod, node, until)
