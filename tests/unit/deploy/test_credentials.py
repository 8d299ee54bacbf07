"""The broker that is deployed, with the users and certificates that are made for it: real servers, real TLS."""

import asyncio
import datetime as dt
import json
import re
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import deploy_check
import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from factories.credentials import credentials
from unit.deploy.reading import Rendering, named

from sluice.contracts.bus.codec import MESSAGE_BYTES_MAX
from sluice.contracts.bus.events import Stream
from sluice.contracts.bus.nats_permissions import permissions_of, user_name
from sluice.contracts.bus.streams import Role
from sluice.contracts.ids import NodeName
from sluice.contracts.rpc_permissions import Caller, dns_name, node_dns_name
from sluice.runtime.bus import BusError
from sluice.runtime.nats.connection import Connection
from sluice.runtime.nats.credentials import Credentials
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.nats_server.free_ports import free_ports
from sluice.runtime.nats_server.process import NatsServer, NatsServerConfig, server_binary
from sluice.runtime.tls.certificate_authority import RENEW_DAYS, SERVER_DAYS, CredentialsError

NOW = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
HOST = "sluice-nats.sluice-system.svc"
NODE, OTHER = "gpu-1.example.internal", "gpu-2"
OVERLAYS = ("single", "ha")

Kept = dict[str, dict[str, bytes]]


def made(nodes: list[str], kept: Kept | None = None, *, now: dt.datetime = NOW, forget: tuple[str, ...] = ()) -> Kept:
    """What the program makes, as a cluster would show it again."""
    objects = credentials.manifests(nodes, kept or {}, now, forget=forget)
    found: Kept = credentials.read_kept(json.dumps({"kind": "List", "items": objects}))
    return found


def test_every_service_and_every_node_has_a_user_with_its_own_rights():
    """A user that is missing is a service that never connects; a right too many is what a stolen password can do."""
    there = made([NODE, OTHER])
    users = re.findall(
        r'user: "([^"]+)", password: "([^"]+)", permissions: (.*) },?$',
        there["sluice-nats-server"]["users.conf"].decode(),
        re.MULTILINE,
    )

    assert {user for user, _, _ in users} == {
        *(role.value for role in Role if role is not Role.NODE_AGENT),
        *(user_name(Role.NODE_AGENT, NodeName(node)) for node in (NODE, OTHER)),
    }
    assert len({password for _, password, _ in users}) == len(users)
    for user, password, permissions in users:
        role, _, token = user.partition(".")
        node = NodeName(token.replace("_", ".")) if token else None
        rights = permissions_of(Role(role), node)
        allowed = json.loads(permissions)
        assert allowed["publish"]["allow"] == list(rights.publish)
        assert allowed["subscribe"]["allow"] == list(rights.subscribe)
        secret = there["sluice-bus-nodes"][node] if node else there[f"sluice-bus-{role}"]["password"]
        assert secret.decode() == password


def test_adding_a_node_disturbs_nobody():
    """New passwords for everyone would cut off every service until it is started again."""
    before = made([NODE])
    after = made([OTHER], before)

    assert set(after["sluice-bus-nodes"]) == {NODE, OTHER}
    assert after["sluice-bus-nodes"][NODE] == before["sluice-bus-nodes"][NODE]
    assert after["sluice-rpc-nodes"][NODE] == before["sluice-rpc-nodes"][NODE]
    for name in set(before) - {"sluice-bus-nodes", "sluice-rpc-nodes", "sluice-nats-server"}:
        assert after[name] == before[name]
    for key in ("tls.crt", "tls.key", "ca.crt"):
        assert after["sluice-nats-server"][key] == before["sluice-nats-server"][key]


def test_a_node_that_is_no_more_can_no_longer_connect():
    after = made([], made([NODE, OTHER]), forget=(NODE,))

    assert set(after["sluice-bus-nodes"]) == set(after["sluice-rpc-nodes"]) == {OTHER}
    assert user_name(Role.NODE_AGENT, NodeName(NODE)) not in after["sluice-nats-server"]["users.conf"].decode()


def test_a_certificate_is_renewed_before_it_ends_and_by_the_same_authority():
    before = made([NODE])
    late = NOW + dt.timedelta(days=SERVER_DAYS - RENEW_DAYS + 1)
    after = made([], before, now=late)

    assert after["sluice-nats-ca"] == before["sluice-nats-ca"]
    assert after["sluice-nats-server"]["tls.crt"] != before["sluice-nats-server"]["tls.crt"]
    for secret in ("sluice-rpc-inventory", "sluice-rpc-nodes"):
        assert set(after[secret].values()).isdisjoint(before[secret].values())
    assert after["sluice-rpc-authority"] == before["sluice-rpc-authority"]
    assert made([], before) == before


@pytest.mark.parametrize(
    ("name", "good"),
    [
        (HOST, True),
        (f"{HOST}.cluster.local", True),
        *((f"sluice-nats-{n}.sluice-nats-servers.sluice-system.svc", True) for n in range(3)),
        ("sluice-nats.default.svc", False),
        ("localhost", False),
    ],
)
def test_a_server_is_known_by_the_names_that_manifests_use(name, good):
    """Judged by rules for the web, which are stricter than any client's here."""
    there = made([])["sluice-nats-server"]
    authority, server = (x509.load_pem_x509_certificate(there[key]) for key in ("ca.crt", "tls.crt"))
    verifier = PolicyBuilder().store(Store([authority])).time(NOW).build_server_verifier(x509.DNSName(name))

    if good:
        verifier.verify(server, [])
    else:
        with pytest.raises(VerificationError):
            verifier.verify(server, [])


def test_another_authority_takes_its_certificates_with_it():
    """The way out after a key was stolen: without its Secret, nothing that it signed is kept."""
    before = made([NODE])
    after = made([], {name: data for name, data in before.items() if name != "sluice-rpc-authority"})

    for secret in ("sluice-rpc-inventory", "sluice-rpc-nodes"):
        assert set(after[secret].values()).isdisjoint(before[secret].values())
    assert after["sluice-nats-server"] == before["sluice-nats-server"]


@pytest.mark.parametrize("name", ["sluice-nats-ca", "sluice-rpc-authority", "sluice-bus-allocator", "sluice-bus-nodes"])
def test_a_tenants_secret_of_our_name_and_label_is_not_taken_for_ours(name):
    """A writer of Secrets in one namespace would know the allocator's password, and sign for the broker."""
    ours = credentials.manifests([NODE], {}, NOW)
    (planted,) = [each for each in credentials.manifests([NODE], {}, NOW) if each["metadata"]["name"] == name]
    planted["metadata"]["namespace"] = "tenant"  # kubectl lists by namespace: it comes after ours

    kept = credentials.read_kept(json.dumps({"kind": "List", "items": [*ours, planted]}))

    assert kept == credentials.read_kept(json.dumps({"kind": "List", "items": ours}))
    assert credentials.read_kept(json.dumps({"kind": "List", "items": [planted]})) == {}


def test_the_authority_of_grpc_lets_nobody_into_the_broker():
    """Brokers of a cluster believe every client that their authority signed to be one of them."""
    there = made([NODE])
    bus = x509.load_pem_x509_certificate(there["sluice-nats-ca"]["ca.crt"])
    assert there["sluice-rpc-authority"]["ca.crt"] != there["sluice-nats-ca"]["ca.crt"]
    for text in (there["sluice-rpc-inventory"]["tls.crt"], there["sluice-rpc-nodes"][NODE]):
        with pytest.raises((ValueError, InvalidSignature)):
            x509.load_pem_x509_certificate(text).verify_directly_issued_by(bus)


def test_every_certificate_says_one_name_and_what_it_is_for():
    """A second name is a second identity; an agent that could call others would be a way from one node to all."""
    there = made([NODE, OTHER])
    texts = {dns_name(caller): there[f"sluice-rpc-{caller.value}"]["tls.crt"] for caller in Caller}
    texts |= {node_dns_name(NodeName(node)): there["sluice-rpc-nodes"][node] for node in (NODE, OTHER)}
    as_server = {
        dns_name(Caller.ALLOCATOR),
        dns_name(Caller.INVENTORY),
        *(node_dns_name(NodeName(n)) for n in (NODE, OTHER)),
    }
    as_client = {dns_name(each) for each in (Caller.INVENTORY, Caller.CONSOLE, Caller.OPERATOR, Caller.WEB)}

    assert len(texts) == len(Caller) + 2
    for name, text in texts.items():
        extensions = x509.load_pem_x509_certificate(text).extensions
        said = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        usages = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(said) == [x509.DNSName(name)]
        assert (ExtendedKeyUsageOID.SERVER_AUTH in usages) is (name in as_server)
        assert (ExtendedKeyUsageOID.CLIENT_AUTH in usages) is (name in as_client)


@pytest.mark.parametrize("node", ["gpu_1", "", "a b", 'x", password: "'])
def test_a_name_that_no_node_has_is_refused(node):
    with pytest.raises(CredentialsError, match="node "):
        made([node])


def test_more_nodes_than_a_secret_holds_are_refused_in_words():
    """The API server's own answer names a size and no cause."""
    with pytest.raises(CredentialsError, match="a Secret holds 1 MiB"):
        made([f"gpu-{n}" for n in range(2500)])


@pytest.mark.parametrize("text", ["", "[]", '{"kind":"List","items":[{"kind":"Secret"}]}'])
def test_something_else_than_secrets_is_not_taken_for_an_empty_cluster(text):
    """Every password would be replaced, and every service cut off."""
    with pytest.raises(CredentialsError, match="--keep"):
        credentials.read_kept(text)


def test_the_program_prints_what_can_be_applied(capsys, tmp_path):
    """Namespaces first, strictly valid, and the same again from what a cluster has, whose namespaces are left alone."""
    assert credentials.main(["--node", NODE]) == 0
    printed = capsys.readouterr().out
    first = json.loads(printed)
    kept = tmp_path / "kept.json"
    kept.write_text(printed)
    assert credentials.main(["--keep", str(kept)]) == 0
    again = json.loads(capsys.readouterr().out)

    assert [each["kind"] for each in first["items"][:2]] == ["Namespace", "Namespace"]
    assert again["items"] == first["items"][2:]
    for document in first["items"]:
        assert list(deploy_check.problems_of_schema(document, "")) == []


def configuration(rendered: list[deploy_check.Document]) -> str:
    return str(named(rendered, "ConfigMap", "sluice-nats")["data"]["nats.conf"])


def on_this_machine(text: str, directory: Path, there: Mapping[str, bytes], port: int) -> str:
    """As deployed, with a test's paths and address, beside `credentials`, where a server looks for includes."""
    folder = directory / "credentials"
    folder.mkdir()
    (directory / "config").mkdir()
    for key, value in there.items():
        (folder / key).write_bytes(value)
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
def test_the_servers_take_their_configuration(overlay, rendered: Rendering, tmp_path):
    there = made([NODE, OTHER])["sluice-nats-server"]
    text = on_this_machine(configuration(rendered(overlay)), tmp_path, there, free_ports(1)[0])
    path = tmp_path / "config" / "nats.conf"
    path.write_text(text)

    done = subprocess.run([server_binary(), "-t", "-c", path], capture_output=True, text=True, timeout=20, check=False)

    assert done.returncode == 0, done.stderr
    assert "sync_interval: always" in text


def test_a_message_that_may_be_written_is_taken(rendered: Rendering):
    """A server with a smaller limit would refuse what the services think is fine."""
    compose = (deploy_check.DEPLOY / "compose" / "nats.conf").read_text()
    for text in (compose, *(configuration(rendered(overlay)) for overlay in OVERLAYS)):
        (limit,) = re.findall(r"^max_payload: (\d+)MB$", text, re.MULTILINE)
        assert int(limit) * 1024 * 1024 > MESSAGE_BYTES_MAX
        assert "sync_interval: always" in text


class Deployed:
    def __init__(self, url: str, there: Kept) -> None:
        self.url = url
        self._there = there

    def who(self, role: Role, node: str = "", *, password: str = "", authority: bytes = b"") -> Credentials:
        """How a service says who it is; with a wrong password or authority where asked."""
        name = NodeName(node) if node else None
        secret = self._there["sluice-bus-nodes"][node] if node else self._there[f"sluice-bus-{role.value}"]["password"]
        trusted = authority or self._there["sluice-nats-server"]["ca.crt"]
        context = ssl.create_default_context(cadata=trusted.decode())
        return Credentials(user_name(role, name), password or secret.decode(), context)


@pytest_asyncio.fixture
async def deployed(tmp_path: Path, rendered: Rendering, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Deployed]:
    """The server of `single`, called by its name in a cluster."""
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *rest, **more: resolve("127.0.0.1" if host == HOST else host, *rest, **more)
    )
    there = made([NODE, OTHER], now=dt.datetime.now(dt.UTC))
    port = free_ports(1)[0]
    text = on_this_machine(configuration(rendered("single")), tmp_path, there["sluice-nats-server"], port)

    class Plan(NatsServerConfig):
        def config(self) -> str:
            return text

    server = NatsServer(Plan("sluice-nats-0", tmp_path / "config", port))
    await server.start()
    try:
        yield Deployed(f"tls://{HOST}:{port}", there)
    finally:
        await server.stop()


async def test_the_deployed_broker_serves_each_service_over_tls(deployed: Deployed):
    """Streams are declared by the administrator; then every service and every agent is let in by its password."""
    bus = await NatsBus.connect(deployed.url, name="streams", credentials=deployed.who(Role.ADMINISTRATOR))
    try:
        await bus.ensure_streams()
        assert [await bus.incarnation(stream) for stream in Stream]
    finally:
        await bus.close()
    for role, node in [*((role, "") for role in Role if role is not Role.NODE_AGENT), (Role.NODE_AGENT, NODE)]:
        connection = await Connection.open(deployed.url, name=role.value, credentials=deployed.who(role, node))
        await connection.close()


@pytest.mark.parametrize("stranger", ["password", "authority", "plain"])
async def test_a_stranger_is_not_let_in(deployed: Deployed, stranger):
    """Nor does a service speak to a server that its authority does not vouch for."""
    who = {
        "password": deployed.who(Role.ALLOCATOR, password="wrong-password"),
        "authority": deployed.who(
            Role.ALLOCATOR, authority=made([], now=dt.datetime.now(dt.UTC))["sluice-nats-server"]["ca.crt"]
        ),
        "plain": Credentials("allocator", "wrong-password"),
    }[stranger]
    url = deployed.url.replace("tls://", "nats://") if stranger == "plain" else deployed.url

    with pytest.raises((BusError, TimeoutError)):
        await asyncio.wait_for(Connection.open(url, name="stranger", credentials=who), 5)


async def test_an_agent_cannot_write_for_another_node(deployed: Deployed):
    """Its password is good for its own node's subjects alone."""
    bus = await NatsBus.connect(deployed.url, name="streams", credentials=deployed.who(Role.ADMINISTRATOR))
    try:
        await bus.ensure_streams()
    finally:
        await bus.close()
    agent = await Connection.open(deployed.url, name="agent", credentials=deployed.who(Role.NODE_AGENT, NODE))
    try:
        with pytest.raises(BusError, match=r"(?i)permissions violation"):
            await agent.request(f"sluice.node.{OTHER}", b"{}")
    finally:
        await agent.close()
