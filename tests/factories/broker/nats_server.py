"""Real nats-server processes: one, or three as a cluster, on loopback ports; each can be killed, frozen, restarted."""

import asyncio
import contextlib
import shutil
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

from sluice.contracts.bus.nats_permissions import Permissions
from sluice.runtime.bus import BusError
from sluice.runtime.nats.connection import Connection
from sluice.runtime.nats.credentials import Credentials
from sluice.runtime.nats.wire_format import ApiError
from sluice.runtime.nats_server import server_config
from sluice.runtime.nats_server.free_ports import LOOPBACK, free_ports
from sluice.runtime.nats_server.server_config import BrokerError, server_binary
from sluice.runtime.nats_server.users import Callout, authorization

READY_TIMEOUT_S = 20.0
CLUSTER_READY_TIMEOUT_S = 80.0
"""A cluster elects a leader, then one of each stream: 4 to 9 s a round (raft.go), and several may fail."""
STOP_TIMEOUT_S = 5.0
POLL_S = 0.02
STOPPED_POLL_S = 0.001


@dataclass(frozen=True, slots=True)
class User:
    """A user of the bus with a password, as administrators of brokers of their own may have it."""

    rights: Permissions
    password: str = field(repr=False)

    def who(self) -> str:
        """Its identity in the configuration."""
        return f'user: "{self.rights.user}", password: "{self.password}"'


@dataclass(frozen=True, slots=True)
class NatsServerConfig(server_config.NatsServerConfig):
    """One server: also its place in a cluster, and its users."""

    cluster_port: int = 0
    routes: tuple[int, ...] = ()
    users: tuple[User, ...] = ()
    callout: Callout | None = None

    def config(self) -> str:
        lines = authorization(self.users, self.callout)
        if self.routes:
            routes = ", ".join(f'"nats-route://{LOOPBACK}:{port}"' for port in self.routes)
            lines.append(f'cluster {{ name: sluice, listen: "{LOOPBACK}:{self.cluster_port}", routes: [{routes}] }}')
        return "\n".join([server_config.NatsServerConfig.config(self), *lines]) + "\n"


class ServerProcess(Protocol):
    """A running nats-server process, in whatever environment."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None:
        """None while it runs; the negative of the signal that ended it."""

    def send_signal(self, signal: int, /) -> None:
        """Send it a signal. Raises ProcessLookupError when it has ended."""

    async def wait(self) -> int: ...


Launch = Callable[[Path, Path], Awaitable[ServerProcess]]
"""Starts a nats-server on a configuration file and writes its output to a log file. Raises BrokerError."""


async def launch_process(config: Path, log: Path) -> ServerProcess:
    """A process of this machine. Raises BrokerError without a program."""
    with log.open("ab") as out:
        return await asyncio.create_subprocess_exec(
            server_binary(),
            "-c",
            str(config),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,  # a Ctrl-C in our terminal is for us; the broker stops after its clients
        )


@dataclass(slots=True)
class NatsServer:
    """One nats-server; it can be killed and started again on the same port and store."""

    plan: NatsServerConfig
    launch: Launch = launch_process
    process: ServerProcess | None = None

    @property
    def url(self) -> str:
        return f"nats://{LOOPBACK}:{self.plan.port}"

    @property
    def log(self) -> Path:
        return self.plan.directory / "nats-server.log"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def start(self) -> None:
        """Start the process; `Broker.ready` waits until it can be used. Raises BrokerError without a program."""
        assert not self.running, "it is running"
        self.plan.directory.mkdir(parents=True, exist_ok=True)
        config = self.plan.directory / "nats-server.conf"
        config.touch(mode=0o600)  # it may hold passwords
        config.write_text(self.plan.config())
        self.process = await self.launch(config, self.log)

    async def stop(self) -> None:
        if self.process is None:
            return
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self.process.wait()
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        if self.process is not None:
            self._signal(signal.SIGKILL)
            await self.process.wait()

    def freeze(self) -> None:
        """Pause the process (SIGSTOP). Raises BrokerError when it keeps running."""
        self._signal(signal.SIGSTOP)
        if self.running and self.process is not None:
            until_stopped(self.process.pid)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def wipe(self) -> None:
        assert not self.running, "it is running"
        shutil.rmtree(self.plan.directory / "store", ignore_errors=True)

    def last_words(self) -> str:
        with contextlib.suppress(OSError):
            lines = self.log.read_text(errors="replace").splitlines()
            return lines[-1] if lines else ""
        return ""

    def _signal(self, number: signal.Signals) -> None:
        if self.running and self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)


def until_stopped(pid: int) -> None:
    """Wait (on Linux) until no thread of a process runs after SIGSTOP. Raises BrokerError after STOP_TIMEOUT_S."""
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while not all(_is_stopped(thread) for thread in Path(f"/proc/{pid}/task").glob("*/stat")):
        if time.monotonic() > deadline:
            raise BrokerError(f"process {pid} still runs {STOP_TIMEOUT_S:g} s after SIGSTOP")
        time.sleep(STOPPED_POLL_S)


def _is_stopped(thread: Path) -> bool:
    try:
        return thread.read_text().rpartition(")")[2].split()[0] in {"T", "Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return True


@dataclass(slots=True)
class Broker:
    """One server or a cluster of three, ready inside the `async with`. `directory` keeps data, settings and logs."""

    directory: Path
    size: int = 1
    port: int = 0
    users: tuple[User, ...] = ()
    callout: Callout | None = None
    probe: Credentials | None = None
    """The user that polls readiness: needs the right to ask about a stream. Only with `users`."""
    launch: Launch = launch_process
    servers: list[NatsServer] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self.servers = [NatsServer(plan, self.launch) for plan in self._plans()]
        try:
            for server in self.servers:
                await server.start()
            await self.ready()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    @property
    def url(self) -> str:
        return ",".join(server.url for server in self.servers)

    async def ready(self, timeout_s: float | None = None) -> None:
        """Wait until JetStream answers at every running server. Raises BrokerError, at once when a server has ended."""
        if timeout_s is None:
            timeout_s = READY_TIMEOUT_S if self.size == 1 else CLUSTER_READY_TIMEOUT_S
        try:
            async with asyncio.timeout(timeout_s):
                for server in self.servers:
                    if server.process is not None and (server.running or server.process.returncode != -signal.SIGKILL):
                        await self._answers(server)
        except TimeoutError:
            words = "; ".join(server.last_words() for server in self.servers)
            raise BrokerError(f"nats-server does not answer within {timeout_s:g} s: {words}") from None

    async def _answers(self, server: NatsServer) -> None:
        await _until(lambda: self._listens(server))
        try:
            connection = await Connection.open(server.url, name="probe", credentials=self.probe)
            try:
                await _until(lambda: _has_jetstream(connection))
            finally:
                await connection.close()
        except BusError as error:
            raise BrokerError(str(error)) from error

    async def _listens(self, server: NatsServer) -> bool:
        if not server.running:
            raise BrokerError(f"nats-server has ended: {server.last_words()}")
        try:
            _, writer = await asyncio.open_connection(LOOPBACK, server.plan.port)
        except OSError:
            return False
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return True

    async def _stop(self) -> None:
        await asyncio.gather(*(server.stop() for server in self.servers))

    def _plans(self) -> list[NatsServerConfig]:
        if self.size == 1:
            port = self.port or free_ports(1)[0]
            return [NatsServerConfig("sluice", self.directory, port, users=self.users, callout=self.callout)]
        ports = free_ports(2 * self.size)
        routes = tuple(ports[self.size :])
        return [
            NatsServerConfig(
                f"sluice-{n}",
                self.directory / str(n),
                ports[n],
                cluster_port=routes[n],
                routes=routes,
                users=self.users,
                callout=self.callout,
            )
            for n in range(self.size)
        ]


async def _has_jetstream(connection: Connection) -> bool:
    try:
        await connection.ask("STREAM.INFO.BOOK")
    except TimeoutError:
        return False
    except ApiError as error:
        return error.code < 500
    return True


async def _until(asked: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await asked():
            return
        await asyncio.sleep(POLL_S)
