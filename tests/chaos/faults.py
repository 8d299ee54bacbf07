"""Does to a running system what a fault says, and mends it: with everything running when its method returns."""

import asyncio
import errno
import json
import signal
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nats
import psutil
from chaos.plan import Fault
from chaos.system import System
from chaos.wires import Wire
from factories.broker.nats_server import NatsServer
from factories.processes import Process
from nats.errors import Error as NatsError

LEADERS = ("BOOK", "STATE", "the cluster")
LEADER_WITHIN_S = 30.0
IN_STEP_WITHIN_S = 60.0
ASK_S = 2.0
ASK_AGAIN_S = 0.1
RUNS_WITHIN_S = 10.0
"""How long a service that has died by itself is waited for: what is dead cannot be killed."""
LOUD_WITHIN_S = 15.0
VISIT_AGAIN_S = 0.5
NO_ROOM = b"No space left on device"
BLOCK = b"\0" * 65_536


class NotDoneError(Exception):
    """A fault could not be done as it was meant. Says why."""


class Faults:
    """Everything that can be done to one system."""

    def __init__(self, system: System, visit: Callable[[str], object]) -> None:
        """`visit` brings a pod to a node, so that its agent has something to do."""
        self._system = system
        self._visit = visit
        self.silent: list[str] = []
        """Agents that ended for want of a journal, and did not say so."""
        self._kinds: dict[str, Callable[[Fault], Awaitable[float]]] = {
            "broker-kill": lambda fault: self._kill_brokers([system.server(fault.victim)], fault),
            "leader-kill": self._kill_leader,
            "all-brokers-kill": lambda fault: self._kill_brokers(system.broker.servers, fault),
            "broker-freeze": lambda fault: self._freeze(system.server(fault.victim), fault),
            "broker-restart": self._restart_broker,
            "broker-wipe": lambda fault: self._wipe_brokers([system.server(fault.victim)], fault),
            "all-brokers-wipe": lambda fault: self._wipe_brokers(system.broker.servers, fault),
            "service-kill": lambda fault: self._end_service(fault, _kill),
            "service-freeze": self._freeze_service,
            "service-restart": lambda fault: self._end_service(fault, Process.stop),
            "link-cut": lambda fault: self._cut(system.wires[fault.victim], fault),
            "links-cut": lambda fault: self._cut(system.every_wire(), fault),
            "links-slow": self._slow,
            "server-cut": self._cut_server,
            "disk-full": self._fill_disk,
            "journal-wipe": lambda fault: self._end_service(fault, self._kill_and_wipe),
        }

    async def do(self, fault: Fault) -> float:
        """Do it. Returns when it ended (unix s): when what was broken was started or mended."""
        return await self._kinds[fault.kind.name](fault)

    # -- brokers ------------------------------------------------------------------------------------------------------

    async def _kill_brokers(self, servers: Iterable[NatsServer], fault: Fault, *, wipe: bool = False) -> float:
        servers = list(servers)
        await asyncio.gather(*(server.kill() for server in servers))
        if wipe:
            for server in servers:
                server.wipe()
        await asyncio.sleep(fault.hold_s)
        ended = time.time()
        await asyncio.gather(*(server.start() for server in servers))
        return ended

    async def _wipe_brokers(self, servers: Iterable[NatsServer], fault: Fault) -> float:
        """One disk of a cluster may only be lost when both others have everything."""
        servers = list(servers)
        if len(servers) < self._system.size:
            await self.in_step()
        return await self._kill_brokers(servers, fault, wipe=True)

    async def _kill_leader(self, fault: Fault) -> float:
        name = await self._leader(LEADERS[fault.number % len(LEADERS)])
        return await self._kill_brokers([self._system.server(name)], fault)

    @staticmethod
    async def _freeze(process: NatsServer | Process, fault: Fault) -> float:
        process.freeze()
        try:
            await asyncio.sleep(fault.hold_s)
        finally:
            process.thaw()
        return time.time()

    async def _restart_broker(self, fault: Fault) -> float:
        server = self._system.server(fault.victim)
        await server.stop()
        await asyncio.sleep(fault.hold_s)
        ended = time.time()
        await server.start()
        return ended

    async def _leader(self, of: str) -> str:
        """The server that leads a stream, or the cluster."""
        deadline = time.monotonic() + LEADER_WITHIN_S
        while time.monotonic() < deadline:
            if of == LEADERS[-1]:
                found = await self._leader_of_cluster()
            else:
                found = str((await self._info(of)).get("leader", ""))
            if found:
                return found
            await asyncio.sleep(ASK_AGAIN_S)
        raise NotDoneError(f"{of} has no leader for {LEADER_WITHIN_S:g} s")

    async def _leader_of_cluster(self) -> str:
        for plan in self._system.plans:
            try:
                said = await asyncio.to_thread(_get, f"http://{plan.address}:{plan.http_port}/jsz")
            except OSError:
                continue
            if leader := said.get("meta_cluster", {}).get("leader", ""):
                return str(leader)
        return ""

    async def _info(self, stream: str) -> dict:
        urls = self._system.broker.url.split(",")
        try:
            client = await nats.connect(urls, allow_reconnect=False, connect_timeout=2, error_cb=_nothing)
        except (NatsError, OSError):
            return {}
        try:
            answer = await client.request(f"$JS.API.STREAM.INFO.{stream}", timeout=ASK_S)
        except (NatsError, OSError):
            return {}
        finally:
            await client.close()
        found = json.loads(answer.data).get("cluster") or {}
        assert isinstance(found, dict)
        return found

    async def in_step(self) -> None:
        """Wait until every server of a cluster has everything. Raises NotDoneError."""
        deadline = time.monotonic() + IN_STEP_WITHIN_S
        behind = ["BOOK", "STATE", "HISTORY"] if self._system.size > 1 else []
        while behind:
            if time.monotonic() > deadline:
                raise NotDoneError(f"the servers are not in step after {IN_STEP_WITHIN_S:g} s: {behind}")
            behind = [stream for stream in behind if not self._has_all(await self._info(stream))]
            if behind:
                await asyncio.sleep(ASK_AGAIN_S)

    def _has_all(self, cluster: dict) -> bool:
        def is_in_step(each: dict) -> bool:
            return bool(each.get("current")) and not each.get("offline") and not each.get("lag")

        followers = sum(map(is_in_step, cluster.get("replicas") or []))
        return bool(cluster.get("leader")) and followers == self._system.size - 1

    # -- services -----------------------------------------------------------------------------------------------------

    async def _running(self, victim: str) -> Process:
        """The service, as soon as it runs. Raises NotDoneError."""
        process, deadline = self._system.services[victim], time.monotonic() + RUNS_WITHIN_S
        while not process.runs:
            if time.monotonic() > deadline:
                raise NotDoneError(f"{victim} does not run for {RUNS_WITHIN_S:g} s")
            await asyncio.sleep(ASK_AGAIN_S)
        return process

    async def _freeze_service(self, fault: Fault) -> float:
        return await self._freeze(await self._running(fault.victim), fault)

    async def _end_service(self, fault: Fault, end: Callable[[Process], object]) -> float:
        await self._running(fault.victim)
        with self._system.on_purpose(fault.victim) as process:
            await asyncio.to_thread(end, process)
            await asyncio.sleep(fault.hold_s)
            return time.time()

    def _kill_and_wipe(self, agent: Process) -> None:
        """As when a node's disk is lost. What is on the devices stays, and so do tickets: pods have them mounted."""
        _kill(agent)
        for each in self._system.journal(self._system.node_of(agent.name)).iterdir():
            each.unlink()

    # -- network ------------------------------------------------------------------------------------------------------

    async def _cut(self, wires: Iterable[Wire], fault: Fault) -> float:
        with _mended(wires) as each:
            for wire in each:
                wire.cut()
            await asyncio.sleep(fault.hold_s)
        return time.time()

    async def _slow(self, fault: Fault) -> float:
        with _mended(self._system.every_wire()) as each:
            for wire in each:
                wire.delay_s = fault.delay_s
            await asyncio.sleep(fault.hold_s)
        return time.time()

    async def _cut_server(self, fault: Fault) -> float:
        islands, plans = self._system.islands, self._system.plans
        assert islands is not None, "without networks of their own this kind is left out"
        with islands.cut([plan.name for plan in plans].index(fault.victim)):
            await asyncio.sleep(fault.hold_s)
        return time.time()

    # -- disks --------------------------------------------------------------------------------------------------------

    async def _fill_disk(self, fault: Fault) -> float:
        """Until the agent has ended because of it: it must say so, and not go on without its journal."""
        agent, node = fault.victim, self._system.node_of(fault.victim)
        process = await self._running(agent)
        deaths, log = len(self._system.died()), process.log
        said = log.stat().st_size
        with self._system.deaths.allowed(process), self._full(agent):
            await self._until_dead(agent, deaths)
            await asyncio.sleep(fault.hold_s)
        if self._system.small_disks and NO_ROOM not in _since(log, said):
            self.silent.append(f"the agent of {node} ended without a word of its full disk")
        return time.time()

    @contextmanager
    def _full(self, agent: str) -> Iterator[None]:
        """The disk has no room; where it is not the journal's own, only this run of the agent has none."""
        disk = self._system.journal(self._system.node_of(agent))
        if not self._system.small_disks:
            process = psutil.Process(self._system.services[agent].pid)
            process.rlimit(psutil.RLIMIT_FSIZE, ((disk / "journal").stat().st_size, psutil.RLIM_INFINITY))
            yield
            return
        ballast = disk / "ballast"
        try:
            _fill(ballast)
            yield
        finally:
            ballast.unlink()

    async def _until_dead(self, agent: str, deaths: int) -> None:
        deadline = time.monotonic() + LOUD_WITHIN_S
        while all(death.name != agent for death in self._system.deaths.seen[deaths:]):
            if time.monotonic() > deadline:
                raise NotDoneError(f"{agent} goes on without a disk for {LOUD_WITHIN_S:g} s")
            self._visit(self._system.node_of(agent))
            await asyncio.sleep(VISIT_AGAIN_S)


def _kill(process: Process) -> None:
    """Raises NotDoneError when it has ended by itself just before."""
    process.kill()
    if process.code != -signal.SIGKILL:
        raise NotDoneError(f"{process.name} had ended with exit code {process.code} before it was killed")


@contextmanager
def _mended(wires: Iterable[Wire]) -> Iterator[list[Wire]]:
    each = list(wires)
    try:
        yield each
    finally:
        for wire in each:
            wire.mend()


def _fill(ballast: Path) -> None:
    """Write until the disk is full, to the last byte that it takes."""
    with ballast.open("wb", buffering=0) as out:
        for chunk in (BLOCK, BLOCK[:1024], BLOCK[:1]):
            try:
                while True:
                    out.write(chunk)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def _since(log: Path, position: int) -> bytes:
    with log.open("rb") as file:
        file.seek(position)
        return file.read()


def _get(url: str) -> dict:
    with urllib.request.urlopen(url, timeout=ASK_S) as answer:
        found = json.loads(answer.read())
    assert isinstance(found, dict)
    return found


async def _nothing(_: Exception) -> None: ...
