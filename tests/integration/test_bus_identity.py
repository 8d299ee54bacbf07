"""Services authenticate on a bus with users: as deployed, from settings, with the password in a file."""

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from factories.broker.guarded_broker import Guarded, guarded_broker
from factories.processes import finished, own_environment
from factories.system import fleet_text
from factories.waiting import until

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream
from sluice.contracts.bus.nats_permissions import permissions_of
from sluice.contracts.bus.streams import Role
from sluice.contracts.ids import NodeName
from sluice.runtime.nats.credential_files import CredentialError, credentials_from_settings
from sluice.runtime.service import EXIT_DENIED
from sluice.runtime.settings import CommonSettings

NODE = NodeName("gpu-1.example.internal")
FLEET = fleet_text(1, 1, prefix=NODE)


@dataclass
class Deployed:
    """A broker whose users' passwords lie in files."""

    guarded: Guarded
    folder: Path

    def environment(self, role: Role, **more: str) -> dict[str, str]:
        """Of a process in this `role`."""
        user = permissions_of(role, NODE if role is Role.NODE_AGENT else None).user
        own = {} if role is Role.NODE_AGENT else {"SLUICE_NATS_USER": user}
        own |= {"SLUICE_NATS_URL": self.guarded.url, "SLUICE_NATS_PASSWORD_FILE": str(self.folder / user)}
        return own_environment() | own | more

    async def ensure_streams(self) -> None:
        bus = await self.guarded.bus(Role.ADMINISTRATOR)
        await bus.ensure_streams()
        await bus.ensure_agent(NODE)

    async def hears_of(self, node: NodeName) -> None:
        """Wait until a node's agent has published something."""
        bus = await self.guarded.bus(Role.ALLOCATOR)
        await until(lambda: bus.last(Stream.STATE, subjects.node(node).subject))


@pytest_asyncio.fixture
async def deployed(tmp_path: Path) -> AsyncIterator[Deployed]:
    async with guarded_broker(tmp_path / "broker", NODE) as guarded:
        for name, who in guarded.users.items():
            (tmp_path / name).write_text(f"{who.password}\n")
        yield Deployed(guarded, tmp_path)


async def ended(module: str, *words: str, environment: dict[str, str]) -> tuple[int, str]:
    """How a process ends, and all that it says."""
    code, out, err = await finished(sys.executable, "-m", module, *words, environment=environment)
    return code, out + err


async def test_streams_are_declared_by_the_administrator_alone(deployed: Deployed) -> None:
    """The Job of a deployment, with its own password and with another's."""
    for role, code in ((Role.ADMINISTRATOR, 0), (Role.INVENTORY, 1)):
        found, text = await ended("sluice_console", "streams", "ensure", environment=deployed.environment(role))
        assert (found, role) == (code, role), text


@pytest.mark.parametrize("role", [Role.ALLOCATOR, Role.INVENTORY, Role.NODE_AGENT])
async def test_a_service_works_with_its_password_and_not_without(deployed: Deployed, role: Role, tmp_path) -> None:
    """It would otherwise end at once, at every node of a cluster."""
    await deployed.ensure_streams()
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(FLEET)
    more = {"SLUICE_DATA_DIR": str(tmp_path / "data"), "SLUICE_LOG_FORMAT": "json", "SLUICE_LOG_LEVEL": "info"}
    if role is Role.NODE_AGENT:
        more |= {"SLUICE_NODE_AGENT_FLEET_FILE": str(fleet)}
    module = f"sluice_{role.value.replace('-', '_')}"
    environment = deployed.environment(role, **more)
    pipe, command = asyncio.subprocess.PIPE, (sys.executable, "-m", module)
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=pipe, stderr=pipe)
    text = ""
    try:
        async with asyncio.timeout(60):
            while not ("serving" in text or "agent of a node" in text) and (line := await process.stderr.readline()):
                text += line.decode()
        assert "credentials" not in text.lower(), text
        if role is Role.NODE_AGENT:
            await deployed.hears_of(NODE)
        assert process.returncode is None, text
    finally:
        process.terminate()
        await asyncio.wait_for(process.communicate(), 60)
    del environment["SLUICE_NATS_PASSWORD_FILE"]
    code, text = await ended(module, environment=environment)
    assert code == 1
    assert "does not accept these credentials" in text


async def test_a_service_with_anothers_user_ends_and_says_which_subject_it_was(deployed: Deployed, tmp_path) -> None:
    """It would wait without end otherwise; and of all exit codes, this one must be distinct."""
    await deployed.ensure_streams()
    environment = deployed.environment(Role.INVENTORY, SLUICE_DATA_DIR=str(tmp_path), SLUICE_LOG_FORMAT="json")
    code, text = await ended("sluice_allocator", environment=environment)
    assert code == EXIT_DENIED, text
    assert "permissions violation: the broker does not let 'inventory' publish to '$js.api." in text
    assert "Traceback" not in text


async def test_people_look_with_the_password_of_the_console(deployed: Deployed) -> None:
    """Also at the history: a command must work in a cluster as on a desk."""
    await deployed.ensure_streams()
    environment = deployed.environment(Role.CONSOLE)
    for words, code in ((("events",), 0), (("gpus",), 0), (("doctor", "--no-cluster"), 1)):
        found, text = await ended("sluice_console", *words, environment=environment)
        assert (found, words) == (code, words), text
        assert "ermission" not in text, text
    assert "the streams are there as declared" in text
    del environment["SLUICE_NATS_PASSWORD_FILE"]
    code, text = await ended("sluice_console", "doctor", "--no-cluster", environment=environment)
    assert (code, "does not accept these credentials" in text) == (2, True), text


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A missing Secret is one sentence, not a refusal by the broker."""
    empty = tmp_path / "empty"
    empty.touch()
    with pytest.raises(CredentialError, match=r"nats_password_file: .* is empty"):
        credentials_from_settings(CommonSettings(nats_password_file=empty))
    with pytest.raises(CredentialError, match=r"nats_password_file: .* cannot be read"):
        credentials_from_settings(CommonSettings(nats_password_file=tmp_path / "none"))
    with pytest.raises(CredentialError, match=r"nats_ca_file: .* has 0 bytes; PEM is expected"):
        credentials_from_settings(CommonSettings(nats_ca_file=empty))
    assert credentials_from_settings(CommonSettings()) is None
