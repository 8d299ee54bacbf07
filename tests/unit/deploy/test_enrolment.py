"""What is applied lets its own services and nodes in, with nothing made before: a real broker, real TLS."""

import asyncio
import base64
import re
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import deploy_check
import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from factories.broker.nats_server import NatsServer, NatsServerConfig
from fake_kube.server import FakeKube
from unit.deploy.reading import Rendering, environment, named, nats_config, pod_of, settings_of

from sluice.contracts.bus.codec import MESSAGE_BYTES_MAX
from sluice.contracts.bus.events import Stream
from sluice.contracts.bus.nats_permissions import permissions_of
from sluice.contracts.bus.streams import Role
from sluice.contracts.ids import NodeName
from sluice.contracts.rpc_permissions import Caller, dns_name
from sluice.runtime.bus import BusError
from sluice.runtime.clock import SystemClock
from sluice.runtime.nats.connection import Connection
from sluice.runtime.nats.credentials import Credentials
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.nats_server.free_ports import free_ports
from sluice.runtime.nats_server.server_config import server_binary
from sluice_pod_watcher.core.bus_access import PEOPLE, ROLES, Namespaces
from sluice_pod_watcher.settings import PodWatcherSettings
from sluice_pod_watcher.shell.callout.answers import Answers
from sluice_pod_watcher.shell.callout.app import objects_of
from sluice_pod_watcher.shell.callout.bus_keys import broker_files, renewed, trusted
from sluice_pod_watcher.shell.callout.keeper import BusKeeper, authority_of, of_services
from sluice_pod_watcher.shell.kube.client import KubeApi
from sluice_pod_watcher.shell.kube.token_reviews import TokenReviews

pytestmark = pytest.mark.timeout(120)
HOST, SYSTEM, NODES = "sluice-nats.sluice-system.svc", "sluice-system", "sluice-nodes"
NODE, OTHER = NodeName("gpu-1.example.internal"), NodeName("gpu-2")
OVERLAYS = ("single", "ha")
RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
APPLIED = ("Namespace", *RIGHTS, "Secret", "ConfigMap", "StatefulSet")
"""Kinds that the callout needs."""


def settings_of_callout(rendered: list[deploy_check.Document]) -> PodWatcherSettings:
    (container,) = pod_of(rendered, "Deployment", "sluice-callout")["containers"]
    return settings_of(container)


def on_this_machine(text: str, directory: Path, there: Mapping[str, str], port: int) -> str:
    """As deployed, with a test's paths and address, beside `credentials`, where a server looks for includes."""
    folder = directory / "credentials"
    folder.mkdir()
    (directory / "config").mkdir()
    for key, value in there.items():
        (folder / key).write_text(value)
    for deployed_path, here in (
        ("/etc/nats/credentials/", f"{folder}/"),
        ('"/data"', f'"{directory}/data"'),
        ("/run/nats/", f"{directory}/"),
        ('listen: "0.0.0.0:4222"', f'listen: "127.0.0.1:{port}"'),
        ('http: "0.0.0.0:8222"', ""),
        ("$POD_NAME", "sluice-nats-0"),
    ):
        assert deployed_path in text
        text = text.replace(deployed_path, here)
    return text


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_servers_take_their_configuration_and_are_known_by_the_names_in_manifests(
    overlay, rendered: Rendering, tmp_path
):
    """A server that does not start, or that no client trusts, is a cluster without Sluice."""
    objects, now = rendered(overlay), datetime.now(UTC)
    names = objects_of(settings_of_callout(objects)).names
    keys = renewed(None, names, now)
    files = broker_files(keys, names, now, published=trusted(keys, now))
    assert files is not None
    path = tmp_path / "config" / "nats.conf"
    text = on_this_machine(nats_config(objects), tmp_path, files, free_ports(1)[0])
    path.write_text(text)
    done = subprocess.run([server_binary(), "-t", "-c", path], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr
    assert "sync_interval: always" in text
    authority, server = (x509.load_pem_x509_certificate(files[key].encode()) for key in ("ca.crt", "tls.crt"))
    asked_for = {HOST, f"{HOST}.cluster.local", *re.findall(r"nats-route://([^:]+):", text)}
    for name in (*asked_for, "sluice-nats.default.svc", "localhost"):
        verifier = PolicyBuilder().store(Store([authority])).time(now).build_server_verifier(x509.DNSName(name))
        try:
            verifier.verify(server, [])
        except VerificationError:
            assert name not in asked_for
        else:
            assert name in asked_for


def test_every_certificate_for_grpc_says_one_name_and_lets_no_service_into_the_broker():
    """A second name is a second identity; brokers of a cluster believe every client of their authority to be one."""
    now = datetime.now(UTC)
    authority = authority_of({}, now)
    made = of_services(authority, {}, now)
    bus = x509.load_pem_x509_certificates(trusted(renewed(None, (HOST,), now), now).encode())
    servers, clients = {Caller.ALLOCATOR, Caller.INVENTORY}, set(Caller) - {Caller.ALLOCATOR}
    assert set(made) == {f"sluice-grpc-{caller.value}" for caller in Caller}
    for caller in Caller:
        certificate = x509.load_pem_x509_certificate(made[f"sluice-grpc-{caller.value}"]["tls.crt"])
        usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        said = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert list(said) == [x509.DNSName(dns_name(caller))]
        assert (ExtendedKeyUsageOID.SERVER_AUTH in usages) is (caller in servers)
        assert (ExtendedKeyUsageOID.CLIENT_AUTH in usages) is (caller in clients)
        for each in bus:
            with pytest.raises((ValueError, InvalidSignature)):
                certificate.verify_directly_issued_by(each)


def test_a_message_that_may_be_written_is_taken(rendered: Rendering):
    """A server with a smaller limit would refuse what the services think is fine."""
    compose = (deploy_check.DEPLOY / "compose" / "nats.conf").read_text()
    for text in (compose, *(nats_config(rendered(overlay)) for overlay in OVERLAYS)):
        (limit,) = re.findall(r"^max_payload: (\d+)MB$", text, re.MULTILINE)
        assert int(limit) * 1024 * 1024 > MESSAGE_BYTES_MAX
        assert "sync_interval: always" in text


@dataclass
class Deployed:
    """What is applied, at an API server that knows roles; the broker and a callout run."""

    kube: FakeKube
    objects: list[deploy_check.Document]
    url: str
    authority: str

    def tls(self) -> ssl.SSLContext:
        """As clients trust the broker."""
        return ssl.create_default_context(cadata=self.authority)

    def pods(self) -> dict[str, tuple[str, str, str]]:
        """Those on the bus: account, namespace, audience of the token that they mount, and user, by component."""
        found = {}
        for owner, spec in deploy_check.pod_specs(self.objects):
            for container in deploy_check.containers(spec):
                seen = environment(container)
                if "SLUICE_NATS_TOKEN_FILE" not in seen:
                    continue
                mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
                folder, _, name = seen["SLUICE_NATS_TOKEN_FILE"].rpartition("/")
                (volume,) = [each for each in spec["volumes"] if each["name"] == mounts[folder]]
                (token,) = filter(None, (each.get("serviceAccountToken") for each in volume["projected"]["sources"]))
                assert token["path"] == name
                user = seen.get("SLUICE_NATS_USER") or permissions_of(Role.NODE_AGENT, NODE).user
                found[spec["serviceAccountName"]] = (owner["metadata"]["namespace"], token["audience"], user)
        return found

    def who(self, account: str, user: str, namespace: str = SYSTEM, **bound: str) -> Credentials:
        """A pod's login, or a person's without one."""
        token = self.kube.bound_token(namespace, account, **bound)
        return Credentials(user, token, self.tls(), is_token=True)


@pytest_asyncio.fixture
async def deployed(tmp_path: Path, rendered: Rendering, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Deployed]:
    """`single`, its broker called by its name in a cluster; the callout has the rights of its account and no other."""
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *rest, **more: resolve("127.0.0.1" if host == HOST else host, *rest, **more)
    )
    objects = rendered("single")
    settings = settings_of_callout(objects)
    async with AsyncExitStack() as stack:
        kube = stack.enter_context(FakeKube())
        admin = await KubeApi.connect(kube.kubeconfig(tmp_path / "admin"))
        stack.push_async_callback(admin.close)
        for kind in APPLIED:
            for each in (each for each in objects if each["kind"] == kind):
                await admin.call("POST", _collection(each), body=each)
        token = kube.service_account_token(SYSTEM, "sluice-callout")
        api = await KubeApi.connect(kube.kubeconfig(tmp_path / "callout", token=token))
        stack.push_async_callback(api.close)
        clock = SystemClock()
        keeper = BusKeeper(api, objects_of(settings), clock)
        await keeper.refresh()
        assert keeper.ready.is_set()
        held = (kube.get("secrets", SYSTEM, settings.bus_server_secret) or {})["data"]
        there = {name: base64.b64decode(text).decode() for name, text in held.items()}
        broker = pod_of(objects, "StatefulSet", settings.bus_statefulset)
        (shown,) = [each["secret"] for each in broker["volumes"] if "secret" in each]
        assert shown["secretName"] == settings.bus_server_secret
        assert {each["key"] for each in shown["items"]} == set(there)
        port = free_ports(1)[0]
        text = on_this_machine(nats_config(objects), tmp_path, there, port)

        class Plan(NatsServerConfig):
            def config(self) -> str:
                return text

        server = NatsServer(Plan("sluice-nats-0", tmp_path / "config", port))
        await server.start()
        stack.push_async_callback(server.stop)
        url = f"tls://{HOST}:{port}"
        callout = await Connection.open(url, name="callout", credentials=keeper, within_s=20)
        stack.push_async_callback(callout.close)
        where = Namespaces(settings.namespace, settings.nodes_namespace)
        reviews = TokenReviews(api, settings.token_audience, clock)
        answers = Answers(reviews, where, clock, keeper.issuers, keeper.curve())
        serving = asyncio.create_task(answers.serve(callout))
        try:
            async with asyncio.timeout(20):
                await answers.serving.wait()
            found = kube.get("configmaps", NODES, settings.bus_ca) or {}
            yield Deployed(kube, objects, url, found["data"]["ca.crt"])
        finally:
            serving.cancel()
            await asyncio.wait((serving,))


def _collection(document: deploy_check.Document) -> str:
    """Its path at the API server."""
    group, space = document["apiVersion"], document["metadata"].get("namespace")
    root = "/api/v1" if group == "v1" else f"/apis/{group}"
    plural = document["kind"].lower() + "s"
    return f"{root}/namespaces/{space}/{plural}" if space else f"{root}/{plural}"


async def test_every_pod_on_the_bus_and_both_kinds_of_person_log_in(deployed: Deployed):
    """A user whose account, audience or name is another in the manifests never connects."""
    pods = deployed.pods()
    assert set(pods) | PEOPLE == set(ROLES)
    for account, (namespace, audience, user) in pods.items():
        who = deployed.who(account, user, namespace, audience=audience, pod="a", node=NODE)
        if account == "sluice-streams":
            bus = await NatsBus.connect(deployed.url, name="streams", credentials=who)
            await bus.ensure_streams()
            assert [await bus.incarnation(stream) for stream in Stream]
            await bus.close()
        else:
            await (await Connection.open(deployed.url, name=account, credentials=who, within_s=20)).close()
    for account in PEOPLE:
        assert named(deployed.objects, "ServiceAccount", account)["metadata"]["namespace"] == SYSTEM
        who = deployed.who(account, permissions_of(ROLES[account]).user)
        await (await Connection.open(deployed.url, name=account, credentials=who, within_s=20)).close()


@pytest.mark.parametrize("stranger", ["namespace", "no pod", "authority", "plain"])
async def test_a_stranger_is_not_let_in(deployed: Deployed, stranger):
    """Nor does a service connect to a server that its authority does not vouch for."""
    now = datetime.now(UTC)
    others = ssl.create_default_context(cadata=trusted(renewed(None, (HOST,), now), now))
    good = deployed.who("sluice-allocator", "allocator", pod="a")
    who = {
        "namespace": deployed.who("sluice-allocator", "allocator", "tenant", pod="a"),
        "no pod": deployed.who("sluice-allocator", "allocator"),
        "authority": Credentials("allocator", good.password, others, is_token=True),
        "plain": Credentials("allocator", good.password, is_token=True),
    }[stranger]
    url = deployed.url.replace("tls://", "nats://") if stranger == "plain" else deployed.url
    with pytest.raises((BusError, TimeoutError)):
        await asyncio.wait_for(Connection.open(url, name="stranger", credentials=who), 3)


async def test_an_agent_cannot_write_for_another_node(deployed: Deployed):
    """Its token is good for its own node's subjects alone."""
    user = permissions_of(Role.NODE_AGENT, NODE).user
    who = deployed.who("sluice-node-agent", user, NODES, pod="a", node=NODE)
    agent = await Connection.open(deployed.url, name="agent", credentials=who, within_s=20)
    try:
        with pytest.raises(BusError, match=r"(?i)permissions violation"):
            await agent.request(f"sluice.node.{OTHER}", b"{}")
    finally:
        await agent.close()
