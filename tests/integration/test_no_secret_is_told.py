"""Services with marked secrets, made to fail in each way: none is in output or files, whole or in pieces."""

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from factories.broker.nats_server import Broker, User
from factories.broker.tls_broker import TlsBroker, tls_broker
from factories.credentials import Authority
from factories.processes import own_environment
from factories.system import fleet_text

from sluice.contracts.bus.nats_permissions import certificate_name, permissions_of
from sluice.contracts.bus.streams import Role
from sluice.contracts.ids import NodeName
from sluice.contracts.rpc_permissions import Caller, dns_name, node_dns_name
from sluice.runtime.nats.credentials import Credentials
from sluice.runtime.nats_server.free_ports import free_ports

pytestmark = pytest.mark.slow
NODE = NodeName("gpu-1.example.internal")
PASSWORD, WRONG, IN_URL, TOKEN, HEADER = (
    f"marked-{what}-0123456789abcdef" for what in ("password", "wrong", "url", "token", "header")
)
WAIT_S = 55.0
FLEET = fleet_text(1, 1, prefix=NODE)
KUBECONFIG = f"""
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: k, user: u}}}}]
clusters: [{{name: k, cluster: {{server: "https://127.0.0.1:1"}}}}]
users: [{{name: u, user: {{token: {TOKEN}}}}}]
"""
SERVICES = {
    "sluice_allocator": Role.ALLOCATOR,
    "sluice_inventory": Role.INVENTORY,
    "sluice_node_agent": Role.NODE_AGENT,
    "sluice_pod_watcher": Role.POD_WATCHER,
}
Environments = dict[str, dict[str, str]]
ALL = (*SERVICES, "sluice_console")


@dataclass
class Rig:
    """A folder with every process's secrets."""

    folder: Path
    keys: dict[str, Path]

    def secrets(self) -> set[str]:
        found = {PASSWORD, WRONG, IN_URL, TOKEN, HEADER}
        for path in self.keys.values():
            key = path.read_text().partition("PRIVATE KEY-----")[2]
            found |= {line for line in key.splitlines() if len(line) > 30 and "-----" not in line}
        assert len(found) >= 5 + 2 * len(self.keys)
        return found

    def environment(self, service: str, **more: str) -> dict[str, str]:
        role = SERVICES.get(service, Role.CONSOLE)
        data = self.folder / "data" / service
        data.mkdir(parents=True, exist_ok=True)
        key = self.keys[service]
        own = {
            "SLUICE_NATS_PASSWORD_FILE": str(self.folder / "password"),
            "SLUICE_GRPC_CERTIFICATE_FILE": str(key),
            "SLUICE_GRPC_KEY_FILE": str(key),
            "SLUICE_GRPC_CA_FILE": str(self.folder / "rpc" / "ca.crt"),
            "SLUICE_DATA_DIR": str(data),
            "SLUICE_LOG_LEVEL": "debug",
            "SLUICE_OTLP_ENDPOINT": "http://127.0.0.1:1",
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={HEADER}",
            "PYTHONFAULTHANDLER": "1",
        }
        if role is Role.NODE_AGENT:
            own["SLUICE_NODE_AGENT_FLEET_FILE"] = str(self.folder / "fleet.toml")
        else:
            own["SLUICE_NATS_USER"] = permissions_of(role).user
        if role is Role.POD_WATCHER:
            own |= {
                "SLUICE_POD_WATCHER_ROLE": "watch",
                "SLUICE_POD_WATCHER_KUBECONFIG": str(self.folder / "kubeconfig"),
                "SLUICE_POD_WATCHER_WATCH_HEALTH_ADDRESS": "",
            }
        return own_environment() | own | more


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """Files of every kind; at the end no file written beside them holds a secret."""
    authority = Authority(tmp_path / "rpc")
    names = {
        "sluice_allocator": dns_name(Caller.ALLOCATOR),
        "sluice_inventory": dns_name(Caller.INVENTORY),
        "sluice_node_agent": node_dns_name(NODE),
        "sluice_pod_watcher": "unused.example",
        "sluice_console": dns_name(Caller.CONSOLE),
    }
    keys = {service: authority.files(service, name).certificate for service, name in names.items()}
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    (tmp_path / "fleet.toml").write_text(FLEET)
    made = Rig(tmp_path, keys)
    yield made
    written = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    for path in written:
        text = path.read_bytes().decode(errors="replace")
        assert not {secret for secret in made.secrets() if secret in text}, path


async def told(service: str, *words: str, environment: dict[str, str], until: tuple[str, ...] = ()) -> str:
    """All output of a process at its end, or crashed (SIGABRT, fault handler) once it printed one of `until`."""
    command, pipes = (sys.executable, "-m", service, *words), asyncio.subprocess
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=pipes.PIPE, stderr=pipes.STDOUT)
    text = ""
    try:
        async with asyncio.timeout(WAIT_S):
            while line := (await process.stdout.readline()).decode():
                text += line
                if process.returncode is None and any(each in line for each in until):
                    process.send_signal(6)
                    until = ()
            await process.wait()
    except TimeoutError as error:
        raise AssertionError(f"{service} goes on: {text}") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert text, "it said nothing: the test would see no secret"
    return text


def check(text: str, rig: Rig, sentence: str) -> None:
    assert sentence in " ".join(text.split()), text
    assert not {secret for secret in rig.secrets() if secret in text}, text


async def check_all(rig: Rig, environments: Environments, sentence: str, until: tuple[str, ...] = ()) -> None:
    """What each service says with its environment, and `sluice doctor` with that of the console."""
    texts = [told(each, environment=environments[each], until=until) for each in SERVICES]
    texts.append(told("sluice_console", "doctor", "--no-cluster", environment=environments["sluice_console"]))
    for text in await asyncio.gather(*texts):
        check(text, rig, sentence)


async def test_with_a_wrong_password(rig: Rig) -> None:
    """The broker refuses, the service reports why and ends."""
    users = tuple(
        User(permissions_of(role, NODE if role is Role.NODE_AGENT else None), WRONG)
        for role in (Role.ADMINISTRATOR, *SERVICES.values(), Role.CONSOLE)
    )
    probe = Credentials(users[0].rights.user, WRONG)
    async with Broker(rig.folder / "broker", users=users, probe=probe) as broker:
        forms = zip(ALL, ("json", "text", "json", "text", "text"), strict=True)
        environments = {
            service: rig.environment(service, SLUICE_NATS_URL=broker.url, SLUICE_LOG_FORMAT=form)
            for service, form in forms
        }
        await check_all(rig, environments, "does not accept these credentials")


async def test_with_a_broker_that_is_not_trusted_and_with_a_crash(rig: Rig) -> None:
    """It is retried, until the process is killed in the middle of it."""
    async with tls_broker(rig.folder / "tls") as broker:
        broker.shows(Authority(rig.folder / "foreign", "Sluice bus"), "localhost")
        await broker.start()
        environments = {each: _over_tls(rig, broker, each) for each in ALL}
        why = "the broker is not trusted: its certificate is of an authority"
        await check_all(rig, environments, why, until=("the bus cannot be reached; retrying",))


def _over_tls(rig: Rig, broker: TlsBroker, service: str) -> dict[str, str]:
    role = SERVICES.get(service, Role.CONSOLE)
    node = NODE if role is Role.NODE_AGENT else None
    name = certificate_name(role, node)
    files = broker.users.files(name, name)
    rig.keys[f"bus of {service}"] = files.key
    return rig.environment(
        service,
        SLUICE_NATS_URL=broker.url,
        SLUICE_NATS_CERTIFICATE_FILE=str(files.certificate),
        SLUICE_NATS_KEY_FILE=str(files.key),
        SLUICE_NATS_CA_FILE=str(broker.user(Role.CONSOLE).authority),
        SLUICE_LOG_FORMAT="json",
    )


async def test_with_a_secret_where_none_belongs(rig: Rig) -> None:
    """In an address: refused, and not repeated."""
    url = f"nats://alice:{IN_URL}@127.0.0.1:{free_ports(1)[0]}"
    environments = {each: rig.environment(each, SLUICE_NATS_URL=url) for each in ALL}
    await check_all(rig, environments, "must not hold a user or a password")


async def test_with_a_secret_on_the_command_line_and_in_help(rig: Rig) -> None:
    """Typed by a person, or set and then shown as a default; and where traces go."""
    url = f"nats://alice:{IN_URL}@127.0.0.1:{free_ports(1)[0]}"
    environment = rig.environment("sluice_console", SLUICE_NATS_URL=url)
    traces = rig.environment("sluice_allocator", SLUICE_OTLP_ENDPOINT=url.replace("nats", "http"))
    typed, helped, traced = await asyncio.gather(
        told("sluice_console", "gpus", "--server", url, environment=rig.environment("sluice_console")),
        told("sluice_console", "doctor", "--help", environment=environment),
        told("sluice_allocator", environment=traces),
    )
    check(typed, rig, "must not hold a user or a password")
    check(helped, rig, "--server")
    check(traced, rig, "SLUICE_OTLP_ENDPOINT must not hold a user or a password")
