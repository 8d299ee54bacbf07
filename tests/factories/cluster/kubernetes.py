"""A cluster, fake or real, behind one interface; what only the fake can do is `Cluster.fake`, else a skip."""

import asyncio
import contextlib
import ipaddress
import json
import secrets
import ssl
import urllib.parse
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from factories.waiting import until
from fake_kube.server import FakeKube
from kubernetes.aio import client, config

from sluice.contracts.kube.names import GATE, LABEL_IGNORE

Json = dict[str, Any]
JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
LABEL_TEST = "sluice.dev/test"
LEFT_ALONE = {LABEL_IGNORE: "true", LABEL_TEST: "true"}
"""Of a test's namespace on a real cluster: a Sluice that is installed there leaves it alone."""
WAIT_S = 90.0
"""The longest that anything is waited for: a real cluster's controllers are seconds behind."""
CLOSING_TURNS = 10_000
"""Of the loop, until a broken connection must be closed; a few are enough."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The server's answer to one request."""

    code: int
    body: Json
    warnings: list[str]

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))

    @property
    def reason(self) -> str:
        return str(self.body.get("reason", ""))

    @property
    def items(self) -> list[Json]:
        return list(self.body["items"])

    def refused(self, code: int, reason: str, *words: str) -> None:
        """The request was refused, with this text in the message."""
        assert (self.code, self.reason) == (code, reason), self
        assert all(each in self.message for each in words), self.message


class Stream:
    """An open watch: its events one by one, each waited for with a bound."""

    def __init__(self, response: aiohttp.ClientResponse, wait_s: float = WAIT_S) -> None:
        self._response, self._wait_s = response, wait_s

    async def next(self) -> Json | None:
        """The next event, or None where the server ended the stream in order."""
        async with asyncio.timeout(self._wait_s):
            line = await self._response.content.readline()
        return json.loads(line) if line else None

    async def until(self, kind: str) -> list[Json]:
        """All events up to and with the first of this type."""
        seen: list[Json] = []
        while not seen or seen[-1]["type"] != kind:
            event = await self.next()
            assert event is not None, f"the stream ended before {kind}: {seen}"
            seen.append(event)
        return seen


@dataclass(slots=True)
class Cluster:
    """One cluster, as the administrator sees it."""

    kubeconfig: Path
    fake: FakeKube | None = None
    _session: aiohttp.ClientSession | None = None
    _of_others: aiohttp.ClientSession | None = None
    """Without the administrator's certificate: a server takes the user of that, whatever token comes with it."""
    _base: str = ""
    _header: str = ""
    _nodes: list[str] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator["Cluster"]:
        """With connections, in the loop that will use them."""
        settings = await self.configuration()
        self._base = settings.host.rstrip("/")
        self._header = await settings.get_api_key_with_prefix("BearerToken") or ""
        authority = {"cafile": settings.ssl_ca_cert, "cadata": settings.ca_cert_data}
        others, mine = ssl.create_default_context(**authority), ssl.create_default_context(**authority)
        if settings.cert_file:
            mine.load_cert_chain(settings.cert_file, settings.key_file)
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=mine)) as self._session,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=others)) as self._of_others,
        ):
            yield self

    async def configuration(self) -> client.Configuration:
        settings = client.Configuration()
        file = str(self.kubeconfig)
        await config.load_kube_config(config_file=file, client_configuration=settings, persist_config=False)
        return settings

    @contextlib.asynccontextmanager
    async def official(self, token: str | None = None) -> AsyncIterator[client.ApiClient]:
        """The official client, as the administrator or with a token."""
        settings = await self.configuration()
        if token is not None:
            settings.cert_file = settings.key_file = None
            settings.api_key = {"BearerToken": f"Bearer {token}"}
        async with client.ApiClient(settings) as api:
            yield api

    @property
    def is_here(self) -> bool:
        """Whether its API server is on this machine, at the loopback."""
        return ipaddress.ip_address(urllib.parse.urlsplit(self._base).hostname or "0.0.0.0").is_loopback

    # -- requests ---------------------------------------------------------------------------------------------------

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        kind: str = "application/json",
        token: str | None = None,
        **query: Any,
    ) -> Reply:
        """One request; a patch's `kind` is its content type. With a token it is sent as the token's owner."""
        data = body if isinstance(body, str | bytes) else None if body is None else json.dumps(body)
        async with self._open(method, path, data, kind, token, query) as response:
            text = await response.text()
            warnings = [each.partition('"')[2].rpartition('"')[0] for each in response.headers.getall("Warning", [])]
            return Reply(response.status, json.loads(text) if text.startswith("{") else {"text": text}, warnings)

    async def get(self, path: str, **query: Any) -> Reply:
        return await self.ask("GET", path, **query)

    async def post(self, path: str, body: Any, **query: Any) -> Reply:
        return await self.ask("POST", path, body, **query)

    async def create(self, path: str, body: Any, **query: Any) -> Json:
        """What was created, which must succeed."""
        reply = await self.post(path, body, **query)
        assert reply.code == 201, reply
        return reply.body

    async def delete(self, path: str, body: Any = None, **query: Any) -> Reply:
        return await self.ask("DELETE", path, body, **query)

    async def patch(self, path: str, body: Any, kind: str | None = None, **query: Any) -> Reply:
        """PATCH: a list is a JSON patch, an object a strategic merge, as the official client does."""
        kind = kind or (JSON_PATCH if isinstance(body, list) else STRATEGIC)
        return await self.ask("PATCH", path, body, kind=kind, **query)

    @contextlib.asynccontextmanager
    async def watch(self, path: str, *, wait_s: float = WAIT_S, **query: Any) -> AsyncIterator[Stream]:
        """A watch that has been accepted; `wait_s`: the longest between two events, at most `4 * WAIT_S` in all."""
        async with self._open("GET", path, None, "application/json", None, {"watch": "true", **query}) as response:
            assert response.status == 200, await response.text()
            connection = response.connection
            try:
                yield Stream(response, wait_s)
            finally:
                await _broken(connection.transport if connection is not None else None)

    def _open(self, method: str, path: str, data: Any, kind: str, token: str | None, query: Json) -> Any:
        session = self._session if token is None else self._of_others
        header = f"Bearer {token}" if token is not None else self._header
        headers = {"Content-Type": kind, **({"Authorization": header} if header else {})}
        url = f"{self._base}{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
        return session.request(method, url, data=data, headers=headers, timeout=aiohttp.ClientTimeout(total=WAIT_S * 4))

    # -- things to have ---------------------------------------------------------------------------------------------

    async def namespace(self, **labels: str) -> str:
        """A namespace of one's own, with these labels beside those of all tests."""
        name = f"sluice-test-{secrets.token_hex(4)}"
        labels = ({LABEL_TEST: "true"} if self.fake is not None else LEFT_ALONE) | labels
        await self.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        if self.fake is None:
            await self.until(f"/api/v1/namespaces/{name}/serviceaccounts/default", 200)
        return name

    async def node(self, name: str = "") -> str:
        """A Node object without a kubelet behind it; removed with `cleaned`."""
        name = name or f"sluice-test-{secrets.token_hex(4)}"
        await self.create("/api/v1/nodes", {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
        self._nodes.append(name)
        return name

    async def cleaned(self) -> None:
        while self._nodes:
            await self.delete(f"/api/v1/nodes/{self._nodes.pop()}")

    async def account(self, namespace: str, name: str, rules: list[Json], cluster_rules: Sequence[Json] = ()) -> str:
        """The token of a service account with these rights in its namespace, and these in the cluster."""
        await self.post(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
        subject = [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]
        group = "rbac.authorization.k8s.io"
        for kind, wanted, path in (
            ("Role", rules, f"/apis/{group}/v1/namespaces/{namespace}"),
            ("ClusterRole", cluster_rules, f"/apis/{group}/v1"),
        ):
            if not wanted:
                continue
            called = name if kind == "Role" else f"{namespace}-{name}"
            await self.create(f"{path}/{kind.lower()}s", {"metadata": {"name": called}, "rules": wanted})
            reference = {"apiGroup": group, "kind": kind, "name": called}
            body = {"metadata": {"name": called}, "roleRef": reference, "subjects": subject}
            await self.create(f"{path}/{kind.lower()}bindings", body)
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        made = await self.create(path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})
        return str(made["status"]["token"])

    async def until(self, ask: str | Callable[[], Any], good: int | Callable[[Reply], bool]) -> Reply:
        """Ask again (or get a path) until the answer is good (a code, or a test of the reply)."""
        answers: list[Reply] = []

        async def look() -> bool:
            answers[:] = [await (self.get(ask) if isinstance(ask, str) else ask())]
            return bool(answers[0].code == good if isinstance(good, int) else good(answers[0]))

        await until(look, lambda: f"it is good; last: {answers}")
        return answers[0]

    def only_fake(self, why: str) -> FakeKube:
        """The fake, or skip: `why` names what a real cluster lacks."""
        if self.fake is None:
            pytest.skip(f"needs what a real cluster does not give: {why}")
        return self.fake


async def _broken(transport: asyncio.BaseTransport | None) -> None:
    """Break a watch's connection, and wait until its socket is closed: with TLS that takes turns of the loop."""
    socket = transport.get_extra_info("socket") if transport is not None else None
    if socket is None:
        return
    transport.abort()
    for _ in range(CLOSING_TURNS):
        if socket.fileno() == -1:
            return
        await asyncio.sleep(0)


# -- objects to send --------------------------------------------------------------------------------------------------


def pod(name: str = "p", *, gates: tuple[str, ...] = (GATE,), annotations: Json | None = None, **spec: Any) -> Json:
    """A pod with one container `main`, by default gated by Sluice."""
    containers = [{"name": "main", "image": "busybox:1.36", "command": ["sleep", "3600"]}]
    gated = {"schedulingGates": [{"name": gate} for gate in gates]} if gates else {}
    about = {"name": name} | ({"annotations": annotations} if annotations else {})
    return {"kind": "Pod", "apiVersion": "v1", "metadata": about, "spec": {"containers": containers, **gated, **spec}}


def deployment(name: str, replicas: int, spec: Json, annotations: Json | None = None) -> Json:
    """Of pods with this spec; its name is their label `app`."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels, "annotations": annotations or {}}, "spec": spec}
    wanted = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": wanted}


def test(path: str, value: Any) -> Json:
    return {"op": "test", "path": path, "value": value}


test.__test__ = False  # type: ignore[attr-defined] # it is no test


def add(path: str, value: Any) -> Json:
    return {"op": "add", "path": path, "value": value}


def remove(path: str) -> Json:
    return {"op": "remove", "path": path}


def named(name: str) -> list[Json]:
    """`matchFields` that choose one node."""
    return [{"key": "metadata.name", "operator": "In", "values": [name]}]


def pinned(name: str) -> Json:
    terms = [{"matchFields": named(name)}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
