"""Credentials for the API server are rotated under a running pod-watcher: certificates, authorities, tokens."""

import asyncio
import gc
import itertools
import ssl
from asyncio.base_subprocess import BaseSubprocessTransport
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
import structlog
from aiohttp import web
from factories.credentials import CLIENT, SERVER, Authority
from factories.waiting import until

from sluice.runtime.errors import ServiceError
from sluice_pod_watcher.shell.kube import credentials
from sluice_pod_watcher.shell.kube.client import KubeApi, KubeError

SECRET = "marked-token-0123456789"
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: k, user: u}}}}]
clusters: [{{name: k, cluster: {{{cluster}}}}}]
users: [{{name: u, user: {{{user}}}}}]
"""


class ApiServer:
    """Requires a client certificate, and records its name and the token. A test changes what it shows and trusts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.servers, self.users = Authority(folder / "servers", "servers"), Authority(folder / "users", "users")
        self.port = 0
        self.goes_on = asyncio.Event()
        self.waiting = asyncio.Event()
        self._runner: web.AppRunner | None = None

    async def listen(self) -> None:
        """With its authorities' current certificates; restarts if it listens already."""
        app = web.Application()
        app.router.add_get("/who", self._who)
        app.router.add_get("/slow", self._slow)
        await self.stop()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.servers.files("api", "localhost", usages=(SERVER,)).certificate)
        context.load_verify_locations(cadata=self.users.pair.certificate.decode())
        context.verify_mode = ssl.CERT_REQUIRED
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=context).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def kubeconfig(self, user: str, *, token: str = "first") -> Path:
        """With a certificate, an authority and a token, all in files of their own but the token."""
        made = self.users.files("user", user, usages=(CLIENT,))
        authority = self.folder / "api-ca.crt"
        authority.write_bytes(self.servers.pair.certificate)
        path = self.folder / "kubeconfig"
        cluster = f'server: "https://localhost:{self.port}", certificate-authority: {authority}'
        user = f"client-certificate: {made.certificate}, client-key: {made.key}, token: {token}"
        path.write_text(KUBECONFIG.format(cluster=cluster, user=user))
        return path

    async def _who(self, request: web.Request) -> web.Response:
        shown = request.transport.get_extra_info("peercert")
        return web.json_response([shown["subjectAltName"][0][1], request.headers.get("Authorization", "")])

    async def _slow(self, _request: web.Request) -> web.Response:
        self.waiting.set()
        await self.goes_on.wait()
        return web.Response(text="done")


@pytest_asyncio.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    """A server that listens; credentials are checked before each call."""
    monkeypatch.setattr(credentials, "RELOAD_S", 0.0)
    made = ApiServer(tmp_path)
    await made.listen()
    yield made
    await made.stop()


@pytest_asyncio.fixture
async def api(server: ApiServer) -> AsyncIterator[KubeApi]:
    found = await KubeApi.connect(server.kubeconfig("first.example"))
    yield found
    await found.close()


async def test_a_new_certificate_and_a_new_token_are_used_by_the_next_call(server: ApiServer, api: KubeApi) -> None:
    """A renewed certificate needs no restart of the pod-watcher; an open watch goes on."""
    assert await api.call("GET", "/who") == b'["first.example", "Bearer first"]'
    slow = asyncio.ensure_future(api.call("GET", "/slow"))
    async with asyncio.timeout(60):
        await server.waiting.wait()
    server.kubeconfig("second.example", token="second")
    assert await api.call("GET", "/who") == b'["second.example", "Bearer second"]'
    server.goes_on.set()
    assert await slow == b"done"


async def test_an_authority_that_is_withdrawn_is_believed_no_more(server: ApiServer, api: KubeApi) -> None:
    """Both sides change to new authorities; certificates of the old ones are refused."""
    await api.call("GET", "/who")
    old = server.servers, server.users
    server.servers = Authority(server.folder / "new-servers", "servers")
    server.users = Authority(server.folder / "new-users", "users")
    await server.listen()
    with pytest.raises(KubeError, match="no answer to GET /who: "):
        await api.call("GET", "/who")
    server.kubeconfig("third.example")
    assert await api.call("GET", "/who") == b'["third.example", "Bearer first"]'
    server.servers, server.users = old
    await server.listen()
    with pytest.raises(KubeError, match="no answer to GET /who: "):
        await api.call("GET", "/who")


async def cancelled(api: KubeApi, *, when: asyncio.Event) -> None:
    call = asyncio.ensure_future(api.call("GET", "/who"))
    async with asyncio.timeout(60):
        await when.wait()
    call.cancel()
    await asyncio.wait((call,))


async def test_a_call_that_is_cancelled_while_credentials_are_read_loses_none_of_them(server, api, monkeypatch) -> None:
    """The lease is lost and regained in that moment: an expired certificate would be shown until the next restart."""
    assert await api.call("GET", "/who") == b'["first.example", "Bearer first"]'
    reading, load = asyncio.Event(), credentials.load

    async def slow(*_: Any) -> Any:
        reading.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(credentials, "load", slow)
    server.kubeconfig("second.example", token="second")
    await cancelled(api, when=reading)
    monkeypatch.setattr(credentials, "load", load)
    assert await api.call("GET", "/who") == b'["second.example", "Bearer second"]'


async def test_a_call_that_is_cancelled_behind_new_credentials_leaves_no_connection_of_the_old_ones(
    server: ApiServer, api: KubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would hold a socket, and our identity, as long as the process runs."""
    await api.call("GET", "/who")
    held = api._credentials
    old, calls, last, signature = held.session, itertools.count(1), asyncio.Event(), held._signature

    async def slow_at_last() -> Any:
        if next(calls) == 1:
            return await signature()
        last.set()
        return await asyncio.Event().wait()

    monkeypatch.setattr(held, "_signature", slow_at_last)
    server.kubeconfig("second.example", token="second")
    await cancelled(api, when=last)
    monkeypatch.setattr(held, "_signature", signature)
    assert await api.call("GET", "/who") == b'["second.example", "Bearer second"]'
    assert old.api.rest_client.pool_manager.closed


SPOILERS: dict[str, Callable[[ApiServer], Any]] = {
    "no YAML": lambda s: (s.folder / "kubeconfig").write_text(f"users: [{{user: {{token: {SECRET}}}\n  x: ]"),
    "other YAML": lambda s: (s.folder / "kubeconfig").write_text(f"- {SECRET}\n"),
    "no certificate": lambda s: (s.folder / "users" / "user.pem").write_text(SECRET),
    "no authority": lambda s: (s.folder / "api-ca.crt").write_text(SECRET),
    "gone": lambda s: (s.folder / "kubeconfig").unlink(),
}


@pytest.mark.parametrize("how", SPOILERS)
async def test_credentials_that_turn_bad_cut_no_watch_off_and_are_not_logged(server, api, how) -> None:
    """Half of a rotation leaves the watch open; and the log, which has more readers than the file, holds no secret."""
    await api.call("GET", "/who")
    SPOILERS[how](server)
    with structlog.testing.capture_logs() as logged:
        for _ in range(2):
            assert await api.call("GET", "/who") == b'["first.example", "Bearer first"]'
    (line,) = [each for each in logged if each["log_level"] == "error"]
    assert line["event"] == "the new credentials are invalid; the old ones stay in use"
    assert SECRET not in str(logged)
    with pytest.raises(ServiceError) as caught:
        await KubeApi.connect(server.folder / "kubeconfig")
    assert SECRET not in str(caught.value)


async def test_a_program_for_credentials_that_hangs_is_ended_and_named(tmp_path: Path, monkeypatch) -> None:
    """The pod-watcher would wait for it without end, and silently serve nothing."""
    monkeypatch.setattr(credentials, "EXEC_S", 0.5)
    started = tmp_path / "pid"
    path = tmp_path / "kubeconfig"
    program = f'command: sh, args: [-c, "echo $$ > {started}; exec sleep 60"]'
    user = f"exec: {{apiVersion: client.authentication.k8s.io/v1, {program}}}"
    path.write_text(KUBECONFIG.format(cluster='server: "https://localhost:1"', user=user))
    with pytest.raises(ServiceError, match=f"{path} did not answer within 0.5 s"):
        await credentials.load(path)
    pid = int(started.read_text())

    async def ended() -> bool:
        # The loop reaps its child itself: if we waited for it here, the loop might never notice its end.
        transports = [each for each in gc.get_objects() if issubclass(type(each), BaseSubprocessTransport)]
        return not psutil.pid_exists(pid) and all(each.is_closing() for each in transports if each.get_pid() == pid)

    await until(ended)
