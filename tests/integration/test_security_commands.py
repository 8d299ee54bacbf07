"""`sluice security`: a real broker and gRPC work with its files, nothing else gets access, and files can be rotated."""

import datetime as dt
import os
import shutil
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from factories.broker.tls_broker import reloaded, server_of
from factories.credentials import Authority
from factories.waiting import until

from sluice.contracts.bus.nats_permissions import permissions_of
from sluice.contracts.bus.streams import Role
from sluice.contracts.ids import NodeName
from sluice.contracts.pb import agent_pb2, agent_pb2_grpc, node_pb2
from sluice.contracts.rpc_permissions import node_dns_name
from sluice.runtime.bus import BusError
from sluice.runtime.grpc import transport
from sluice.runtime.grpc.security import TlsIdentity, TransportSecurity
from sluice.runtime.nats.connection import Connection
from sluice.runtime.nats.credential_files import credentials_from_settings
from sluice.runtime.nats_server.free_ports import free_ports
from sluice.runtime.settings import CommonSettings, load
from sluice.runtime.tls import certificate_authority
from sluice.runtime.tls.certificate_authority import CredentialsError
from sluice_console.shell.commands import security as typed
from sluice_console.shell.security.installation import Installation, InstallationOptions
from sluice_console.shell.security.key_folder import KeyFolder

NODE, LATER = NodeName("gpu-1.example"), NodeName("gpu-2")


def settings_of(folder: Path, service: str) -> CommonSettings:
    lines = (folder / "sluice.env").read_text().splitlines()
    return load(CommonSettings, service=service, environ=dict(line.split("=", 1) for line in lines))


class Rig:
    """An installation in a folder, and its broker, started from the generated configuration."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port = free_ports(1)[0]
        self.where = InstallationOptions(f"127.0.0.1:{self.port}")
        self.installation = Installation(KeyFolder(root), dt.datetime.now(dt.UTC))
        self.installation.create(["localhost", "127.0.0.1"], [NODE], self.where, given=None, force=False)
        text = (root / "broker" / "nats-server.conf").read_text().replace('"nats-data"', f'"{root}/nats-data"')
        self.server = server_of(text, root / "broker", self.port)

    async def connection(self, member: str, service: str) -> Connection:
        settings = settings_of(self.root / member, service)
        user = permissions_of(Role.NODE_AGENT, NodeName(member.partition("/")[2])).user if "/" in member else ""
        who = credentials_from_settings(settings, user, look_s=0)
        return await Connection.open(settings.nats_url, name=service, credentials=who, within_s=5)


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path / "made")
    await made.server.start()
    yield made
    await made.server.stop()


async def test_every_user_comes_in_with_what_was_made_and_with_nothing_more(rig: Rig) -> None:
    """All services, people and the agent; an agent that writes for another is stopped."""
    for role in Role:
        member = f"nodes/{NODE}" if role is Role.NODE_AGENT else role.value
        service = role.value if role.value in {"allocator", "inventory", "pod-watcher", "node-agent"} else "console"
        connection = await rig.connection(member, service)
        assert connection.up
        await connection.close()
    page = await rig.connection("web", "console")
    assert page.up
    await page.close()
    assert settings_of(rig.root / "web", "console").nats_user == "console"
    agent = await rig.connection(f"nodes/{NODE}", "node-agent")
    with pytest.raises(BusError, match="permissions violation"):
        await agent.request(f"sluice.node.{LATER}", b"{}")
    await agent.close()


async def test_nodes_are_added_and_forgotten_while_others_work(rig: Rig) -> None:
    """Existing connections stay; a forgotten node is cut off at once, and refused from then on."""
    old = await rig.connection(f"nodes/{NODE}", "node-agent")
    allocator = await rig.connection("allocator", "allocator")
    before = (rig.root / "allocator" / "bus.pem").read_bytes()
    rig.installation.add([LATER], rig.where)
    await reloaded(rig.server)
    new = await rig.connection(f"nodes/{LATER}", "node-agent")
    shutil.copytree(rig.root / "nodes" / NODE, rig.root / "copied")
    rig.installation.forget([NODE])
    await reloaded(rig.server)
    try:
        with pytest.raises(BusError, match="does not accept these credentials"):
            await until(old.check, within_s=15)
        assert allocator.up
        assert new.up
        assert (rig.root / "allocator" / "bus.pem").read_bytes() == before
    finally:
        for connection in (old, allocator, new):
            await connection.close()


class _Agent(agent_pb2_grpc.AgentServiceServicer):
    """An agent with an empty answer."""

    async def GetInventory(self, request, context):  # noqa: N802 - the method's name in the contract
        return node_pb2.NodeSnapshot(node=request.node)

    def register(self, server) -> None:
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self, server)


def trust(folder: Path) -> TransportSecurity:
    return TransportSecurity(TlsIdentity(folder / "rpc.pem", folder / "rpc.pem", folder / "rpc-ca.crt", look_s=0))


async def test_all_authorities_are_changed_in_three_steps_under_services_that_work(rig: Rig) -> None:
    """No connection is cut meanwhile, on the bus or gRPC; afterwards certificates of the old ones are useless."""
    shutil.copytree(rig.root / "allocator", rig.root / "stolen")
    inventory = rig.root / "inventory"
    allocator = await rig.connection("allocator", "allocator")
    try:
        async with transport.serve(_Agent().register, security=trust(rig.root / "nodes" / NODE)) as address:
            for step in (1, 2, 3):
                assert rig.installation.rotate() == step
                await reloaded(rig.server)
                await (await rig.connection("console", "console")).close()
                await allocator.up_within(10)
                allocator.check()
                named = {"security": trust(inventory), "server_name": node_dns_name(NODE)}
                async with transport.channel(address, **named) as channel:
                    stub = agent_pb2_grpc.AgentServiceStub(channel)
                    assert (await stub.GetInventory(agent_pb2.GetInventoryRequest(node="a"))).node == "a"
    finally:
        await allocator.close()
    names = {path.name for path in (rig.root / "authorities").iterdir()}
    assert names == {f"{kind}.{end}" for kind in ("bus", "users", "rpc") for end in ("crt", "key")}
    stolen = settings_of(rig.root / "allocator", "allocator")
    for file in ("bus.pem", "bus-ca.crt"):
        (rig.root / "allocator" / file).write_bytes((rig.root / "stolen" / file).read_bytes())
        with pytest.raises(BusError, match=r"not trusted|does not know its authority"):
            await Connection.open(stolen.nats_url, name="t", credentials=credentials_from_settings(stolen), within_s=3)


def test_nothing_is_readable_by_others_and_nothing_is_overwritten(tmp_path: Path, capsys) -> None:
    """A readable key is not secret; an overwritten authority cuts every process off."""
    root = tmp_path / "made"
    before = os.umask(0)  # the most careless one
    try:
        assert typed.init_command(root, host=("localhost",), node=(NODE,)) == 0
    finally:
        os.umask(before)
    printed = capsys.readouterr().out
    for path in (root, *root.rglob("*")):
        assert (path, stat.S_IMODE(path.stat().st_mode)) == (path, 0o700 if path.is_dir() else 0o600)
    old = (root / "authorities" / "bus.key").read_bytes()
    assert old.decode().splitlines()[1] not in printed
    with pytest.raises(CredentialsError, match=r"is not empty .* say --force"):
        typed.init_command(root, host=("localhost",))
    assert (root / "authorities" / "bus.key").read_bytes() == old
    assert typed.init_command(root, host=("localhost",), force=True) == 0
    assert (root / "authorities" / "bus.key").read_bytes() != old
    assert not (root / "nodes").exists()
    (root / "authorities" / "bus.key").chmod(0o640)
    with pytest.raises(CredentialsError, match=r"bus\.key is readable by other users: chmod 600"):
        typed.renew_command(root)


def test_certificates_are_renewed_when_they_are_due(tmp_path: Path) -> None:
    """Neither too late, nor all of them at each call: each renewal is a file to distribute."""
    now = dt.datetime.now(dt.UTC)
    folder = KeyFolder(tmp_path / "made")
    Installation(folder, now).create(["localhost"], [NODE], InstallationOptions(), given=None, force=False)
    pem = folder.root / "allocator" / "bus.pem"
    first = pem.read_bytes()
    Installation(folder, now).renew(everything=False)
    assert pem.read_bytes() == first
    late = now + dt.timedelta(days=certificate_authority.SERVER_DAYS - certificate_authority.RENEW_DAYS + 1)
    Installation(folder, late).renew(everything=False)
    second = pem.read_bytes()
    assert second != first
    Installation(folder, late).renew(everything=True)
    assert pem.read_bytes() != second


def test_ones_own_authority_signs_everything(tmp_path: Path) -> None:
    """And one that cannot is refused before anything is created."""
    own, other = Authority(tmp_path / "own", "ours").pair, Authority(tmp_path / "other", "other").pair
    now = dt.datetime.now(dt.UTC)
    installation = Installation(KeyFolder(tmp_path / "made"), now)
    leaf = certificate_authority.issue(own, ("a.example",), (certificate_authority.AS_CLIENT,), now)
    for given, why in (
        (certificate_authority.KeyPair(own.certificate, other.key), "--authority-key: this is not the key"),
        (leaf, "CA is false"),
        (certificate_authority.KeyPair(b"nonsense", own.key), "no certificate"),
        (certificate_authority.KeyPair(own.certificate, b"nonsense"), "no PEM key"),
    ):
        with pytest.raises(CredentialsError, match=why):
            installation.create(["localhost"], [], InstallationOptions(), given=given, force=False)
    assert not (tmp_path / "made").exists()
    installation.create(["localhost"], [NODE], InstallationOptions(), given=own, force=False)
    for name, names in (("broker/tls.pem", ("localhost",)), (f"nodes/{NODE}/rpc.pem", (node_dns_name(NODE),))):
        pem = (tmp_path / "made" / name).read_bytes()
        assert certificate_authority.is_good(certificate_authority.KeyPair(pem, pem), own, names, now)


@pytest.mark.parametrize("node", ["gpu_1", "a b", 'x", permissions: "', "..", "a..b", "x" * 64])
def test_a_name_that_no_node_has_is_refused(tmp_path: Path, node: str) -> None:
    """It would become a folder's name, and part of the broker's configuration."""
    with pytest.raises(CredentialsError, match="--node: "):
        typed.init_command(tmp_path / "made", host=("localhost",), node=(node,))
    assert not (tmp_path / "made").exists()


SAID = {"listen": "0.0.0.0:4333", "at": "/etc/sluice"}


def test_a_node_that_comes_later_gets_settings_that_work(tmp_path: Path) -> None:
    """Its agent would look for the broker at a wrong port, and for its files in a missing folder."""
    root = tmp_path / "made"
    typed.init_command(root, host=("broker.example",), node=(NODE,), **SAID)
    typed.add_node_command(root, LATER)
    environment = (root / "nodes" / LATER / "sluice.env").read_text()
    assert environment == (root / "nodes" / NODE / "sluice.env").read_text()
    assert "SLUICE_NATS_URL=tls://broker.example:4333\n" in environment
    assert "SLUICE_NATS_KEY_FILE=/etc/sluice/bus.pem\n" in environment
    settings = root / "allocator" / "sluice.env"
    before = settings.read_text()
    settings.unlink()  # its folder was brought to its machine, and is here no more
    typed.renew_command(root)
    assert settings.read_text() == before


def test_settings_that_were_made_wrongly_are_mended_by_saying_them_again(tmp_path: Path) -> None:
    """Running it again with --listen or --at reported success, and the agent kept the old ones; others keep theirs."""
    root = tmp_path / "made"
    typed.init_command(root, host=("broker.example",), node=(NODE, LATER), **SAID)
    mine, others = (root / "nodes" / node / "sluice.env" for node in (NODE, LATER))
    by_hand = mine.read_text() + "SLUICE_LOG_LEVEL=debug\n"
    for file in (mine, others):
        file.write_text(by_hand)
    typed.add_node_command(root, NODE)
    assert mine.read_text() == by_hand, "nothing was said of them"
    typed.add_node_command(root, NODE, listen="0.0.0.0:4444")
    assert "tls://broker.example:4444\n" in mine.read_text()
    assert "=/etc/sluice/bus.pem\n" in mine.read_text()
    typed.add_node_command(root, NODE, at="/srv/keys")
    assert "tls://broker.example:4333\n" in mine.read_text()
    assert "=/srv/keys/bus.pem\n" in mine.read_text()
    assert others.read_text() == by_hand


@pytest.mark.parametrize("at", ["", "/srv/broker"])
def test_where_files_lie_is_known_in_a_folder_that_was_moved(tmp_path: Path, at: str) -> None:
    """The authorities are kept elsewhere than they were created: a later node would be sent to the broker's files."""
    typed.init_command(tmp_path / "made", host=("broker.example",), at=at)
    moved = (tmp_path / "made").rename(tmp_path / "moved")
    typed.add_node_command(moved, NODE)
    lie = at or moved / "nodes" / NODE
    assert f"={lie}/bus.pem\n" in (moved / "nodes" / NODE / "sluice.env").read_text()


def test_what_the_broker_is_told_by_hand_is_not_guessed(tmp_path: Path) -> None:
    """A hand-written configuration differs: then a person is asked for both, before anything is created."""
    root = tmp_path / "made"
    typed.init_command(root, host=("broker.example",), **SAID)
    (root / "broker" / "nats-server.conf").write_text("port: 4333\n")
    why = r"nats-server\.conf does not say where .*--listen HOST:PORT --at FOLDER"
    with pytest.raises(CredentialsError, match=why):
        typed.add_node_command(root, NODE)
    assert not (root / "nodes").exists()
    typed.add_node_command(root, NODE, **SAID)
    assert "tls://broker.example:4333\n" in (root / "nodes" / NODE / "sluice.env").read_text()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"host": ("münchen.example",)}, "--host 'münchen.example': must be one name or IP address"),
        ({"host": ("localhost", "a b")}, "--host 'a b': must be"),
        ({"host": ("broker.example:4222",)}, "--host 'broker.example:4222': must be .* without a port"),
        ({"host": ("",)}, "--host '': must be"),
        ({"host": ("10.0.0.256",)}, "--host '10.0.0.256': must be"),
        ({"host": ("fe80::1%eth0",)}, "--host 'fe80::1%eth0': must be"),
        ({"listen": "foo"}, "--listen 'foo': must be HOST:PORT"),
        ({"listen": "0.0.0.0:0"}, "--listen '0.0.0.0:0': must be HOST:PORT, .* PORT from 1 to 65535"),
        ({"listen": "0.0.0.0:70000"}, "--listen '0.0.0.0:70000': must be"),
        ({"listen": "::4222"}, "--listen '::4222': must be"),
        ({"at": 'a"b'}, "--at 'a\"b': must be a folder's name without quotes"),
    ],
)
def test_what_is_typed_wrongly_costs_no_user_its_credentials(tmp_path: Path, wrong: dict, why: str) -> None:
    """With --force everything was removed first: a typo lost all authorities."""
    root = tmp_path / "made"
    typed.init_command(root, host=("localhost", "::1", "my_broker"), node=(NODE,), listen="[::]:4222")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(CredentialsError, match=why):
        typed.init_command(root, **({"host": ("localhost",)} | wrong), force=True)
    if "host" not in wrong:
        with pytest.raises(CredentialsError, match=why):
            typed.add_node_command(root, NODE, **wrong)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
