"""
One connection to an API server: raw JSON in and out. The only importer of the Kubernetes client.

The official client finds and refreshes credentials, trusts certificates and pools connections; its typed objects are
not used, for they cost several times the processor time (measured against a real API server). Nothing is retried here.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

import aiohttp
import msgspec
from kubernetes.aio import client, config
from kubernetes.aio.config.config_exception import ConfigException

from sluice.runtime.errors import ServiceError

Method = Literal["GET", "POST", "PATCH", "DELETE"]
JSON_PATCH = "application/json-patch+json"
STRATEGIC_MERGE = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
_CLOSING_TURNS = 100
"""More turns of the loop than closing a connection takes."""
BAD = 400
"""From this HTTP status on it is a refusal."""
CALL_S = 15.0
"""A call without an answer in this time is given up; it may have taken effect."""
LIST_S = 60.0
LINE_BYTES_MAX = 16 * 1024 * 1024
"""One event of a watch. An object of etcd has at most 1.5 MiB by default."""


class KubeError(Exception):
    """The API server refused with this HTTP `status` and `message`; 0 when no answer came."""

    def __init__(self, status: int, message: str) -> None:
        """Say what came back."""
        super().__init__(f"{message} ({status})" if status else message)
        self.status = status
        self.message = message


class KubeApi:
    """An API server. Methods may be called from many tasks of one event loop."""

    def __init__(self, configuration: client.Configuration) -> None:
        """Nothing is opened before the first call."""
        self._api = client.ApiClient(configuration)
        self._host = str(configuration.host).rstrip("/")

    @classmethod
    async def connect(cls, kubeconfig: Path | None) -> "KubeApi":
        """
        By a kubeconfig, or None for the service account of the pod that this runs in.

        Raises:
            ServiceError: when there are no usable credentials.
        """
        configuration = client.Configuration()
        try:
            if kubeconfig is None:
                config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            else:
                await config.load_kube_config(  # type: ignore[no-untyped-call]
                    config_file=str(kubeconfig), client_configuration=configuration, persist_config=False
                )
        except (ConfigException, OSError) as error:
            where = f"the kubeconfig {kubeconfig}" if kubeconfig is not None else "the pod's service account"
            raise ServiceError(f"{where} cannot be used: {error}") from error
        return cls(configuration)

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()  # type: ignore[no-untyped-call]

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
        self, path: str, query: Mapping[str, str], timeout_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """
        The lines of an answer that comes piece by piece, for at most `timeout_s`.

        Raises KubeError, also while lines are read, when the answer breaks off.
        """
        limit = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CALL_S)
        async with self._request("GET", path, query=query, limit=limit) as response:
            connection = response.connection
            try:
                yield _lines(response)
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
        headers = {"Accept": "application/json", "Content-Type": content_type, "User-Agent": "sluice-pod-watcher"}
        try:
            await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
            answer = await self._api.rest_client.request(  # type: ignore[no-untyped-call]
                method, url, headers=headers, body=body, _request_timeout=limit
            )
            async with answer.response as response:
                if response.status >= BAD:
                    raise KubeError(response.status, _message(await response.read()))
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise KubeError(0, f"no answer to {method} {path}: {error or type(error).__name__}") from error


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


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
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


class _Status(msgspec.Struct):
    message: str = ""


def _message(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Status).message or "refused without a word"
    except msgspec.DecodeError:
        return body[:200].decode("utf-8", "replace") or "refused without a word"
