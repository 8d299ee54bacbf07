"""Services authenticate on a bus with users: as deployed, from settings, with the password in a file."""

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from factories.system import fleet_text

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream
from sluice.contracts.bus.nats_permissions import permissions_of
from sluice.contracts.bus.streams import Role
from sluice.contracts.ids import NodeName
from sluice.runtime.nats.credential_files import CredentialError, credentials_from_settings
from sluice.runtime.nats.credentials import Credentials
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.nats_server.process import Broker
from sluice.runtime.nats_server.users import User
from sluice.runtime.service import EXIT_DENIED
from sluice.runtime.settings import CommonSettings

NODE = NodeName("gpu-1.example.internal")
FLEET = fleet_text(1, 1, prefix=NODE)


class Guarded:
    """A broker with users, whose passwords lie in files."""

    def __init__(self, url: str, folder: Path) -> None:
        """`folder` holds a file per user."""
        self.url = url
        self._folder = folder

    def environment(self, role: Role, **more: str) -> dict[str, str]:
        """Of a process in this `role`."""
        user = permissions_of(role, NODE if role is Role.NODE_AGENT else None).user
        own = {} if role is Role.NODE_AGENT else {"SLUICE_NATS_USER": user}
        file = str(self._folder / user)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
        return kept | own | {"SLUICE_NATS_URL": self.url, "SLUICE_NATS_PASSWORD_FILE": file} | more

    @asynccontextmanager
    async def bus(self, role: Role) -> AsyncIterator[NatsBus]:
        password = (self._folder / role.value).read_text().strip()
        bus = await NatsBus.connect(self.url, name=role.value, credentials=Credentials(role.value, password))
        try:
            yield bus
        finally:
            await bus.close()

    async def hears_of(self, node: NodeName) -> None:
        """Wait until a node's agent has published something; bounded."""
        async with self.bus(Role.ALLOCATOR) as bus, asyncio.timeout(60):
            while await bus.last(Stream.STATE, subjects.node(node).subject) is None:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)


@pytest_asyncio.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    """The administrator, the allocator, the inventory, one node's agent, and read-only people."""
    roles = (Role.ADMINISTRATOR, Role.ALLOCATOR, Role.INVENTORY, Role.NODE_AGENT, Role.CONSOLE)
    users = tuple(
        User(permissions_of(role, NODE if role is Role.NODE_AGENT else None), secrets.token_hex(8)) for role in roles
    )
    for user in users:
        (tmp_path / user.rights.user).write_text(f"{user.password}\n")
    probe = Credentials(users[0].rights.user, users[0].password)
    async with Broker(tmp_path / "broker", users=users, probe=probe) as broker:
        yield Guarded(broker.url, tmp_path)


async def run(module: str, *words: str, environment: dict[str, str]) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *words, env=environment, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )


async def said(process: asyncio.subprocess.Process, *sentences: str) -> str:
    """The output of a process up to the first of these sentences, or its end; bounded."""
    text = ""
    async with asyncio.timeout(60):
        while line := (await process.stdout.readline()).decode():
            text += line
            if any(sentence in line for sentence in sentences):
                break
    return text


async def test_streams_are_declared_by_the_administrator_alone(guarded: Guarded) -> None:
    """The Job of a deployment, with its own password and with another's."""
    for role, code in ((Role.ADMINISTRATOR, 0), (Role.INVENTORY, 1)):
        process = await run("sluice_console", "streams", "ensure", environment=guarded.environment(role))
        text = await said(process)
        assert (await process.wait(), role) == (code, role), text


@pytest.mark.parametrize("role", [Role.ALLOCATOR, Role.INVENTORY, Role.NODE_AGENT])
async def test_a_service_works_with_its_password_and_not_without(guarded: Guarded, role: Role, tmp_path: Path) -> None:
    """It would otherwise end at once, at every node of a cluster."""
    async with guarded.bus(Role.ADMINISTRATOR) as bus:
        await bus.ensure_streams()
        await bus.ensure_agent(NODE)
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(FLEET)
    more = {"SLUICE_DATA_DIR": str(tmp_path / "data"), "SLUICE_LOG_FORMAT": "json", "SLUICE_LOG_LEVEL": "info"}
    if role is Role.NODE_AGENT:
        more |= {"SLUICE_NODE_AGENT_FLEET_FILE": str(fleet)}
    module = f"sluice_{role.value.replace('-', '_')}"
    environment = guarded.environment(role, **more)
    process = await run(module, environment=environment)
    try:
        text = await said(process, "serving", "agent of a node")
        assert "credentials" not in text.lower(), text
        if role is Role.NODE_AGENT:
            await guarded.hears_of(NODE)
        assert process.returncode is None, text
    finally:
        process.terminate()
        await asyncio.wait_for(process.communicate(), 60)
    del environment["SLUICE_NATS_PASSWORD_FILE"]
    process = await run(module, environment=environment)
    text = await said(process)
    assert await process.wait() == 1
    assert "does not accept these credentials" in text


async def test_a_service_with_anothers_user_ends_and_says_which_subject_it_was(
    guarded: Guarded, tmp_path: Path
) -> None:
    """It would wait without end otherwise; and of all exit codes, this one must be distinct."""
    async with guarded.bus(Role.ADMINISTRATOR) as bus:
        await bus.ensure_streams()
    environment = guarded.environment(Role.INVENTORY, SLUICE_DATA_DIR=str(tmp_path), SLUICE_LOG_FORMAT="json")
    process = await run("sluice_allocator", environment=environment)
    text = await said(process)
    assert await process.wait() == EXIT_DENIED, text
    assert "permissions violation: the broker does not let 'inventory' publish to '$js.api." in text
    assert "Traceback" not in text


async def test_people_look_with_the_password_of_the_console(guarded: Guarded) -> None:
    """Also at the history: a command must work in a cluster as on a desk."""
    async with guarded.bus(Role.ADMINISTRATOR) as bus:
        await bus.ensure_streams()
    environment = guarded.environment(Role.CONSOLE)
    for words, code in ((("events",), 0), (("gpus",), 0), (("doctor", "--no-cluster"), 1)):
        process = await run("sluice_console", *words, environment=environment)
        text = await said(process)
        assert (await process.wait(), words) == (code, words), text
        assert "ermission" not in text, text
    assert "the streams are there as declared" in text
    del environment["SLUICE_NATS_PASSWORD_FILE"]
    process = await run("sluice_console", "doctor", "--no-cluster", environment=environment)
    text = await said(process)
    assert (await process.wait(), "does not accept these credentials" in text) == (2, True), text


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
