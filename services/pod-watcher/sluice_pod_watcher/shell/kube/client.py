"""One connection to an API server: raw JSON in and out, and the only importer of the Kubernetes client, which refreshes
credentials and pools connections (its typed objects cost several times the processor time: measured). No retries but
one: after a 401, if the credentials were replaced on disk. `kube.credentials` provides the identity."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlencode
from weakref import WeakSet

import aiohttp
import msgspec

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.reasons import shorten
from sluice.runtime import errors, optional_imports
from sluice.runtime.prometheus import metrics
from sluice_pod_watcher.shell.kube.credentials import KubeCredentials, Session
from sluice_pod_watcher.shell.metrics import KUBE_REQUESTS, NO_ANSWER

with optional_imports.without("kubernetes_validate"):  # for its synchronous client, which it imports as well
    from kubernetes.aio.config.config_exception import ConfigException

T = TypeVar("T")
Method = Literal["GET", "POST", "PATCH", "DELETE"]
JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_MERGE = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
CANCELLED_TURNS = 10
_CLOSING_TURNS = 100  # upper bound of event loop turns that closing a connection takes
BAD = 400  # HTTP statuses from here on are failures
UNAUTHORIZED = 401
RETRY_AFTER_MAX_S = 60.0  # the longest pause that an API server may ask for
CALL_S = 15.0  # a call without an answer in this time is abandoned; it may have taken effect
LIST_S = 60.0
LINE_BYTES_MAX = 16 * 1024 * 1024  # One event of a watch. An object in etcd has at most 1.5 MiB by default.


class KubeError(Exception):
    """The API server's `status` and `message`; 0: no answer. `retry_after_s`: the pause it asks for, 0 for none."""

    def __init__(self, status: int, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{message} ({status})" if status else message)
        self.status, self.message, self.retry_after_s = status, message, retry_after_s


class KubeApi:
    """An API server. Methods may be called from many tasks of one event loop."""

    def __init__(self, credentials: KubeCredentials) -> None:
        """Opens nothing before the first call. `credentials` are connected, and closed with this."""
        self._credentials = credentials
        self._transports: WeakSet[asyncio.BaseTransport] = WeakSet()

    @classmethod
    async def connect(cls, kubeconfig: Path | None) -> "KubeApi":
        """Connect with a kubeconfig, or None for the service account of this pod. Raises ServiceError."""
        credentials = KubeCredentials(kubeconfig)
        await credentials.connect()
        return cls(credentials)

    async def close(self) -> None:
        """Close all connections, and wait until their sockets are closed, including those of cancelled calls."""
        await self._credentials.close()
        for _ in range(CANCELLED_TURNS):
            await asyncio.sleep(0)  # a call that was cancelled while connecting closes its own socket
        for transport in list(self._transports):
            await _break_off(transport)

    async def call(
        self,
        method: Method,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        content_type: str = JSON,
        timeout_s: float = CALL_S,
    ) -> bytes:
        """The body of the answer. Raises KubeError."""
        limit = aiohttp.ClientTimeout(total=timeout_s)
        async with self._request(method, path, query or {}, limit, body=body, content_type=content_type) as response:
            return await response.read()

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], timeout_s: float, *, silent_s: float, gather_s: float = 0.0
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of a streamed answer, for at most `timeout_s`, with at most `silent_s` between pieces. `gather_s`:
        how long pieces may wait for each other, since each piece costs a turn of the event loop. Raises KubeError, also
        while lines are read, when the answer breaks off."""
        limit = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CALL_S, sock_read=silent_s)
        async with self._request("GET", path, query, limit) as response:
            connection = response.connection
            try:
                yield _lines(response, gather_s)
            finally:
                await _break_off(connection.transport if connection is not None else None)

    @asynccontextmanager
    async def _request(
        self,
        method: Method,
        path: str,
        query: Mapping[str, str],
        limit: aiohttp.ClientTimeout,
        *,
        body: Any = None,
        content_type: str = JSON,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        async def send(session: Session) -> tuple[str, aiohttp.ClientResponse]:
            token = await session.token()
            headers = {"Accept": JSON, "Content-Type": content_type, "User-Agent": "sluice-pod-watcher"}
            host = str(session.configuration.host).rstrip("/")
            answer = await session.api.rest_client.request(  # type: ignore[no-untyped-call]
                method,
                f"{host}{path}{'?' if query else ''}{urlencode(query)}",
                headers=headers | ({"Authorization": token} if token else {}),
                body=body,
                _request_timeout=limit,
            )
            metrics.count(KUBE_REQUESTS, method, str(answer.response.status))
            connection = answer.response.connection
            if connection is not None and connection.transport is not None:
                self._transports.add(connection.transport)
            return token, answer.response

        try:
            async with self._credentials.used() as session:
                token, response = await send(session)
                if response.status == UNAUTHORIZED and await self._credentials.has_other(session, token):
                    response.release()
                    _, response = await send(session)
                async with response:
                    if response.status >= BAD:
                        why = _message(await response.read())
                        raise KubeError(response.status, why, retry_after_s=_retry_after_s(response))
                    yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            metrics.count(KUBE_REQUESTS, method, NO_ANSWER)
            raise KubeError(0, f"no answer to {method} {path}: {error or type(error).__name__}") from error
        except (ConfigException, errors.ServiceError) as error:
            raise KubeError(0, f"no credentials for {method} {path}: {error}") from error


async def unless(call: Awaitable[T], *statuses: int) -> T | None:
    """The result of a call; None for a call that fails with one of these statuses. Raises KubeError."""
    try:
        return await call
    except KubeError as error:
        if error.status not in statuses:
            raise
        return None


def _retry_after_s(response: aiohttp.ClientResponse) -> float:
    text = response.headers.get("Retry-After", "").strip()
    return min(float(text), RETRY_AFTER_MAX_S) if text.isdecimal() else 0.0


async def _break_off(transport: asyncio.BaseTransport | None) -> None:
    """End a connection on which an answer was still arriving, and wait until its socket is closed. aiohttp only begins
    to close it: a session that is closed meanwhile leaves the TLS transport behind."""
    socket = transport.get_extra_info("socket") if transport is not None else None
    if not isinstance(transport, asyncio.WriteTransport) or socket is None:
        return
    transport.abort()
    for _ in range(_CLOSING_TURNS):
        if socket.fileno() == -1:
            return
        await asyncio.sleep(0)


async def _lines(response: aiohttp.ClientResponse, gather_s: float) -> AsyncIterator[bytes]:
    rest = bytearray()
    async for part in response.content.iter_any():
        rest += part
        if b"\n" not in part:
            if len(rest) > LINE_BYTES_MAX:
                raise KubeError(0, f"an event is over {LINE_BYTES_MAX} bytes")
            continue
        *whole, last = bytes(rest).split(b"\n")
        rest = bytearray(last)
        for line in whole:
            if line:
                yield line
        if gather_s:
            await asyncio.sleep(gather_s)


SAID_MAX = 900
"""Characters of a failure's message. It goes to logs, Events and conditions, and other webhooks write it."""


class _Status(msgspec.Struct):
    message: str = ""


def _message(body: bytes) -> str:
    try:
        said = msgspec.json.decode(body, type=_Status).message
        return shorten(said, SAID_MAX) or "refused without a message"
    except NOT_READABLE:
        return body[:200].decode("utf-8", "replace") or "refused without a message"
