"""The keys of the bus at an API server, and a TLS broker and agents that live with what the keeper writes there."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from factories.broker.tls_broker import server_of
from factories.waiting import meanwhile, until
from fake_kube.server import FakeKube

from sluice.contracts.bus.nats_permissions import permissions_of
from sluice.contracts.bus.streams import Role
from sluice.contracts.ids import NodeName
from sluice.runtime.clock import SystemClock
from sluice.runtime.errors import ServiceError
from sluice.runtime.nats.connection import Connection
from sluice.runtime.nats.credential_files import CredentialFiles
from sluice.runtime.nats_server.free_ports import free_ports
from sluice.runtime.settings import CommonSettings
from sluice.runtime.tls.certificate_authority import new_authority
from sluice_pod_watcher.core.bus_access import AGENT, Namespaces
from sluice_pod_watcher.shell.callout.answers import Answers
from sluice_pod_watcher.shell.callout.keeper import ANNOTATION, AUTHORITY, CA, KEYS, SERVICES, BusKeeper, BusObjects
from sluice_pod_watcher.shell.kube.client import KubeApi
from sluice_pod_watcher.shell.kube.token_reviews import TokenReviews

SYSTEM, NODES, NODE = "sluice-system", "sluice-nodes", NodeName("gpu-1.example")
ACCOUNTS = Path(__file__).parents[2] / "deploy" / "helm" / "sluice" / "files" / "accounts.conf"
SECRETS = f"/api/v1/namespaces/{SYSTEM}/secrets"
OBJECTS = BusObjects(
    SYSTEM, NODES, "sluice-bus-keys", "sluice-nats-keys", "sluice-bus-authorities", "sluice-nats", ("localhost",)
)


class PastClock(SystemClock):
    """A clock that a test moves; certificates that are made in the past are valid now."""

    behind = timedelta(days=310)

    def utc(self) -> datetime:
        return datetime.now(UTC) - self.behind


@dataclass
class Site:
    """An API server with the objects as they are installed: empty."""

    kube: FakeKube
    api: KubeApi
    clock: PastClock = field(default_factory=PastClock)

    def keeper(self) -> BusKeeper:
        return BusKeeper(self.api, OBJECTS, self.clock)

    def data(self, resource: str, space: str, name: str) -> dict[str, str]:
        found = self.kube.get(resource, space, name).get("data") or {}
        return {key: base64.b64decode(text).decode() for key, text in found.items()} if resource == "secrets" else found

    async def overwrite(self, secret: str, data: dict[str, str | None]) -> None:
        """As another client would; None takes a key away."""
        how = {"body": {"data": data}, "content_type": "application/merge-patch+json"}
        await self.api.call("PATCH", f"{SECRETS}/{secret}", **how)

    def mark(self) -> str:
        template = self.kube.get("statefulsets.apps", SYSTEM, "sluice-nats")["spec"]["template"]
        return template["metadata"].get("annotations", {}).get(ANNOTATION, "")


@pytest.fixture
async def site(kube: FakeKube, api: KubeApi) -> Site:
    for space in (SYSTEM, NODES):
        await api.call("POST", "/api/v1/namespaces", body={"metadata": {"name": space}})
        for name in ("sluice-bus-authorities", CA):
            await api.call("POST", f"/api/v1/namespaces/{space}/configmaps", body={"metadata": {"name": name}})
    for name in ("sluice-bus-keys", "sluice-nats-keys", AUTHORITY, *SERVICES):
        await api.call("POST", SECRETS, body={"metadata": {"name": name}})
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "nats", "image": "nats"}]}}
    spec = {"serviceName": "s", "selector": {"matchLabels": {"a": "b"}}, "template": template}
    body = {"metadata": {"name": "sluice-nats"}, "spec": spec}
    await api.call("POST", f"/apis/apps/v1/namespaces/{SYSTEM}/statefulsets", body=body)
    return Site(kube, api)


async def test_two_replicas_fill_what_was_installed_empty_and_then_write_nothing(site: Site) -> None:
    """Both start at once; of two keepers with keys of their own, one would cut the other's users off."""
    keepers = [site.keeper() for _ in range(2)]
    await asyncio.gather(*(each.refresh() for each in keepers))
    await asyncio.gather(*(each.refresh() for each in keepers))
    assert all(each.ready.is_set() for each in keepers)
    assert keepers[0].current().nkey == keepers[1].current().nkey
    assert set(site.data("secrets", SYSTEM, "sluice-nats-keys")) == {"tls.crt", "tls.key", "ca.crt", "keys.conf"}
    bundles = [site.data("configmaps", space, "sluice-bus-authorities")["ca.crt"] for space in (SYSTEM, NODES)]
    assert bundles[0] == bundles[1] != ""
    wrote = len(_writes(site))
    await keepers[1].refresh()
    assert len(_writes(site)) == wrote
    assert site.mark() == ""  # a broker cannot have started before, so none is started again


def _writes(site: Site) -> list[str]:
    return [path for _, verb, path in site.kube.front.requests if verb in {"patch", "update", "create"}]


async def test_what_was_overwritten_is_written_again(site: Site) -> None:
    """An installer that applies its empty objects again takes the broker's certificate away."""
    keeper = site.keeper()
    await keeper.refresh()
    before = site.data("secrets", SYSTEM, "sluice-nats-keys")
    await site.overwrite("sluice-nats-keys", dict.fromkeys(before))
    await keeper.refresh()
    assert site.data("secrets", SYSTEM, "sluice-nats-keys") == before


async def test_emptied_keys_are_replaced_and_running_replicas_start_again(site: Site) -> None:
    """After a leak, emptying one Secret makes everything that was signed void."""
    keeper = site.keeper()
    await keeper.refresh()
    mark, old = site.mark(), keeper.current().nkey
    await site.overwrite("sluice-bus-keys", {KEYS: None})
    with pytest.raises(ServiceError, match="the keys of the bus were replaced"):
        await keeper.refresh()
    second = site.keeper()
    await second.refresh()
    assert second.current().nkey not in {old, ""}
    assert site.mark() not in {mark, ""}


async def test_damaged_keys_are_told_and_kept(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged Secret is no reason to replace all keys."""
    await site.overwrite("sluice-bus-keys", {KEYS: base64.b64encode(b'{"version": 7}').decode()})
    keeper = site.keeper()
    await keeper.refresh()
    assert not keeper.ready.is_set()
    assert "empty the Secret, and new ones are made" in capsys.readouterr().out
    assert site.data("secrets", SYSTEM, "sluice-bus-keys")[KEYS] == '{"version": 7}'


async def test_services_and_people_get_certificates_of_one_authority(site: Site) -> None:
    """Inventory and agents would not talk to each other; what is still good is not replaced under them."""
    site.clock.behind = timedelta(0)
    await site.keeper().refresh()
    bundles = [site.data("configmaps", space, CA)["ca.crt"] for space in (SYSTEM, NODES)]
    authority = x509.load_pem_x509_certificate(bundles[0].encode())
    before = {name: site.data("secrets", SYSTEM, name) for name in SERVICES}
    for pair in before.values():
        x509.load_pem_x509_certificate(pair["tls.crt"].encode()).verify_directly_issued_by(authority)
    await site.keeper().refresh()  # another replica
    assert {name: site.data("secrets", SYSTEM, name) for name in SERVICES} == before
    assert bundles[0] == bundles[1]


async def test_a_broker_of_ones_own_is_trusted_by_its_own_authority(site: Site, tmp_path: Path) -> None:
    """The callout would never reach it, and no service could log in."""
    now = datetime.now(UTC)
    ca_file = tmp_path / "ca.crt"
    ca_file.write_bytes(new_authority("a site's own", now).certificate)
    keeper = BusKeeper(site.api, replace(OBJECTS, statefulset="", ca_file=ca_file), site.clock)
    await keeper.refresh()
    assert keeper.ready.is_set()
    assert keeper.current().trusts == ca_file.read_bytes()
    ca_file.write_text("no certificate")
    await keeper.refresh()
    assert keeper.current().trusts != b"no certificate"


class Rotating:
    """A broker with the shipped accounts, on the files that a kubelet shows it."""

    def __init__(self, site: Site, folder: Path) -> None:
        self._site, self._folder = site, folder
        self.port = free_ports(1)[0]
        self.url = f"tls://localhost:{self.port}"
        (folder / "config").mkdir(parents=True)
        (folder / "credentials").mkdir()
        (folder / "config" / "accounts.conf").write_bytes(ACCOUNTS.read_bytes())
        self.ca = folder / "ca.crt"
        credentials = folder / "credentials"
        text = "\n".join(
            (
                f'listen: "127.0.0.1:{self.port}"',
                f'jetstream {{ store_dir: "{folder}/store" }}',
                f'tls {{ cert_file: "{credentials}/tls.crt", key_file: "{credentials}/tls.key" }}',
                'include "accounts.conf"',
            )
        )

        self.server = server_of(text, folder / "config", self.port)

    def show(self) -> None:
        """What kubelets do a minute later: to the broker's files, and to those of clients."""
        for name, text in self._site.data("secrets", SYSTEM, "sluice-nats-keys").items():
            (self._folder / "credentials" / name).write_text(text)
        draft = self._folder / "ca.draft"
        draft.write_text(self._site.data("configmaps", NODES, "sluice-bus-authorities")["ca.crt"])
        draft.rename(self.ca)

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Connection]:
        token = self._folder / "token"
        token.touch(mode=0o600)
        token.write_text(self._site.kube.bound_token(NODES, AGENT, pod="p", node=NODE))
        settings = CommonSettings(nats_token_file=token, nats_ca_file=self.ca)
        who = CredentialFiles(settings, permissions_of(Role.NODE_AGENT, NODE).user, look_s=0.05)
        connection = await Connection.open(self.url, name="agent", credentials=who, within_s=20)
        try:
            yield connection
        finally:
            await connection.close()


async def test_a_rotation_cuts_off_no_agent_and_no_callout(site: Site, tmp_path: Path) -> None:
    """The certificate, its authority and the issuer change in order; a restarted broker admits all clients again."""
    keeper = site.keeper()
    await keeper.refresh()
    broker = Rotating(site, tmp_path / "broker")
    broker.show()
    await broker.server.start()
    callout = await Connection.open(broker.url, name="callout", credentials=keeper, within_s=20)
    clock = SystemClock()
    reviews = TokenReviews(site.api, "sluice-bus", clock)
    answers = Answers(reviews, Namespaces(), clock, keeper.issuers, keeper.curve())
    try:
        async with meanwhile(answers.serve(callout)):
            async with asyncio.timeout(60):
                await answers.serving.wait()
            async with broker.agent() as agent:
                issuers, marks = set(keeper.issuers()), {site.mark()}
                for behind in (timedelta(hours=2), timedelta(0)):  # a new generation, and an hour later its turn
                    site.clock.behind = behind
                    await keeper.refresh()
                    marks.add(site.mark())
                    broker.show()
                    await broker.server.stop()
                    await broker.server.start()

                    async def both_work() -> bool:
                        await agent.flush()
                        return agent.up and callout.up

                    await until(both_work, "both reconnect", yet=(TimeoutError,))
                assert len(set(keeper.issuers()) - issuers) == 1
                assert len(marks) == 3
                assert site.data("secrets", SYSTEM, "sluice-nats-keys")["keys.conf"].split()[1] not in issuers
    finally:
        await callout.close()
        await broker.server.stop()
