"""
One connection to an API server: raw JSON in and out. The only importer of the Kubernetes client.

The official client finds and refreshes credentials, trusts certificates and pools connections; its typed objects are
not used, for they cost several times the processor time (measured against a real API server). Nothing is retried here,
but for one thing: a request refused as unauthorised (401) is sent once more if the credentials, read anew, are others.
A token is replaced while it is in use, and has taken no effect then.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode
from weakref import WeakSet

import aiohttp
import msgspec
import yaml
from kubernetes.aio import client, config
from kubernetes.aio.config.config_exception import ConfigException

from sluice.runtime.errors import ServiceError

Method = Literal["GET", "POST", "PATCH", "DELETE"]
JSON_PATCH = "application/json-patch+json"
STRATEGIC_MERGE = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
_NOT_THE_SHAPE = (TypeError, KeyError, ValueError, AttributeError)
"""What the client raises over YAML that is something else than a kubeconfig."""
CANCELLED_TURNS = 10
_CLOSING_TURNS = 100
"""More turns of the loop than closing a connection takes."""
BAD = 400
"""From this HTTP status on it is a refusal."""
UNAUTHORIZED = 401
RELOAD_S = 1.0
"""How often credentials are read anew, at most."""
RETRY_AFTER_MAX_S = 60.0
"""The longest pause that an API server may ask for."""
CALL_S = 15.0
"""A call without an answer in this time is given up; it may have taken effect."""
LIST_S = 60.0
LINE_BYTES_MAX = 16 * 1024 * 1024
"""One event of a watch. An object of etcd has at most 1.5 MiB by default."""


Reload = Callable[[client.Configuration], Awaitable[None]]


class KubeError(Exception):
    """
    The API server refused with this HTTP `status` and `message`; 0 when no answer came.

    `retry_after_s`: the pause that it asks for (`Retry-After`, with 429 and 503), 0 when it asks for none.
    """

    def __init__(self, status: int, message: str, *, retry_after_s: float = 0.0) -> None:
        """Say what came back."""
        super().__init__(f"{message} ({status})" if status else message)
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s


class KubeApi:
    """An API server. Methods may be called from many tasks of one event loop."""

    def __init__(self, configuration: client.Configuration, reload: Reload) -> None:
        """Nothing is opened before the first call. `reload` reads the credentials into the configuration anew."""
        self._api = client.ApiClient(configuration)
        self._host = str(configuration.host).rstrip("/")
        self._configuration, self._reload = configuration, reload
        self._transports: WeakSet[asyncio.BaseTransport] = WeakSet()
        self._reloading = asyncio.Lock()
        self._reload_at = float("-inf")

    @classmethod
    async def connect(cls, kubeconfig: Path | None) -> "KubeApi":
        """
        By a kubeconfig, or None for the service account of the pod that this runs in.

        Raises:
            ServiceError: when there are no usable credentials.
        """
        configuration, reload = client.Configuration(), partial(_load, kubeconfig)
        await reload(configuration)
        return cls(configuration, reload)

    async def close(self) -> None:
        """Close all connections, and wait until their sockets are closed, also those of calls that were cancelled."""
        await self._api.close()  # type: ignore[no-untyped-call]
        for _ in range(CANCELLED_TURNS):
            await asyncio.sleep(0)  # a call that was cancelled while it connected closes what it had by itself
        for transport in list(self._transports):
            await _break_off(transport)

    async def call(
        self,
        method: Method,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        content_type: str = "application/json",
        timeout_s: float = CALL_S,
    ) -> bytes:
        """The body of the answer. Raises KubeError."""
        limit = aiohttp.ClientTimeout(total=timeout_s)
        async with self._request(
            method, path, query=query or {}, body=body, content_type=content_type, limit=limit
        ) as response:
            return await response.read()

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], timeout_s: float, *, silent_s: float, gather_s: float = 0.0
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """
        The lines of an answer that comes piece by piece, for at most `timeout_s`, at most `silent_s` between pieces.

        `gather_s`: pieces may wait so long for each other. Each that comes by itself costs a turn of everything.

        Raises KubeError, also while lines are read, when the answer breaks off.
        """
        limit = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CALL_S, sock_read=silent_s)
        async with self._request("GET", path, query=query, limit=limit) as response:
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
        *,
        query: Mapping[str, str],
        body: Any = None,
        content_type: str = "application/json",
        limit: aiohttp.ClientTimeout,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        url = f"{self._host}{path}{'?' if query else ''}{urlencode(query)}"

        async def send() -> tuple[str, aiohttp.ClientResponse]:
            token = await self._token()
            headers = {"Accept": "application/json", "Content-Type": content_type, "User-Agent": "sluice-pod-watcher"}
            answer = await self._api.rest_client.request(  # type: ignore[no-untyped-call]
                method,
                url,
                headers=headers | ({"Authorization": token} if token else {}),
                body=body,
                _request_timeout=limit,
            )
            connection = answer.response.connection
            if connection is not None and connection.transport is not None:
                self._transports.add(connection.transport)
            return token, answer.response

        try:
            token, response = await send()
            if response.status == UNAUTHORIZED and await self._has_other_credentials(token):
                response.release()
                _, response = await send()
            async with response:
                if response.status >= BAD:
                    raise KubeError(
                        response.status, _message(await response.read()), retry_after_s=_retry_after_s(response)
                    )
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise KubeError(0, f"no answer to {method} {path}: {error or type(error).__name__}") from error
        except (ConfigException, ServiceError) as error:
            raise KubeError(0, f"no credentials for {method} {path}: {error}") from error

    async def _token(self) -> str:
        """What is sent as authorisation; the client reads a service account's token anew every minute."""
        found = (await self._configuration.auth_settings()).get("BearerToken")
        return str(found["value"] or "").strip() if found else ""

    async def _has_other_credentials(self, refused: str) -> bool:
        """Whether there are others than those that were refused; they are read anew to find out."""
        async with self._reloading:
            now = asyncio.get_running_loop().time()
            if await self._token() == refused and now >= self._reload_at:
                self._reload_at = now + RELOAD_S
                await self._reload(self._configuration)
            return await self._token() != refused


async def _load(kubeconfig: Path | None, configuration: client.Configuration) -> None:
    """Read credentials into a configuration. Raises ServiceError."""
    if kubeconfig is None:
        try:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except (ConfigException, OSError) as error:
            raise ServiceError(
                f"the service account of the pod cannot be used: {error} "
                "(outside a pod SLUICE_POD_WATCHER_KUBECONFIG names a kubeconfig)"
            ) from error
        return
    try:
        await asyncio.to_thread(kubeconfig.read_bytes)  # the client takes one that is not there for an empty one
        await config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=str(kubeconfig), client_configuration=configuration, persist_config=False
        )
    except OSError as error:
        raise ServiceError(f"the kubeconfig {kubeconfig} cannot be read: {error.strerror or error}") from error
    except (ConfigException, yaml.YAMLError, *_NOT_THE_SHAPE) as error:
        raise ServiceError(f"{kubeconfig} is no kubeconfig that can be used: {_one_line(error)}") from error


def _retry_after_s(response: aiohttp.ClientResponse) -> float:
    """In seconds, as API servers write it; a date is not understood."""
    text = response.headers.get("Retry-After", "").strip()
    return min(float(text), RETRY_AFTER_MAX_S) if text.isdecimal() else 0.0


def _one_line(error: Exception) -> str:
    """A parser's error has several."""
    return " ".join(f"{type(error).__name__}: {error}".split())


async def _break_off(transport: asyncio.BaseTransport | None) -> None:
    """
    End a connection on which an answer was still coming, and wait until its socket is closed.

    aiohttp only begins to close it; with TLS that takes turns of the loop, and a session that is closed meanwhile
    leaves the transport behind.
    """
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


class _Status(msgspec.Struct):
    message: str = ""


def _message(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Status).message or "refused without a word"
    except msgspec.DecodeError:
        return body[:200].decode("utf-8", "replace") or "refused without a word"
