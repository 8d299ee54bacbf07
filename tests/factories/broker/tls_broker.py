"""A broker that speaks TLS and knows users by certificates of a test's authorities; and a stranger in its place."""

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from factories.broker.nats_server import NatsServer, NatsServerConfig
from factories.credentials import CLIENT, SERVER, Authority, Files
from factories.waiting import until

from sluice.contracts.bus.nats_permissions import certificate_name, permissions_of
from sluice.contracts.bus.streams import Role
from sluice.contracts.ids import NodeName
from sluice.runtime.nats_server.free_ports import free_ports
from sluice.runtime.nats_server.users import CertifiedUser, authorization
from sluice.runtime.settings import CommonSettings

HOST = "localhost"
WAIT_S = 60.0
RELOADED = "Reloaded server configuration"


@dataclass
class TlsBroker:
    """One server, whose certificate and configuration a test may change before a start or a reload."""

    folder: Path
    port: int
    bus: Authority
    """Vouches for brokers."""
    users: Authority
    """Vouches for users."""
    settings: Mapping[str, str] = field(default_factory=dict)
    server: NatsServer | None = None
    tls: bool = True

    @property
    def url(self) -> str:
        return f"tls://{HOST}:{self.port}"

    def shows(self, authority: Authority, *names: str, **how: object) -> None:
        """Write another certificate for the broker; it is read at its next start or reload."""
        made = authority.files("broker", *names, usages=(SERVER,), **how)  # type: ignore[arg-type]
        (self.folder / "broker.pem").write_bytes(made.certificate.read_bytes())

    def believes(self, *authorities: Authority) -> None:
        """Write the authorities whose users may connect."""
        (self.folder / "users.crt").write_bytes(b"".join(each.pair.certificate for each in authorities))

    def user(self, role: Role, node: NodeName | None = None, *, authority: Authority | None = None) -> Files:
        """The certificate of a user, and the broker's authority."""
        name = certificate_name(role, node)
        files = (authority or self.users).files(name, name, usages=(CLIENT,))
        trusts = self.folder / f"{name}.ca.crt"
        trusts.write_bytes(self.bus.pair.certificate)
        return Files(files.certificate, files.key, trusts)

    def settings_of(self, role: Role, node: NodeName | None = None) -> CommonSettings:
        files = self.user(role, node)
        who = {"nats_url": self.url, "nats_user": permissions_of(role, node).user, "nats_ca_file": files.authority}
        return CommonSettings(**who, nats_certificate_file=files.certificate, nats_key_file=files.key)

    def config(self) -> str:
        node = NodeName("gpu-1.example")
        who = [(role, node if role == Role.NODE_AGENT else None) for role in Role]
        users = [CertifiedUser(permissions_of(*each), certificate_name(*each)) for each in who]
        pem = self.folder / "broker.pem"
        files = f'cert_file: "{pem}", key_file: "{pem}", ca_file: "{self.folder}/users.crt"'
        lines = [f'listen: "127.0.0.1:{self.port}"', f'jetstream {{ store_dir: "{self.folder}/store" }}']
        lines += [f"tls {{ {files}, verify_and_map: true }}", *authorization(users)] if self.tls else []
        return "\n".join(lines) + "\n"

    async def start(self) -> None:
        """Start it, and wait until it listens."""
        self.server = server_of(self.config(), self.folder / "server", self.port)
        await self.server.start()
        async with asyncio.timeout(WAIT_S):
            while True:
                assert self.server.running, self.server.last_words()
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except OSError:
                    await asyncio.sleep(0.01)
                else:
                    writer.close()
                    await writer.wait_closed()
                    return

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop()


@asynccontextmanager
async def tls_broker(folder: Path) -> AsyncIterator[TlsBroker]:
    """A broker with a good certificate and the rights of all users; it is started by the test."""
    bus, users = Authority(folder / "bus", "Sluice bus"), Authority(folder / "users", "Sluice users")
    broker = TlsBroker(folder, free_ports(1)[0], bus, users)
    broker.shows(broker.bus, HOST)
    broker.believes(broker.users)
    try:
        yield broker
    finally:
        await broker.stop()


def server_of(text: str, folder: Path, port: int) -> NatsServer:
    """A server with a configuration that a test has written."""

    class Plan(NatsServerConfig):
        def config(self) -> str:
            return text

    return NatsServer(Plan("sluice", folder, port))


async def reloaded(server: NatsServer) -> None:
    """Have a server read its files, and wait until it confirms."""
    said = server.log.read_text().count(RELOADED)
    server.process.send_signal(signal.SIGHUP)
    await until(lambda: server.log.read_text().count(RELOADED) > said)
