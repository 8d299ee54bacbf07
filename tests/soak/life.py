"""One run of the agent's process: the real core, its runner, executors, journal and tickets, over the driver's bus.

It is forked from the driver, which has imported everything, so that a restart costs milliseconds. Its journal can
strike: kill this very process before, within or after the n-th writing of a record, or wait there for the driver to do
worse.
"""

import asyncio
import faulthandler
import functools
import gc
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from soak.wire import Channel, ChannelClosedError, PipeBus

from sluice.contracts.ids import NodeName, RunId
from sluice.runtime import logs
from sluice.runtime.clock import SystemClock
from sluice.runtime.core_runner import CoreRunner
from sluice.runtime.tracing.request_traces import RequestTraces
from sluice_node_agent.core.agent import Agent
from sluice_node_agent.core.config import AgentConfig
from sluice_node_agent.core.events import AgentStarted
from sluice_node_agent.core.journal_records import Record
from sluice_node_agent.device.mps.daemons import MpsDaemons
from sluice_node_agent.device.port import GpuBackend
from sluice_node_agent.dra.calls import KubeletCalls
from sluice_node_agent.shell.journal.journal import Journal
from sluice_node_agent.shell.journal.ownership_marks import OwnershipMarks
from sluice_node_agent.shell.runner.executors import StepExecutors, ThreadPools
from sluice_node_agent.shell.tickets.tickets import Tickets

Side = Literal["before", "torn", "after"]
TICK_S = 0.02
STRIKE_WAIT_S = 30.0
"""How long a step that was stopped waits for the driver's line, far above what it needs."""
EXIT_FAILED = 70
QUICK = AgentConfig(
    closing_ttl_s=600,
    tombstone_ttl_s=1200,
    back_off_first_s=0.02,
    back_off_max_s=0.1,
    quarantine_after=3,
    remake_retry_s=0.1,
    read_devices_s=0.5,
    look_s=0.5,
    watch_mps_s=0.3,
)
"""The agent's rules, with the waits of an impatient operator. Nothing is forgotten in the middle of an enumeration."""


@dataclass(frozen=True, slots=True)
class Strike:
    """What happens at the n-th writing from now on: death, or a pause in which the driver does something."""

    at: int
    side: Side
    kills: bool = True


class Place:
    """Where a node keeps its things; as the service lays them out below its data directory."""

    def __init__(self, data: Path, node: NodeName) -> None:
        self.data, self.node = data, node
        self.agent = data / "agents" / node
        self.journal = self.agent / "journal"
        self.tickets = data / "tickets" / node
        self.mps = data / "mps" / node
        self.hardware = data / "hardware" / f"{node}.json"
        self.log = data / "agent.log"
        """What all runs of the agent have logged."""


class StrikingJournal(Journal):
    """The agent's journal, in which death can wait."""

    def __init__(self, place: Place, channel: Channel) -> None:
        super().__init__(place.agent, place.node)
        self._channel = channel
        self._strike: Strike | None = None
        self._count = 0
        self.missed: Callable[[tuple[Any, ...]], object] = _discarded
        """Collects what the driver says while death waits, for afterwards."""

    def arm(self, strike: Strike | None) -> None:
        self._count = 0
        self._strike = strike

    def write(self, records: Sequence[Record]) -> None:
        """Write, unless death is first."""
        self._count += 1
        strike = self._strike if self._strike is not None and self._count == self._strike.at else None
        self._channel.send("append", [name_of(record) for record in records], strike is not None)
        if strike is not None and strike.side == "torn":
            os.write = functools.partial(_write_half_and_die, os.write)  # type: ignore[assignment]
        if strike is not None and strike.side == "before":
            self._fall(strike)
        super().write(records)
        if strike is not None and strike.side == "after":
            self._fall(strike)

    def _fall(self, strike: Strike) -> None:
        if strike.kills:
            os.kill(os.getpid(), signal.SIGKILL)
        self._channel.send("paused")
        heard: list[tuple[Any, ...]] = []
        until = time.monotonic() + STRIKE_WAIT_S
        while ("go on",) not in heard:  # the whole process stands still
            if not select.select([self._channel.socket], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError("the driver did not say to go on")
            heard += self._channel.receive()
        for frame in heard:
            self.missed(frame)


def _discarded(frame: tuple[Any, ...]) -> object:
    raise AssertionError(f"{frame} came before its listener")


def name_of(record: Record) -> str:
    """What kind of step a record announces or ends, the same for every slice: what an enumeration must have met."""
    said = type(record).__name__
    phase = getattr(record, "phase", "")
    devices = getattr(record, "devices", ()) or (() if (one := getattr(record, "device", None)) is None else (one,))
    far = ",".join(f"{d.step}{'+gi' if d.gi_id is not None else ''}{'+ci' if d.uuid else ''}" for d in devices)
    flags = [flag for flag in ("ticket", "stale_tickets", "daemon", "pid", "limits") if getattr(record, flag, None)]
    return " ".join(part for part in (said, phase, far, *flags) if part)


def run_life(
    place: Place,
    channel: Channel,
    run: str,
    config: AgentConfig,
    make: Callable[[], tuple[Any, Any]],
    strike: Strike | None,
) -> NoReturn:
    """Run until killed, ordered to stop, or alone. Never returns: the process is the driver's copy."""
    code = EXIT_FAILED
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        gc.enable()
        with place.log.open("a", encoding="utf-8") as log:
            faulthandler.register(signal.SIGUSR1, file=log, all_threads=True)
            logs.configure(service="node-agent", run=run, level="warning", form="json", stream=log)
            try:
                backend, mps = make()
                asyncio.run(_live(place, channel, RunId(run), config, backend, mps, strike))
                code = 0
            except ChannelClosedError:
                code = 0
            except BaseException:
                logs.get("soak").exception("the agent ended")
                raise
    finally:
        os._exit(code)


async def _live(
    place: Place,
    channel: Channel,
    run: RunId,
    config: AgentConfig,
    backend: GpuBackend,
    mps: MpsDaemons,
    strike: Strike | None,
) -> None:
    loop = asyncio.get_running_loop()
    bus = PipeBus(channel)
    journal = StrikingJournal(place, channel)
    journal.arm(strike)
    core = Agent(place.node, run, config)
    stop = loop.create_future()
    ear = _Ear(channel, bus, journal, core, stop)
    journal.missed = functools.partial(loop.call_soon, ear.take)
    marks = OwnershipMarks(place.tickets.parent / "marks", backend.boot_id())
    started = _what_is_there(backend, journal, Tickets(place.tickets), marks, mps)
    gpus = ThreadPoolExecutor(max(1, len(started.gpus)), thread_name_prefix="gpu")
    helpers = ThreadPools.for_nodes(1)
    calls = KubeletCalls(lambda event: runner.offer(event))  # noqa: PLW0108 - made below
    async with StepExecutors(
        backend, journal, Tickets(place.tickets), marks, gpus, mps=mps, helpers=helpers, calls=calls
    ) as step_executors:
        runner: CoreRunner[Any] = CoreRunner(
            name="soak",
            core=core,
            bus=bus,  # type: ignore[arg-type]
            clock=SystemClock(),
            traces=RequestTraces(),
            ledger=place.node,
            execute=step_executors.executors(core.request_of),
            tick_s=TICK_S,
        )
        await runner.offer(started)
        loop.add_reader(channel.socket, ear.hear)
        channel.send("started", os.getpid())
        running = asyncio.ensure_future(runner.run())
        done, _ = await asyncio.wait({running, stop}, return_when=asyncio.FIRST_COMPLETED)
        loop.remove_reader(channel.socket)
        if running in done:
            running.result()
        running.cancel()
        await asyncio.wait({running})
    helpers.shut_down()
    journal.close()
    stop.result()


@dataclass(slots=True)
class _Ear:
    """What the driver says, on its way to its reader."""

    channel: Channel
    bus: PipeBus
    journal: StrikingJournal
    core: Agent
    stop: asyncio.Future[None]

    def hear(self) -> None:
        """An event arrived. At its end the parent is gone, so this process ends."""
        try:
            frames = self.channel.receive()
        except ChannelClosedError as error:
            asyncio.get_running_loop().remove_reader(self.channel.socket)
            if not self.stop.done():
                self.stop.set_exception(error)
            return
        for frame in frames:
            self.take(frame)

    def take(self, frame: tuple[Any, ...]) -> None:
        match frame:
            case ("answer", question, answer):
                self.bus.answered(question, answer)
            case ("batch", batch):
                self.bus.read(batch)
            case ("arm", strike):
                self.journal.arm(strike)
                self.channel.send("armed")
            case ("go on",):
                pass  # it was waited for, and is over
            case ("snapshot",):
                self.channel.send("snapshot", self.core.snapshot() if self.core.started else None)
            case ("stop",) if not self.stop.done():
                self.stop.set_result(None)


def _what_is_there(
    backend: GpuBackend, journal: Journal, tickets: Tickets, marks: OwnershipMarks, mps: MpsDaemons
) -> AgentStarted:
    gpus = backend.read()
    problem = journal.problem
    if not problem and journal.is_new and any(gpu.instances for gpu in gpus):
        problem = "there is no journal, but there are instances on the GPUs"
    return AgentStarted(
        boot_id=backend.boot_id(),
        endpoint="127.0.0.1:1",
        gpus=gpus,
        records=journal.records(),
        journal_problem=problem,
        driver_version=backend.driver_version(),
        tickets=tickets.names(),
        found_tickets=tickets.read(),
        modes=("exclusive", "mps", "fractional"),
        mps_root=str(mps.root),
        homes=mps.found(),
        marks=marks.found(gpus),
        unmarked=marks.unmarked(),
    )


def _write_half_and_die(write: Callable[[int, bytes], int], descriptor: int, data: bytes) -> int:
    write(descriptor, bytes(data)[: max(1, len(data) // 2)])
    os.kill(os.getpid(), signal.SIGKILL)
    return 0
