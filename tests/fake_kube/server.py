"""
The fake API server as tests hold it: a thread with a loop, a port, a certificate, tokens and a kubeconfig.

Everything a test does from outside goes through `call`, which carries it into the server's loop, so that requests and
tests never see each other half done.
"""

import asyncio
import ssl
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml
from aiohttp import web
from fake_kube import certificates, resource_types
from fake_kube.admission import Admission
from fake_kube.calls import stamp
from fake_kube.components.claim_controller import ClaimController
from fake_kube.components.controllers import Controllers
from fake_kube.components.nodes import Nodes
from fake_kube.errors import Json
from fake_kube.faults import Faults
from fake_kube.http import Front
from fake_kube.kinds.crds import DEFINITIONS
from fake_kube.kinds.events import CORE_EVENTS
from fake_kube.rbac import MASTERS, Access, User, service_account
from fake_kube.requests.verbs import Verbs
from fake_kube.requests.watch import Lister
from fake_kube.resource_types import Resource
from fake_kube.store import Backup, Store
from fake_kube.webhooks import Condition, Routes

T = TypeVar("T")
CALL_LIMIT_S = 30.0
"""The longest a test's own step may take in the server's loop; more means that the loop is stuck."""
ADMIN = User("kubernetes-admin", (MASTERS, "system:authenticated"))
NAMESPACES = ("default", "kube-system", "kube-public")


class FakeKube:
    """One server; a context manager that starts and stops it."""

    def __init__(self) -> None:
        self.store = Store()
        self.access = Access(self.store)
        self.routes = Routes()
        self.admission = Admission(self.store, self.routes)
        self.lister = Lister(self.store)
        self.verbs = Verbs(self.store, self.access, self.admission, self.lister)
        self.faults = Faults(self)
        self.nodes = Nodes(self)
        self.controllers = Controllers(self)
        self.claims = ClaimController(self)
        self.port = 0
        self.without: set[str] = set()
        """Groups that are not served: an API server below 1.34 has no resource.k8s.io in version v1."""
        self.admin_token = self.access.token(ADMIN)
        self._custom: list[Resource] = []
        self._folder = tempfile.TemporaryDirectory(prefix="fake-kube-")
        self.ca_file = Path(self._folder.name) / "ca.crt"
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="fake-kube")

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        """Start, and return when it answers. Raises RuntimeError: if it could not."""
        self._thread.start()
        if not self._ready.wait(CALL_LIMIT_S) or self._failure is not None:
            raise RuntimeError(f"the fake API server did not start: {self._failure}")
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(CALL_LIMIT_S)
        self._folder.cleanup()
        if self._failure is not None:
            raise RuntimeError("the fake API server failed while it ran") from self._failure

    # -- what tests use ---------------------------------------------------------------------------------------------

    def call(self, action: Callable[[], T]) -> T:
        """Run something in the server's loop, and wait for it (at most 30 s)."""
        if threading.current_thread() is self._thread:
            return action()

        async def run() -> T:
            return action()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(CALL_LIMIT_S)

    def kubeconfig(self, path: Path, *, token: str | None = None, namespace: str = "default") -> Path:
        """Write a kubeconfig, by default the administrator's; the path is returned."""
        cluster = {"server": self.url, "certificate-authority": str(self.ca_file)}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": cluster}],
            "users": [{"name": "user", "user": {"token": token or self.admin_token}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "user", "namespace": namespace}}],
            "current-context": "fake",
        }
        path.write_text(yaml.safe_dump(document))
        return path

    def bound_token(self, namespace: str, name: str, **bound: Any) -> str:
        """A projected token of a service account for the bus (`rbac.Access.bound_token`)."""
        audience = bound.pop("audience", "sluice-bus")
        return self.call(lambda: self.access.bound_token(service_account(namespace, name), audience, **bound))

    def service_account_token(self, namespace: str, name: str) -> str:
        """A token of a service account, whether or not there is such an object."""
        return self.call(lambda: self.access.token(service_account(namespace, name)))

    def route_service(self, namespace: str, name: str, *, host: str, port: int) -> None:
        """A webhook's `clientConfig.service` is really at this place."""
        self.call(lambda: self.routes.services.update({(namespace, name): (host, port)}))

    def match_condition(self, name: str, predicate: Condition) -> None:
        """What stands for the CEL text of the matchCondition of this name."""
        self.call(lambda: self.routes.conditions.update({name: predicate}))

    def get(self, resource: str, namespace: str, name: str) -> Json | None:
        """An object as it is in the store (do not change it), by the resource's full name: `gpus.sluice.dev`."""
        return self.call(lambda: self.store.get(resource, namespace, name))

    def all(self, resource: str, namespace: str = "") -> list[Json]:
        """All objects of a resource as they are in the store (do not change them)."""
        return self.call(lambda: self.store.listed(resource, namespace))

    def count(self, *, verb: str = "*", path: str = "*", user: str = "*") -> int:
        """How many requests of a verb to a path there were."""
        wanted = (user, verb, path)
        seen = self.call(lambda: list(self.front.requests))
        return sum(all(want in {"*", got} for want, got in zip(wanted, each, strict=True)) for each in seen)

    def restart(self, *, skip: int, backup: Backup | None = None) -> None:
        """Kill the server's front and start it on the same port; see `Faults.restart` and `Faults.restore`."""
        asyncio.run_coroutine_threadsafe(self._restart(skip, backup), self.loop).result(CALL_LIMIT_S)

    def away(self, *, on: bool) -> None:
        """Stop listening and break what is connected, or listen again on the same port; see `Faults.away`."""
        asyncio.run_coroutine_threadsafe(self._away() if on else self._listen(), self.loop).result(CALL_LIMIT_S)

    # -- the thread -------------------------------------------------------------------------------------------------

    def resources(self) -> list[Resource]:
        built_in = [each for each in resource_types.BUILT_IN if each.group not in self.without]
        return [*built_in, CORE_EVENTS, *self._custom]

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as failure:  # noqa: BLE001 - handed to the test's thread, which raises it
            self._failure = failure
        finally:
            self._ready.set()

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.front = Front(self.store, self.access, self.verbs, self.faults, self.resources)
        self.store.listen(lambda resource, change: self._definitions(resource))
        for name in NAMESPACES:
            meta = {
                "name": name,
                "uid": f"ns-{name}",
                "creationTimestamp": stamp(),
                "labels": {"kubernetes.io/metadata.name": name},
            }
            status = {"phase": "Active"}
            self.store.put(
                "namespaces", {"kind": "Namespace", "apiVersion": "v1", "metadata": meta, "spec": {}, "status": status}
            )
        made = certificates.make("fake-kube", folder=Path(self._folder.name))
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(made.certificate, made.key)
        self._runner = web.AppRunner(self.front.application(), access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await self._listen()
        self.nodes.start()
        self.controllers.start()
        self.claims.start()
        self._ready.set()
        try:
            await self._stop.wait()
        finally:
            await self.controllers.stop()
            await self.front.cut_all()
            await self._runner.cleanup()
            await self.loop.shutdown_default_executor()

    async def _listen(self) -> None:
        self._site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._tls)
        await self._site.start()
        self.port = self._runner.addresses[0][1]

    async def _away(self) -> None:
        await self._site.stop()
        await self.front.cut_all()

    async def _restart(self, skip: int, backup: Backup | None) -> None:
        await self._away()
        self.store.skip_versions(skip)
        self.store.compact()
        if backup is not None:
            self.store.restore(backup)
        await self._listen()

    def _definitions(self, resource: str) -> None:
        if resource == DEFINITIONS:
            self._custom = [resource_types.from_definition(each) for each in self.store.listed(DEFINITIONS)]
