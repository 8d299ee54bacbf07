"""
A whole Sluice on this machine: broker, services, simulated nodes. Started, supervised, and stopped completely.

It starts processes and reads their readiness from the bus.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Self

from sluice.contracts.bus.store_sizes import MIB, history_bytes
from sluice.contracts.fleet_file.fleet_spec import FleetSpec, FleetSpecError, parse_fleet
from sluice.contracts.messages import BY_HAND, SourceSynced
from sluice.contracts.quotas.limits_file import BYTES_MAX, read_limits
from sluice.contracts.ticket_paths import QUOTA_LIBRARY
from sluice.contracts.toml_tables import TOML_BYTES_MAX, TableError
from sluice.runtime.bus import BusError
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.nats_server.free_ports import free_ports
from sluice.runtime.service import EXIT_CONFIG
from sluice.runtime.text_files import read_named_text
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.process_plan import SERVICES, Launch, SystemSpec, launches
from sluice_console.shell.live.connect import connected, settings_of_console
from sluice_console.shell.live.live_fleet import LiveFleet, NotAnsweringError, following
from sluice_console.shell.live.local_user import USER, environment_of, forget_password, make_password
from sluice_console.shell.live.running_systems import LOCK, RunningSystem, announce, retract, this_node
from sluice_console.shell.operate.streams import declared
from sluice_console.shell.process.broker_process import broker_spec, store_of
from sluice_console.shell.process.broker_storage import check_room, disk_bytes, keep_storing
from sluice_console.shell.process.children import Child, Children, ChildSpec, last_words
from sluice_console.shell.process.data_directory import (
    NotStartedError,
    lock_data_directory,
    made_data_directory,
    power_switch,
    short_mps_dir,
    temporary_directory,
)
from sluice_console.shell.process.power_off import WITHIN_S as POWER_OFF_WITHIN_S
from sluice_console.shell.process.power_off import power_off

BROKER, AGENT = "broker", "node-agent"
"""Prefixes of children's names for people."""
QUOTA_LIBRARY_VARIABLE = "SLUICE_NODE_AGENT_QUOTA_LIBRARY"
QUOTA_BUILT = Path(__file__).resolve().parents[5] / "out" / "quota" / QUOTA_LIBRARY
STARTS_MAX = 4
"""A child that dies so often before the system is ready ends the attempt."""
BROKER_UP_S = 20.0
BROKER_BACK_S = 60.0
"""Seconds for a restarted broker until its streams are checked."""
AGENT_PROCESSES_MAX = 8


def agent_processes() -> int:
    """Default number of node agent processes: more than the cores gain nothing."""
    return min(len(os.sched_getaffinity(0)), AGENT_PROCESSES_MAX)


@dataclass(frozen=True, slots=True)
class SystemOptions:
    """The options of `sluice up`. `data_dir` None is a temporary one, removed at the end."""

    fleet_file: Path | None
    """The simulated nodes; None is this machine with its own GPUs."""
    pods_dir: Path
    data_dir: Path | None = None
    processes: int | None = None
    """Maximum number of processes for all node agents; None is `agent_processes`."""
    allocators: int = 1
    closing_ttl_s: int | None = None
    announced: bool = True
    """Whether this user's other commands find it."""
    limits_file: Path | None = None
    """Quotas and cordons, as the pod-watcher reads them."""
    used_by: Path | None = None
    """A file that the system's users lock; the system ends with the last of them."""


class System:
    """One running system, as an async context. `say` gets a line about everything the user should know."""

    def __init__(self, options: SystemOptions, say: Callable[[str], None]) -> None:
        """Check the options. Raises NotStartedError."""
        self._options = options
        self._say = say
        fleet = _read_fleet(options.fleet_file) if options.fleet_file is not None else FleetSpec(())
        self.nodes = tuple(str(node.name) for node in fleet.nodes) or (this_node(),)
        self._largest_node_gpus = max((sum(kind.count for kind in node.gpus) for node in fleet.nodes), default=0)
        if not os.path.isdir(options.pods_dir):  # noqa: PTH112 - `is_dir` raises where it may not look
            raise NotStartedError(f"--pods {options.pods_dir} is no folder: make it first (mkdir)")
        _check_limits(options.limits_file)
        _check_settings()
        self._children = Children(say, self._reborn, self._given_up)
        self._stack = AsyncExitStack()
        self._connections = AsyncExitStack()
        self._failed: asyncio.Future[str] | None = None
        self._bus: NatsBus | None = None
        self.data_dir = Path()
        self.nats_url = ""
        self.inventory_address = ""
        self.monitor = ""
        self._history_bytes = 0

    @property
    def bus(self) -> NatsBus:
        """The console's own connection."""
        assert self._bus is not None, "it is started first"
        return self._bus

    @property
    def live(self) -> LiveFleet:
        """The last values of the system, kept current."""
        return self._live

    async def __aenter__(self) -> Self:
        """Start everything; `ready` waits until it is usable. Raises NotStartedError."""
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop everything, within a bounded time."""
        await self._stop()

    async def _start(self) -> None:
        self._failed = asyncio.get_running_loop().create_future()
        lock = self._take_data_dir()
        check_room(self.data_dir)
        self._history_bytes = history_bytes(disk_bytes(self.data_dir, store_of(self.data_dir)))
        mps_dir = short_mps_dir(self.data_dir, self.nodes)
        self._stack.push_async_callback(self._switch_off, power_switch(self.data_dir, mps_dir, lock))
        nats_port, grpc_port, monitor_port = free_ports(3)
        self.nats_url = f"nats://127.0.0.1:{nats_port}"
        self.inventory_address = f"127.0.0.1:{grpc_port}"
        self.monitor = f"127.0.0.1:{monitor_port}"
        logs = self.data_dir / "logs"
        owner = (USER, make_password(self.data_dir, self.nats_url))
        self._stack.callback(forget_password, self.data_dir, self.nats_url)
        broker = broker_spec(
            BROKER, nats_port, self.data_dir, logs / "broker.log", monitor_port=monitor_port, owner=owner
        )
        await self._children.start(broker)
        self._bus = await self._connect()
        try:
            await declared(self._bus, history_bytes=self._history_bytes, within_s=BROKER_UP_S, resize=True)
        except TimeoutError:
            raise NotStartedError(f"the broker does not work: {last_words(logs / 'broker.log')}") from None
        wanted = SystemSpec(
            nodes=self.nodes,
            fleet_file=str(self._options.fleet_file.resolve()) if self._options.fleet_file is not None else "",
            pods_dir=str(self._options.pods_dir.resolve()),
            data_dir=str(self.data_dir),
            nats_url=self.nats_url,
            inventory_address=self.inventory_address,
            processes=self._options.processes or agent_processes(),
            allocators=self._options.allocators,
            closing_ttl_s=self._options.closing_ttl_s,
            mps_dir=mps_dir,
            # Not resolved: the link's target may change.
            limits_file=str(self._options.limits_file.absolute()) if self._options.limits_file is not None else "",
            history_mib=self._history_bytes // MIB,
            quota_library=quota_library(),
            bus_user=environment_of(self.data_dir),
            largest_node_gpus=self._largest_node_gpus,
        )
        for launch in launches(wanted):
            await self._children.start(_spec(launch, logs))
        self._live = await self._connections.enter_async_context(following(self.bus))
        running = self.running()
        announce(running, to_user=self._options.announced)
        self._stack.callback(retract, running)
        keeping = asyncio.create_task(
            keep_storing(self.monitor, self.data_dir, say=self._say, start_again=self._start_broker_again)
        )
        self._stack.push_async_callback(_ended, keeping)

    async def _start_broker_again(self) -> None:
        await self._children.start_again(BROKER)

    def running(self) -> RunningSystem:
        """The system's addresses."""
        return RunningSystem(
            pid=os.getpid(),
            nats_url=self.nats_url,
            inventory_grpc=self.inventory_address,
            data_dir=str(self.data_dir),
            pods_dir=str(self._options.pods_dir.resolve()),
            nodes=self.nodes,
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            used_by=str(self._options.used_by or ""),
            monitor=self.monitor,
            simulated=self._options.fleet_file is not None,
        )

    def _take_data_dir(self) -> IO[str]:
        """Create the data directory and lock it until the system has stopped."""
        if self._options.data_dir is None:
            self.data_dir = temporary_directory("sluice-")
            self._stack.callback(shutil.rmtree, self.data_dir, ignore_errors=True)
        else:
            self.data_dir = made_data_directory(self._options.data_dir)
        lock = lock_data_directory(self.data_dir / LOCK)
        self._stack.callback(lock.close)
        return lock

    async def _connect(self) -> NatsBus:
        try:
            return await self._connections.enter_async_context(connected(self.nats_url, within_s=BROKER_UP_S))
        except BusError as error:
            words = last_words(self.data_dir / "logs" / "broker.log")
            raise NotStartedError(f"the broker does not work: {error} {words}".strip()) from error

    async def also(self, spec: ChildSpec) -> None:
        """Run one more process beside the services, supervised and stopped like them. Raises OSError."""
        await self._children.start(spec)

    async def ready(self, *, within_s: float) -> None:
        """Return when all nodes are adopted and read, and the pods are. Raises NotAnsweringError, NotStartedError."""
        assert self._failed is not None
        waiting = asyncio.ensure_future(
            self._live.until(self._is_ready, within_s=within_s, what="every node to be opened")
        )
        try:
            await asyncio.wait((waiting, self._failed), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise NotStartedError(self._failed.result())
            try:
                await waiting
            except NotAnsweringError as error:
                raise NotAnsweringError(f"{error}; {self._what_is_missing()}") from None
        finally:
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError, NotAnsweringError):
                await waiting
        self._failed = None

    def _is_ready(self, fleet_state: FleetState) -> bool:
        inventories = fleet_state.inventories()
        pulled = all(node in inventories and not inventories[node].stale for node in self.nodes)
        read = any(True for _ in fleet_state.of("source", SourceSynced))
        return pulled and read and not fleet_state.unopened(list(self.nodes))

    def _what_is_missing(self) -> str:
        fleet_state = self._live.fleet_state
        unopened = fleet_state.unopened(list(self.nodes))
        silent = [node for node in self.nodes if node not in fleet_state.inventories()]
        parts = [f"not opened: {', '.join(unopened[:5])}"] if unopened else []
        parts += [f"not pulled: {', '.join(silent[:5])}"] if silent else []
        return f"{'; '.join(parts) or 'the manifests were not read'} (logs are in {self.data_dir / 'logs'})"

    def _given_up(self, child: Child, code: int) -> bool:
        """
        Before the system is ready, an error that a person must fix ends the attempt at once, others after STARTS_MAX.

        Later both are restarted: a full disk may have room again.
        """
        if self._failed is None or (code != EXIT_CONFIG and child.failed_starts < STARTS_MAX):
            return False
        if not self._failed.done():
            words = last_words(child.spec.log) or "it said nothing"
            how = "cannot work" if code == EXIT_CONFIG else "does not stay up"
            self._failed.set_result(f"{child.spec.name} {how}: {words}{self._instead(child)}")
        return True

    def _instead(self, child: Child) -> str:
        """The alternative if an agent cannot serve this machine's GPUs."""
        if self._options.fleet_file is not None or not child.spec.name.startswith(AGENT):
            return ""
        return "; without a GPU --fleet FILE simulates some (examples/fleet.toml)"

    async def _reborn(self, child: Child) -> None:
        if child.spec.name == BROKER and self._bus is not None:  # otherwise the waiting process declares the streams
            await self._ensure_streams_again(self._bus)

    async def _ensure_streams_again(self, bus: NatsBus) -> None:
        """The restarted broker may have lost its store."""
        try:
            await declared(bus, history_bytes=self._history_bytes, within_s=BROKER_BACK_S)
        except TimeoutError:
            self._say(f"the broker was started again but does not answer for {BROKER_BACK_S:g} s")

    async def _stop(self) -> None:
        services = tuple(child.spec.name for child in self._children if child.spec.name != BROKER)
        async with self._stack:
            killed = await self._children.stop(services)
            try:
                await self._connections.aclose()  # raises the error that ended a reader
            finally:
                killed += await self._children.stop((BROKER,))
                for name in killed:
                    self._say(f"{name} did not stop by itself and was killed")

    async def _switch_off(self, switch: subprocess.Popen[bytes]) -> None:
        """The agents have ended; end their simulated machines."""
        assert switch.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it was killed
            switch.stdin.close()
        try:
            done = await asyncio.to_thread(switch.wait, 2 * POWER_OFF_WITHIN_S) == 0
        except subprocess.TimeoutExpired:
            switch.kill()
            done = switch.wait() == 0
        if not done and not await asyncio.to_thread(power_off, self.data_dir):
            self._say(f"MPS daemons of {self.data_dir} did not end within {POWER_OFF_WITHIN_S:g} s")

    def kill_now(self) -> None:
        """Kill every process without waiting, for the second Ctrl-C."""
        self._children.kill_now()


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _read_fleet(file: Path) -> FleetSpec:
    try:
        return parse_fleet(read_named_text(file, TOML_BYTES_MAX), origin=str(file))
    except OSError as error:
        raise NotStartedError(f"--fleet {file} cannot be read: {error.strerror}") from error
    except FleetSpecError as error:
        raise NotStartedError(str(error)) from error


def _check_limits(file: Path | None) -> None:
    """Errors are reported here, in the terminal; later ones by the pod-watcher, which rereads the file, in its log."""
    if file is None:
        return
    try:
        read_limits(read_named_text(file, BYTES_MAX), origin=str(file), source=BY_HAND)
    except OSError as error:
        raise NotStartedError(f"--limits {file} cannot be read: {error.strerror}") from error
    except TableError as error:
        raise NotStartedError(str(error)) from error


def _check_settings() -> None:
    """Check the environment that every service reads before starting the broker."""
    try:
        settings_of_console()
    except BusError as error:
        raise NotStartedError(str(error)) from error


def quota_library() -> str:
    """The library that `make quota` built beside this source, unless the environment names another, or none.

    Empty if there is none: the agents then use the path of our image."""
    if QUOTA_LIBRARY_VARIABLE in os.environ or not QUOTA_BUILT.is_file():
        return ""
    return str(QUOTA_BUILT)


def _spec(launch: Launch, logs: Path) -> ChildSpec:
    environment = {name: value for name, value in os.environ.items() if name != "SLUICE_CONFIG"} | launch.variables
    command = (sys.executable, "-m", SERVICES[launch.service])
    return ChildSpec(launch.name, command, environment, logs / f"{launch.name.replace(' ', '-')}.log")
