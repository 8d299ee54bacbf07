"""The pod-watcher's roles as processes: assembled right, replicas apart, and what is read when a part is missing."""

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from factories import waiting
from factories.broker.bus_rigs import broker_and_bus, ensured, watching
from factories.broker.nats_server import Broker
from factories.cluster.cluster_system import SERVICE, install
from factories.cluster.kubernetes import Cluster
from factories.cluster.watcher_process import WAIT_S, WatcherProcess, watcher
from fake_kube import certificates
from fake_kube.server import FakeKube

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import SourceName
from sluice.contracts.messages import AllocationRequested, Amounts, QuotaSet
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.nats_server.free_ports import free_ports

OTHERS = "192.0.2.1:8443"
NAME = f"{SERVICE[1]}.{SERVICE[0]}.svc"
CONFIGURATION = "mutatingwebhookconfigurations.admissionregistration.k8s.io"
ASKING = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"generateName": "train-", "annotations": {"sluice.dev/profile": "1g.5gb"}},
    "spec": {"containers": [{"name": "main", "image": "train:1"}]},
}


class Site:
    """A cluster with Sluice's objects, a broker, and the settings with which a pod-watcher finds both."""

    def __init__(self, kube: FakeKube, cluster: Cluster, broker: Broker, bus: NatsBus, folder) -> None:
        self.kube, self.cluster, self.broker, self.bus, self.folder = kube, cluster, broker, bus, folder
        self._number = 0

    @contextlib.asynccontextmanager
    async def watcher(self, role: str, **settings: str) -> AsyncIterator[WatcherProcess]:
        self._number += 1
        own = {
            "ROLE": role,
            "KUBECONFIG": str(self.cluster.kubeconfig),
            "WEBHOOK_ADDRESS": "127.0.0.1:0",
            "WATCH_HEALTH_ADDRESS": "127.0.0.1:0",
            "LEASE_TTL_S": "2",
            "SLUICE_NATS_URL": self.broker.url,
        }
        async with watcher(self.folder / f"{role}-{self._number}.log", **(own | settings)) as process:
            yield process

    async def routed(self, process: WatcherProcess) -> None:
        """Route the API server's calls to this process, whose authority it trusts."""
        self.kube.route_service(*SERVICE, host="127.0.0.1", port=await process.port("webhook"))
        await process.line("the caBundle is published")

    async def requests(self, count: int) -> dict[str, AllocationRequested]:
        """Requests on the bus by pod UID, once there are `count`."""
        async with watching(self.bus.read(Stream.STATE, ("sluice.request.>",))) as view:
            await view.until(lambda view: len(view.known) >= count)
        return {subjects.parse(subject).key[0]: entry.message for subject, entry in view.known.items()}

    async def holder(self) -> str:
        """The run that holds the watch's lease; empty without one."""
        found = await self.bus.last(Stream.STATE, subjects.lease("pod-watcher").subject)
        return found.message.owner if found is not None else ""

    async def run_of_source(self) -> str:
        found = await self.bus.last(Stream.STATE, subjects.source(SourceName("cluster")).subject)
        return found.message.run if found is not None else ""

    def bundle(self) -> set[str]:
        hooks = self.kube.get(CONFIGURATION, "", "sluice")["webhooks"]
        return {base64.b64decode(hook["clientConfig"].get("caBundle", "")).decode() for hook in hooks}

    def kept(self) -> list[dict]:
        data = self.kube.get("secrets", "sluice-system", "sluice-webhook-tls").get("data") or {}
        return json.loads(base64.b64decode(data["certificates.json"]))["generations"] if data else []


@pytest_asyncio.fixture
async def site(kube, tmp_path):
    kube.nodes.add("n1", cpu="64", memory="512Gi")
    cluster = Cluster(kube.kubeconfig(tmp_path / "config"), kube)
    await install(cluster)
    async with broker_and_bus(tmp_path) as (broker, bus), cluster.opened() as opened:
        yield Site(kube, opened, broker, bus, tmp_path)


async def probe(port: int, path: str = "/readyz") -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


async def until(look, answer):
    """Until `look` returns this; bounded."""
    found = []

    async def is_so() -> bool:
        found[:] = [await look()]
        return found == [answer]

    await waiting.until(is_so, lambda: f"{answer}, and not {found}")


async def shown(port: int, bundle: str) -> bytes:
    """The webhook's certificate as a caller that trusts `bundle` sees it."""
    trust = ssl.create_default_context(cadata=bundle)
    async with asyncio.timeout(WAIT_S):
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust, server_hostname=NAME)
        try:
            return writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        finally:
            writer.transport.abort()


async def created(site: Site) -> dict:
    made = await site.cluster.post("/api/v1/namespaces/default/pods", ASKING)
    assert made.code == 201, made
    return made.body


# -- all in one process -------------------------------------------------------------------------------------------


async def test_one_process_gates_a_pod_asks_for_it_and_stops_when_told(site):
    """From `kubectl apply` to a request on the bus, with nothing but settings."""
    async with site.watcher("all") as process:
        await site.routed(process)
        pod = await created(site)
        assert pod["spec"]["schedulingGates"] == [{"name": "sluice.dev/slice"}]
        uid = pod["metadata"]["uid"]
        asked = await site.requests(1)
        assert [(each, word.claims[0].profile) for each, word in asked.items()] == [(uid, "1g.5gb")]
        port = await process.port("health")
        await until(lambda: probe(port), (200, "ok"))
        assert await probe(port, "/healthz") == (200, "ok")
        assert await process.stop() == 0, process.text
    assert await site.holder() == ""
    assert "Traceback" not in process.text


async def test_pods_are_judged_while_the_bus_is_away(site):
    """Pods can be created during an outage of the bus, and a person sees the outage."""
    (closed,) = free_ports(1)
    async with site.watcher("all", SLUICE_NATS_URL=f"nats://127.0.0.1:{closed}") as process:
        await site.routed(process)
        assert (await created(site))["spec"]["schedulingGates"] == [{"name": "sluice.dev/slice"}]
        await process.line("the bus cannot be reached", level="warning")
        assert await probe(await process.port("health")) == (503, "the bus has not answered yet")
        assert await process.stop() == 0, process.text


# -- the webhook --------------------------------------------------------------------------------------------------


async def test_a_certificate_outlives_its_process(site):
    """Otherwise each restart would be followed by a time in which no pod can be created."""
    async with site.watcher("webhook") as process:
        await site.routed(process)
        await created(site)
        kept, bundle = site.kept(), site.bundle()
        assert len(kept) == 1
        first = await shown(await process.port("webhook"), *bundle)
        process.kill()
        await process.ended()
    async with site.watcher("webhook") as again:
        await site.routed(again)
        await created(site)
        assert (site.kept(), site.bundle()) == (kept, bundle)
        assert await shown(await again.port("webhook"), *bundle) == first
        assert await again.stop() == 0
    written = (site.kube.count(verb="patch", path=f"{path}") for path in ("secrets", "mutatingwebhookconfigurations"))
    assert tuple(written) == (1, 1)


async def test_two_webhooks_that_begin_at_once_show_one_certificate(site):
    """The API server would trust only one of them, and every other pod be refused."""
    async with site.watcher("webhook") as one, site.watcher("webhook") as other:
        for process in (one, other):
            await process.line("the caBundle is published")
        (bundle,) = site.bundle()
        assert len(site.kept()) == 1
        ports = [await process.port("webhook") for process in (one, other)]
        assert await shown(ports[0], bundle) == await shown(ports[1], bundle)
        for port in ports:
            site.kube.route_service(*SERVICE, host="127.0.0.1", port=port)
            await created(site)


async def test_a_mounted_certificate_needs_no_api_server(site, tmp_path):
    """As cert-manager mounts it; then the caBundle is not ours to write."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    files = certificates.make("cert-manager", folder=mounted, names=(NAME,))
    async with site.watcher("webhook", KUBECONFIG="", CERTIFICATE_DIR=str(mounted)) as process:
        await process.line("serves a new certificate")
        port = await process.port("webhook")
        assert await shown(port, files.authority.read_text()) == ssl.PEM_cert_to_DER_cert(files.certificate.read_text())
        assert await process.stop() == 0
    assert site.bundle() == {""}


async def test_a_missing_secret_is_told_by_log_and_probe(site):
    """With half of the manifests applied, an operator sees which half is missing."""
    async with site.watcher("webhook", TLS_SECRET="other") as process:
        line = await process.line("the certificate cannot be refreshed; retrying")
        assert line["why"] == (
            "the Secret sluice-system/other keeps the webhook's certificates: it comes with the manifests, and may be "
            'empty: secrets "other" not found (404)'
        )


# -- the watch ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_of_two_watches_one_works_and_the_other_takes_over(site):
    """Otherwise a killed process leaves every new pod waiting until a person starts another."""
    async with site.watcher("webhook") as webhook, site.watcher("watch") as first:
        await site.routed(webhook)
        await first.line("works")
        async with site.watcher("watch") as second:
            port = await second.port("health")
            await until(lambda: probe(port), (200, "ok"))  # it stands by
            await created(site)
            assert len(await site.requests(1)) == 1
            assert not [line for line in second.lines if line["event"] == "works"]
            first.kill()
            await created(site)
            assert len(await site.requests(2)) == 2
            await second.line("works")
            await until(lambda: probe(port), (200, "ok"))
            assert await second.stop() == 0, second.text


async def test_a_watch_without_rights_says_which_it_lacks(site):
    """Else pods wait without a visible reason."""
    token = site.kube.service_account_token("sluice-system", "powerless")
    kubeconfig = site.kube.kubeconfig(site.folder / "powerless", token=token)
    async with site.watcher("watch", KUBECONFIG=str(kubeconfig)) as process:
        port = await process.port("health")
        said = "it is active, but has not listed yet: nodes, others, pods (see the log for the errors)"
        await until(lambda: probe(port), (503, said))
        await waiting.until(lambda: 'cannot list resource \\"pods\\"' in process.text)
        assert process.code is None, process.text
        assert await process.stop() == 0


async def test_the_watch_that_works_says_the_limits_of_its_file_and_says_them_again_to_a_wiped_broker(site, tmp_path):
    """Else a broker that lost its disk would leave everything unlimited until a person notices."""
    limits = tmp_path / "limits.toml"
    limits.write_text("[namespaces.lab]\ngpus = 4\n")

    async def said() -> int | None:
        try:
            found = await site.bus.last(Stream.BOOK, subjects.quota("lab").subject)
        except TimeoutError:  # the streams are being recreated
            return None
        return found.message.total.gpus if found is not None and isinstance(found.message, QuotaSet) else None

    async with site.watcher("watch", LIMITS_FILE=str(limits)) as works:
        await works.line("works")
        async with site.watcher("all", LIMITS_FILE=str(limits)) as stands_by:
            await until(said, 4)
            await stands_by.port("health")  # so that it is to stop, and not still to start
            (server,) = site.broker.servers
            await server.kill()
            server.wipe()
            await server.start()
            await ensured(site.bus)
            await until(said, 4)
            entry = await site.bus.last(Stream.BOOK, subjects.quota("lab").subject)
            assert entry.message == QuotaSet(namespace="lab", total=Amounts(gpus=4), source=SourceName("cluster"))
            limits.write_text("")
            await until(said, None)
            assert await stands_by.stop() == 0, stands_by.text
        assert await works.stop() == 0, works.text


@pytest.mark.slow
async def test_a_watch_goes_on_when_the_bus_comes_back(site):
    """It lost its lease meanwhile; pods that are created later are served without a restart by hand."""
    async with site.watcher("all") as process:
        await site.routed(process)
        await created(site)
        await site.requests(1)
        port = await process.port("health")

        async def has_another() -> bool:
            return await site.run_of_source() not in {"", run}

        run = ""
        await until(has_another, answer=True)
        run = await site.run_of_source()
        (server,) = site.broker.servers
        await server.kill()
        await until(lambda: probe(port), (503, "the bus does not answer, or has no streams"))
        await created(site)
        await process.line("on standby: the lease expired")
        await server.start()
        assert len(await site.requests(2)) == 2
        await until(has_another, answer=True)  # its operations restart at one, so they need another name
        await until(lambda: probe(port), (200, "ok"))
        assert await process.stop() == 0, process.text


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"KUBECONFIG": "/nowhere"}, "the kubeconfig /nowhere cannot be read: No such file or directory"),
        ({}, "the service account of the pod cannot be used: Service host/port is not set."),
        ({"CERTIFICATE_DIR": "/tls", "WEBHOOK_ADDRESS": OTHERS}, f"the webhook cannot listen on {OTHERS}: "),
    ],
    ids=["no kubeconfig", "not in a pod", "not its address"],
)
async def test_a_start_that_cannot_work_ends_with_one_sentence(tmp_path, settings, sentence):
    """The operator knows what to fix, without a traceback."""
    async with watcher(tmp_path / "log", **({"ROLE": "webhook"} | settings)) as process:
        assert await process.ended() == 78
        assert sentence in process.text
        assert "Traceback" not in process.text
