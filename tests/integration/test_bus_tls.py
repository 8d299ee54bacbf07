"""The bus over TLS: which clients are admitted, which broker is trusted, no plain text, and rotated files."""

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
import structlog
from factories.broker.nats_server import Broker, User
from factories.broker.tls_broker import HOST, TlsBroker, reloaded, tls_broker
from factories.credentials import SERVER, Authority, Files
from factories.waiting import until

from sluice.contracts.bus.events import Stream
from sluice.contracts.bus.nats_permissions import certificate_name, permissions_of
from sluice.contracts.bus.streams import Role
from sluice.contracts.ids import NodeName
from sluice.runtime.bus import BusError, DeniedError
from sluice.runtime.nats.connection import Connection
from sluice.runtime.nats.credential_files import CredentialError
from sluice.runtime.nats.credential_files import credentials_from_settings as credentials
from sluice.runtime.nats.credentials import Credentials
from sluice.runtime.nats.history import open_history
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.nats_server.free_ports import free_ports
from sluice.runtime.prometheus import metrics
from sluice.runtime.prometheus.runtime_metrics import DENIED
from sluice.runtime.settings import CommonSettings

NODE = NodeName("gpu-1.example")
PATIENCE_S = 3.0
"""For a broker that refuses us: it has answered many times by then."""
NOT_ACCEPTED = "the broker does not accept our certificate (nats_certificate_file):"
PASSWORD = "marked-bus-password-0123456789"


@pytest_asyncio.fixture
async def broker(tmp_path: Path) -> AsyncIterator[TlsBroker]:
    """A broker that is not started yet."""
    async with tls_broker(tmp_path) as made:
        yield made


async def opened(settings: CommonSettings, user: str = "") -> Connection:
    """A connection as a service opens it, for a bounded time."""
    who = credentials(settings, user, look_s=0)
    return await Connection.open(settings.nats_url, name="test", credentials=who, within_s=PATIENCE_S)


def showing(broker: TlsBroker, files: Files | None) -> CommonSettings:
    """The settings of an allocator with another certificate, or without one."""
    certificate, key = (None, None) if files is None else (files.certificate, files.key)
    settings = broker.settings_of(Role.ALLOCATOR)
    return msgspec.structs.replace(settings, nats_certificate_file=certificate, nats_key_file=key)


async def why_not(settings: CommonSettings) -> str:
    with pytest.raises(BusError) as caught:
        await opened(settings)
    return str(caught.value)


async def is_told(settings: CommonSettings, why: str) -> None:
    """A broker that closes with our login unread resets the connection, and may so take its alert back."""
    said = ""

    async def look() -> bool:
        nonlocal said
        said = await why_not(settings)
        return why in said

    await until(look, lambda: f"{why!r} instead of {said!r}")


# -- who is let in ------------------------------------------------------------------------------------------------


async def test_a_certificate_has_the_rights_of_its_owner_alone(broker: TlsBroker) -> None:
    """Services and an agent connect by certificates alone; one that writes for another node is stopped, by name."""
    await broker.start()
    administrator, console = (credentials(broker.settings_of(role)) for role in (Role.ADMINISTRATOR, Role.CONSOLE))
    bus = await NatsBus.connect(broker.url, name="a", credentials=administrator)
    await bus.ensure_streams()
    assert [await bus.incarnation(stream) for stream in Stream]
    await bus.close()
    async with open_history(broker.url, name="console", credentials=console):
        pass
    agent = await opened(broker.settings_of(Role.NODE_AGENT, NODE), permissions_of(Role.NODE_AGENT, NODE).user)
    try:
        await agent.request("sluice.node.gpu-1_example", b"{}")
        before = metrics.value(DENIED, "publish")
        denied = r"does not let 'node-agent.gpu-1_example' publish to 'sluice.node.gpu-2'"
        with pytest.raises(DeniedError, match=denied):
            await agent.request("sluice.node.gpu-2", b"{}")
        assert metrics.value(DENIED, "publish") == before + 1
    finally:
        await agent.close()


@pytest.mark.parametrize(
    ("stranger", "why"),
    [
        ("authority", f"{NOT_ACCEPTED} it does not know its author"),
        ("none", "the broker requires a client certificate: set nats_certificate_file and nats_key_file"),
        ("server's", f"{NOT_ACCEPTED} it is"),
        ("name", "the server does not accept these credentials"),
    ],
)
async def test_a_stranger_is_not_let_in_and_is_told_why(broker: TlsBroker, stranger: str, why: str) -> None:
    """A stolen name without its key, a key without the name, and nothing at all."""
    await broker.start()
    name = certificate_name(Role.ALLOCATOR)
    shown = {
        "authority": Authority(broker.folder / "foreign", "Sluice users").files("allocator", name),
        "none": None,
        "server's": broker.users.files("wrong-use", name, usages=(SERVER,)),
        "name": broker.users.files("stranger", "stranger.bus.sluice.internal"),
    }[stranger]
    await is_told(showing(broker, shown), why)


async def test_an_alert_is_told_also_where_a_write_notices_the_end_first(broker: TlsBroker, monkeypatch) -> None:
    """Half of all tries: the first line in the log would name no cause."""
    drain = asyncio.StreamWriter.drain

    async def late(writer: asyncio.StreamWriter) -> None:
        if writer.get_extra_info("ssl_object") is None:
            return await drain(writer)
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        raise ConnectionResetError("Connection lost")

    monkeypatch.setattr(asyncio.StreamWriter, "drain", late)
    await broker.start()
    with structlog.testing.capture_logs() as logged:
        await is_told(showing(broker, None), "the broker requires a client certificate")
    assert "Connection lost" not in {line.get("why") for line in logged}


async def test_a_certificate_that_has_ended_is_not_shown_at_all(broker: TlsBroker) -> None:
    """One sentence at the start, instead of a broker's unhelpful error."""
    files = broker.users.files("ended", certificate_name(Role.ALLOCATOR), age_days=900)
    with pytest.raises(CredentialError, match=r"nats_certificate_file: the certificate in .* has expired"):
        credentials(showing(broker, files))


# -- who is believed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("authority", "the broker is not trusted: its certificate is of an authority that nats_ca_file does not hold"),
        ("name", "the broker is not trusted: its certificate is not for the name in nats_url"),
        ("ended", "the broker is not trusted: its certificate has expired"),
        ("plain text", "the broker speaks plain text, and TLS is configured (nats_ca_file)"),
    ],
)
async def test_a_broker_that_is_not_ours_is_not_believed(broker: TlsBroker, wrong: str, why: str) -> None:
    """An impostor would decide which pod has which slice."""
    if wrong == "authority":
        broker.shows(Authority(broker.folder / "foreign", "Sluice bus"), HOST)
    elif wrong == "name":
        broker.shows(broker.bus, "broker.example")
    elif wrong == "ended":
        broker.shows(broker.bus, HOST, age_days=900)
    else:
        broker.tls = False
    await broker.start()
    settings = broker.settings_of(Role.ALLOCATOR)
    with structlog.testing.capture_logs() as logged:
        said = await why_not(settings)
    assert said == f"no NATS server answers at {broker.url}: {why}"
    # A service waits without end; then this logged once is all that a person sees.
    told = [line["why"] for line in logged if line["event"].startswith("the bus cannot be reached")]
    assert told.count(why) == 1
    with pytest.raises(BusError) as caught:
        async with open_history(broker.url, name="console", credentials=credentials(settings), timeout_s=2):
            pass
    assert why in str(caught.value)


async def test_who_asks_for_tls_gets_no_plain_text(broker: TlsBroker) -> None:
    """`tls://` without nats_ca_file: anybody between reads along, and decides what an operator is shown."""
    broker.tls = False
    await broker.start()
    why = "the broker speaks plain text, and nats_url asks for TLS"
    with pytest.raises(BusError, match=why):
        await Connection.open(broker.url, name="t", within_s=1)
    with pytest.raises(BusError, match=why):
        async with open_history(broker.url, name="console", timeout_s=2):
            pass


async def test_a_broker_is_believed_as_soon_as_its_certificate_is_good_again(broker: TlsBroker) -> None:
    """A service started meanwhile would otherwise have to be restarted, on every node."""
    broker.shows(broker.bus, HOST, age_days=900)
    await broker.start()
    who = credentials(broker.settings_of(Role.ALLOCATOR))
    with structlog.testing.capture_logs() as logged:
        opening = asyncio.ensure_future(Connection.open(broker.url, name="t", credentials=who, within_s=15))
        tried = "the bus cannot be reached; retrying"
        await until(lambda: [line["event"] for line in logged].count(tried) == 1)
        broker.shows(broker.bus, HOST)
        await reloaded(broker.server)
        connection = await opening
    assert connection.up
    await connection.close()


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[tuple[int, list[bytes]]]:
    """A man in the middle that claims to use plain text: its port, and what it received."""
    heard: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b'INFO {"server_id":"x","version":"2.15.1","max_payload":1048576,"headers":true,"jetstream":true}\r\n'
        )
        while data := await reader.read(1000):
            heard.append(data)
            if b"PING" in data:
                writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], heard
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("how", ["told to speak TLS", "beyond this machine"])
async def test_a_password_is_never_said_in_plain_text_to_the_network(how, tmp_path, monkeypatch, broker) -> None:
    """The client library sends it to any server, if not stopped."""
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    settings = CommonSettings(nats_user="allocator", nats_password_file=file)
    host = HOST
    if how == "told to speak TLS":
        settings = msgspec.structs.replace(settings, nats_ca_file=broker.user(Role.ALLOCATOR).authority)
    else:
        host = "broker.example"
        resolve = socket.getaddrinfo
        monkeypatch.setattr(
            socket, "getaddrinfo", lambda name, *a, **k: resolve("127.0.0.1" if name == host else name, *a, **k)
        )
    async with listening() as (port, heard):
        said = await why_not(msgspec.structs.replace(settings, nats_url=f"nats://{host}:{port}"))
    assert "plain text" in said
    assert PASSWORD not in said
    assert PASSWORD.encode() not in b"".join(heard)


# -- new files ----------------------------------------------------------------------------------------------------


async def test_files_that_turn_bad_cut_no_client_off(broker: TlsBroker) -> None:
    """Half of a rotation, or a typo."""
    await broker.start()
    settings = broker.settings_of(Role.ADMINISTRATOR)
    who = credentials(settings, look_s=0)
    first = who.current()
    good = settings.nats_ca_file.read_bytes()
    for spoil, why in (
        (lambda: settings.nats_ca_file.write_bytes(b"nonsense"), "nats_ca_file: .* holds no certificates"),
        (settings.nats_ca_file.unlink, "nats_ca_file: .* cannot be read"),
        (lambda: settings.nats_certificate_file.write_text("x"), "must hold a certificate and its key"),
    ):
        settings.nats_ca_file.write_bytes(good)
        spoil()
        with structlog.testing.capture_logs() as logged:
            assert who.current() is first
            assert who.current() is first
        (line,) = [each for each in logged if each["log_level"] == "error"]
        assert line["event"] == "the new files are invalid; the old ones stay in use"
        assert re.search(why, line["why"]), line
    await (await Connection.open(broker.url, name="t", credentials=who, within_s=PATIENCE_S)).close()


async def test_a_new_password_is_used_when_the_broker_asks_for_it(tmp_path: Path) -> None:
    """It is changed at the broker and in the file; the service is not restarted."""
    file = tmp_path / "password"
    rights = permissions_of(Role.ADMINISTRATOR)
    port = free_ports(1)[0]
    settings = CommonSettings(nats_url=f"nats://127.0.0.1:{port}", nats_user=rights.user, nats_password_file=file)
    connection = None
    try:
        for password in ("first-password", "second-password"):
            probe = Credentials(rights.user, password)
            file.write_text(password)
            async with Broker(tmp_path / "nats", port=port, users=(User(rights, password),), probe=probe):
                connection = connection or await opened(settings)
                await connection.up_within(10)
                assert connection.up
                connection.check()
            await until(lambda connection=connection: not connection.up)
    finally:
        if connection is not None:
            await connection.close()


# -- settings -----------------------------------------------------------------------------------------------------


def test_half_of_a_certificate_is_refused(tmp_path: Path) -> None:
    """A broker refuses a service without its certificate, with an unhelpful error."""
    with pytest.raises(CredentialError, match="nats_key_file, nats_ca_file must be set too"):
        credentials(CommonSettings(nats_certificate_file=tmp_path / "a.pem"))
