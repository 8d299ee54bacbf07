"""A node around the agent's core: real files for hardware, journal and tickets, a made-up bus, and crashes at will."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from factories.gpus.machine import made_hardware, well_made
from factories.journals import append
from factories.words import booking_of
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import events as bus_events
from sluice.contracts.bus import subjects
from sluice.contracts.fleet_file.fleet_spec import parse_fleet
from sluice.contracts.ids import AllocationId, GpuUuid, Incarnation, NodeName, OperationId, RunId
from sluice_node_agent.core import events as ev
from sluice_node_agent.core import instructions as do
from sluice_node_agent.core.agent import Agent
from sluice_node_agent.core.config import AgentConfig
from sluice_node_agent.device.port import DeviceError
from sluice_node_agent.preflight.findings import Machine
from sluice_node_agent.shell.journal.journal import Journal
from sluice_node_agent.shell.journal.ownership_marks import OwnershipMarks
from sluice_node_agent.shell.tickets.tickets import Tickets
from sluice_node_agent.simulated.backend import SimulatedBackend
from sluice_node_agent.simulated.hardware_file import HardwareFile, Process

FLEET = """
[[node]]
name = "n1.example"
gpus = [{ model = "a100-40gb", count = 2, mig = true }, { model = "a100-40gb", count = 1, mig = false }]
"""


@dataclass
class Daemon:
    """An MPS daemon of the node: outlives every agent, and holds its device."""

    order: do.StartMps
    pid: int
    limits: Any
    clients: dict[int, str]
    fault: str = ""
    waiting: tuple[int, ...] = ()
    dead: bool = False


class Daemons:
    """All MPS daemons of a node, by home. What a real one would refuse is refused."""

    def __init__(self, hardware: HardwareFile) -> None:
        self.hardware = hardware
        self.homes: dict[str, Daemon] = {}
        self.refusals: list[type] = []
        self.pid = 100
        self.started = 0
        self.quotas: dict[str, do.SetQuotas] = {}
        """The orders that the token scheduler of each home has; it dies with its agent."""
        self.greeted: tuple[int, ...] = ()

    def found(self) -> tuple[ev.FoundMpsHome, ...]:
        return tuple(
            ev.FoundMpsHome(
                home=d.order.home,
                gpu=d.order.gpu,
                device=d.order.device,
                namespace=d.order.namespace,
                uid=d.order.uid,
                pid=0 if d.dead else d.pid,
                started_at=0 if d.dead else 7,
            )
            for d in self.homes.values()
        )

    def living(self) -> list[Daemon]:
        return [daemon for daemon in self.homes.values() if not daemon.dead]

    def carry_out(self, order: Any) -> Any:
        if self.refusals and isinstance(order, self.refusals[0]):
            self.refusals.pop(0)
            return ev.MpsRefused(order.token, "refused by the test")
        daemon = self.homes.get(order.home)
        match order:
            case do.StartMps():
                return self._start(order, daemon)
            case do.SetMpsLimits():
                daemon.limits = order.limits
                return ev.MpsLimitsSet(order.token)
            case do.WatchMps():
                return self._look(order, daemon)
            case do.SetQuotas():
                self.quotas[order.home] = order
                return ev.QuotasSet(order.token)
            case do.TerminateMpsClients():
                assert daemon is not None
                for pid in order.pids:
                    daemon.clients.pop(pid, None)
                    self.leave(pid)
                return ev.MpsClientsTerminated(order.token)
            case do.StopMps():
                if daemon is not None:
                    self.leave(daemon.pid)
                    del self.homes[order.home]
                return ev.MpsStopped(order.token)
        raise AssertionError(order)

    def _look(self, order: do.WatchMps, daemon: Daemon | None) -> ev.MpsSeen:
        if daemon is None or daemon.dead or daemon.pid != order.pid:
            return ev.MpsSeen(order.token, alive=False)
        clients = tuple(ev.MpsClient(pid, owner) for pid, owner in daemon.clients.items())
        quota = ev.QuotaSeen(alive=True, greeted=self.greeted) if order.home in self.quotas else None
        return ev.MpsSeen(order.token, True, daemon.fault, clients, daemon.waiting, quota)

    def _start(self, order: do.StartMps, daemon: Daemon | None) -> Any:
        if daemon is None or daemon.dead:
            there = {gpu.uuid for gpu in self.hardware.read().gpus}
            there |= {instance.uuid for gpu in self.hardware.read().gpus for instance in gpu.instances}
            if order.device not in there:
                return ev.MpsRefused(order.token, f"no device {order.device}")
            self.pid += 1
            self.started += 1
            daemon = self.homes[order.home] = Daemon(order, self.pid, order.limits, {})
            self.enter(self.pid, order.device, "", "mps")
        daemon.limits = order.limits
        return ev.MpsStarted(order.token, daemon.pid, 7)

    def enter(self, pid: int, device: str, owner: str, kind: str = "compute") -> None:
        with self.hardware.changing() as hardware:
            gpu = next(g for g in hardware.gpus if device in {g.uuid, *(i.uuid for i in g.instances)})
            gpu.processes.append(Process(pid=pid, owner=owner, device=device, kind=kind))

    def connect(self, pid: int, owner: str = "pod-1") -> Daemon:
        """A process of a pod becomes a client of the only daemon that runs."""
        (daemon,) = self.living()
        daemon.clients[pid] = owner
        self.enter(pid, daemon.order.device, owner)
        return daemon

    def disconnect(self, pid: int) -> None:
        """A client ends."""
        (daemon,) = self.living()
        del daemon.clients[pid]
        self.leave(pid)

    def leave(self, pid: int) -> None:
        with self.hardware.changing() as hardware:
            for gpu in hardware.gpus:
                gpu.processes = [process for process in gpu.processes if process.pid != pid]

    def die(self, daemon: Daemon) -> None:
        """A daemon is killed; its directories stay, and its clients have lost the device."""
        daemon.dead = True
        for pid in (daemon.pid, *daemon.clients):
            self.leave(pid)
        daemon.clients.clear()

    def reboot(self) -> None:
        for daemon in self.homes.values():
            daemon.dead = True
            daemon.clients.clear()


@dataclass
class Node:
    """One node: what survives a crash (files, bus), and the agent that does not."""

    tmp_path: Path
    config: AgentConfig
    fleet: str = FLEET
    has_pods: bool = False
    time_quota: bool = False
    unseen: str = ""
    """Why it cannot be looked at what runs of each pod."""

    def __post_init__(self) -> None:
        self.fleet_node = parse_fleet(self.fleet, origin="test").nodes[0]
        self.name: NodeName = self.fleet_node.name
        self.hardware = HardwareFile(self.tmp_path / "hardware" / "n1.json")
        self.hardware.make(self.fleet_node)
        self.gpus: list[GpuUuid] = [gpu.uuid for gpu in self.hardware.read().gpus]
        self.tickets = Tickets(self.tmp_path / "tickets")
        self.incarnation = Incarnation("1")
        self.ledger: dict[str, bus_events.Entry] = {}
        self.words: dict[str, bus_events.Entry] = {}
        self.sequence = 100
        self.lives = 0
        self.now = 1000.0
        self.journal: Journal | None = None
        self.mps = Daemons(self.hardware)
        self.waiting: deque[Any] = deque()
        self.own_done: list[Any] = []
        self.pods: dict[str, tuple[ev.PodProcess, ...]] = {}  # what runs of each pod, whatever it holds
        self.nameless: dict[int, str] = {}  # GPUs that do not report their UUID when an agent starts
        self.refused: list[type] = []  # the next of each is refused by the device, or the disk
        self.cdi: dict[str, tuple[do.CdiDevice, ...]] = {}  # CDI files by claim: they survive the agent
        self.no_cdi = ""  # why none can be written
        self.answers: dict[int, do.AnswerCall] = {}  # what the kubelet got for its calls
        self.calls = 0
        self.hand_over = True
        self.on_write: dict[type, Callable[[Any], object]] = {}  # called before a message of the kind is written

    def start(self) -> list[Any]:
        self.stop()
        self.lives += 1
        self.run = RunId(f"run{self.lives}")
        self.agent = Agent(self.name, self.run, self.config)
        self.journal = Journal(self.tmp_path / "agent", self.name)
        self.backend = SimulatedBackend(self.hardware)
        self.marks = OwnershipMarks(self.tmp_path / "marks", self.backend.boot_id())
        gpus = tuple(gpu for gpu in self.backend.read() if gpu.index not in self.nameless)
        problem = self.journal.problem
        if self.journal.is_new and (
            self.nameless or any(gpu.lost or (gpu.instances and not gpu.fixed_layout) for gpu in gpus)
        ):
            problem = "there is no journal"
        started = ev.AgentStarted(
            boot_id=self.backend.boot_id(),
            endpoint="127.0.0.1:1",
            gpus=gpus,
            records=self.journal.records(),
            journal_problem=problem,
            tickets=self.tickets.names(),
            found_tickets=self.tickets.read(),
            modes=("exclusive", "mps", "fractional"),
            time_quota=self.time_quota,
            has_pods=self.has_pods,
            why_unseen=self.unseen,
            mps_root="/mps",
            homes=self.mps.found(),
            marks=self.marks.found(gpus, all_told=not self.nameless),
            unmarked=self.marks.unmarked(),
            nameless=self.nameless,
            cdi_claims=tuple(self.cdi),
            hand_over=self.hand_over,
        )
        return self.handle(started)

    def stop(self) -> None:
        self.waiting.clear()
        self.mps.quotas.clear()
        if self.journal is not None:
            self.journal.close()
            self.journal = None

    def reboot(self) -> None:
        """The node: its agent ends, and every process and instance."""
        self.stop()
        self.hardware.reboot()
        self.mps.reboot()

    def fault(self, **faults: Any) -> None:
        """From now on the hardware fails like this."""
        with self.hardware.changing() as hardware:
            for name, value in faults.items():
                setattr(hardware.faults, name, value)

    def change_gpu(self, gpu: int, **changes: Any) -> None:
        """A person, or the hardware itself, changes a GPU."""
        with self.hardware.changing() as hardware:
            for name, value in changes.items():
                setattr(hardware.gpus[gpu], name, value)

    def change_instance(self, **changes: Any) -> None:
        """Another instance takes the place of the first GPU's only one, or that one changes."""
        with self.hardware.changing() as hardware:
            (instance,) = hardware.gpus[0].instances
            for name, value in changes.items():
                setattr(instance, name, value)

    def lose_instances(self) -> None:
        """All that is on the first GPU is destroyed."""
        with self.hardware.changing() as hardware:
            hardware.gpus[0].instances.clear()

    def remove_journal(self) -> None:
        """The agent ends, and its journal is lost."""
        self.stop()
        (self.tmp_path / "agent" / "journal").unlink()

    def lose_both(self) -> None:
        """The broker is wiped and the journal lost; only what is on the node itself is left."""
        self.remove_journal()
        self.ledger.clear()
        self.words.clear()

    def spoil_journal(self, damage: str) -> None:
        """The agent ends; what disks and people do to a file is done to its journal."""
        self.stop()
        path = self.tmp_path / "agent" / "journal"
        data = path.read_bytes()
        match damage:
            case "flipped":
                middle = len(data) // 2
                path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
            case "torn":
                path.write_bytes(data[: len(data) // 2])
            case "emptied":
                path.write_bytes(b"")
            case "removed":
                path.unlink()

    def lose_journal(self) -> None:
        """The journal is lost, and tickets are of a version that kept no record in them: the ledger alone knows."""
        self.remove_journal()
        for ticket in (self.tmp_path / "tickets").glob("*/slice.json"):
            ticket.write_text("{}")

    def open(self, *lived: AllocationId) -> None:
        """The allocator opens the node for this run, where those were ready; the ledger is read from the start."""
        head = msg.NodeOpened(
            node=self.name,
            incarnation=self.incarnation,
            boot_id=self.backend.boot_id(),
            agent_run=self.run,
            lived=lived,
        )
        self.put(subjects.head(self.name).subject, head)
        self.read_ledger()

    def begin(self) -> None:
        """Start, and work as far as goes before being opened."""
        self.start()
        self.work()

    def live(self) -> None:
        """Start, be opened, and work until there is nothing to do."""
        self.begin()
        self.open()
        self.work()

    def put(self, subject: str, message: msg.AnyMessage) -> bus_events.Entry:
        self.sequence += 1
        entry = bus_events.Entry(subject, self.sequence, OperationId(f"o{self.sequence}"), message)
        self.ledger[subject] = entry
        return entry

    def read_ledger(self) -> None:
        self.handle(bus_events.ReadingStarted(bus_events.Stream.BOOK, self.incarnation))
        for entry in self.ledger.values():
            self.handle(bus_events.Observed(bus_events.Stream.BOOK, entry))
        self.handle(bus_events.ReadingCaughtUp(bus_events.Stream.BOOK))

    def up_to(self, kind: type, *, gpu: int | None = None) -> Any:
        """Work until there is one instruction of a kind (for a GPU); it is returned, and not carried out."""

        def is_it(each: Any) -> bool:
            return isinstance(each, kind) and (gpu is None or each.gpu == self.gpus[gpu])

        while not (found := list(filter(is_it, self.waiting))):
            assert not self.work(own_max=1), f"no {kind} came"
        (one,) = found
        self.waiting.remove(one)
        return one

    def order(self, message: msg.Grant | msg.Revoke | msg.Closed) -> list[Any]:
        allocation = message.allocation if isinstance(message, msg.Closed) else message.booking.allocation
        entry = self.put(subjects.ledger(self.name, allocation).subject, message)
        return self.handle(bus_events.Observed(bus_events.Stream.BOOK, entry))

    def booking(self, allocation: str, *devices: tuple[int, str | None, int, int], owner: str = "pod-1") -> msg.Booking:
        """A booking of devices given as (GPU index, profile, start, size)."""
        grants = tuple(
            msg.DeviceGrant(container="main", gpu=self.gpus[gpu], profile=profile, start=start, size=size)
            for gpu, profile, start, size in devices
        )
        return booking_of(allocation, self.name, grants, request=f"req-{allocation}", owner=owner, name="pod")

    def share(
        self,
        allocation: str,
        at: tuple[int, str | None, int, int],
        *,
        memory_mib: int = 1000,
        sm_partition: int = 0,
        uid: int = 0,
        owner: str = "pod-1",
        namespace: str = "default",
    ) -> msg.Booking:
        """A booking of one share of the home at (GPU index, profile, start, size)."""
        booking = self.booking(allocation, at, owner=owner)
        share = msg.Share(
            mode="fractional" if sm_partition else "mps", uid=uid, memory_mib=memory_mib, sm_partition=sm_partition
        )
        devices = tuple(replace(device, share=share) for device in booking.devices)
        return replace(booking, devices=devices, namespace=namespace)

    def grant(self, booking: msg.Booking, revision: int = 1, after: tuple[str, ...] = ()) -> msg.Grant:
        waits = tuple(AllocationId(other) for other in after)
        return msg.Grant(revision=revision, incarnation=self.incarnation, booking=booking, after=waits)

    def revoke(self, booking: msg.Booking, revision: int = 2) -> msg.Revoke:
        return msg.Revoke(revision=revision, incarnation=self.incarnation, booking=booking, cause="pod gone")

    def closed(self, booking: msg.Booking, revision: int = 2) -> msg.Closed:
        return msg.Closed(
            revision=revision, allocation=booking.allocation, request=booking.request, node=self.name, cause="pod gone"
        )

    def word(self, allocation: str) -> Any:
        entry = self.words.get(subjects.slice_(self.name, AllocationId(allocation)).subject)
        return entry.message if entry is not None else None

    def says(self, allocation: str, kind: type) -> Any:
        """The last message of a slice, which is of this kind."""
        word = self.word(allocation)
        assert isinstance(word, kind), word
        return word

    def news(self) -> Any:
        return self.words[subjects.node(self.name).subject].message

    def handle(self, event: Any) -> list[Any]:
        """Give the core an event; what it instructs waits for `work`."""
        out = self.agent.handle(event, self.now)
        self.waiting.extend(out)
        return list(out)

    def own(self, instructions: Iterable[Any]) -> list[Any]:
        """Those that the agent itself carries out."""
        return [each for each in instructions if hasattr(each, "token")]

    def step(self, event: Any) -> list[Any]:
        """Give the core an event; what the agent itself is to do next, which is left undone."""
        return self.own(self.agent.handle(event, self.now))

    def happens(self, event: Any) -> None:
        """Give the core an event, and carry out all that follows."""
        self.handle(event)
        self.work()

    def tick(self, duration_s: float = 1.0, *, times: int = 1) -> None:
        for _ in range(times):
            self.now += duration_s
            self.happens(bus_events.Ticked())

    def obey(self, order: msg.Grant | msg.Revoke | msg.Closed) -> None:
        """The order is read in the ledger, and all that follows is done."""
        self.order(order)
        self.work()

    def serve(self, *bookings: msg.Booking) -> msg.Booking:
        """All of these are granted, then made; returns the first."""
        for booking in bookings:
            self.order(self.grant(booking))
        self.work()
        return bookings[0]

    def ready(self, *bookings: msg.Booking) -> msg.Booking:
        """All of these are granted, and ready; returns the first."""
        self.serve(*bookings)
        for booking in bookings:
            self.says(booking.allocation, msg.SliceReady)
        return bookings[0]

    def take_back(self, *bookings: msg.Booking) -> None:
        """All of these are revoked, then unmade."""
        for booking in bookings:
            self.order(self.revoke(booking))
        self.work()

    def gone(self, *bookings: msg.Booking) -> None:
        """All of these are revoked, and gone."""
        self.take_back(*bookings)
        for booking in bookings:
            self.says(booking.allocation, msg.SliceGone)

    def work(self, *, own_max: int | None = None) -> bool:
        """Carry out instructions, at most `own_max` of the agent's own. False when there are more."""
        done = 0
        while self.waiting:
            if isinstance(self.waiting[0], (bus_events.Write, bus_events.ReadLast)):
                self.answer(self.waiting.popleft())
                continue
            if isinstance(self.waiting[0], do.AnswerCall):
                answer = self.waiting.popleft()
                assert answer.call not in self.answers, "a call is answered once"
                self.answers[answer.call] = answer
                continue
            if done == own_max:
                return False
            done += 1
            instruction = self.waiting.popleft()
            self.handle(self.carry_out(instruction))
        return True

    def answer(self, instruction: bus_events.Write | bus_events.ReadLast) -> None:
        current = self.words.get(instruction.subject)
        if isinstance(instruction, bus_events.Write) and type(instruction.message) in self.on_write:
            self.on_write[type(instruction.message)](instruction.message)
        if isinstance(instruction, bus_events.ReadLast):
            self.handle(bus_events.LastRead(instruction.subject, current))
        elif instruction.expected != (current.sequence if current is not None else 0):
            self.handle(bus_events.WriteRefused(instruction.operation, current.sequence if current is not None else 0))
        else:
            self.sequence += 1
            entry = bus_events.Entry(instruction.subject, self.sequence, instruction.operation, instruction.message)
            self.words[instruction.subject] = entry
            self.handle(bus_events.WriteAccepted(instruction.operation, self.sequence))

    def carry_out(self, instruction: Any) -> Any:
        """Do one of the agent's own instructions to the real files."""
        self.own_done.append(instruction)
        if type(instruction) in self.refused:
            return self._refuse(instruction)
        if isinstance(instruction, do.GpuInstruction):
            try:
                return self.marks.carry_out(self.backend, instruction)
            except DeviceError as error:
                return ev.DeviceRefused(instruction.token, error.kind, str(error))
        match instruction:
            case do.SaveJournal(token=token, record=record):
                append(self.journal, [record])
                return ev.JournalSaved(token)
            case do.MakeTicket(token=token):
                try:
                    self.tickets.make(instruction)
                except OSError as error:
                    return ev.TicketRefused(token, str(error))
                return ev.TicketMade(token)
            case do.ListTenants(token=token):
                found = (self.pods.get(each, ()) for each in (instruction.owner, *instruction.claims))
                unseen = self.unseen
                return ev.TenantsUnseen(token, unseen) if unseen else ev.TenantsListed(token, tuple(chain(*found)))
            case do.CompareTickets(token=token, tickets=tickets):
                return ev.TicketsCompared(token, self.tickets.wrong_of(tickets))
            case do.RemoveTicket(token=token, ticket=ticket):
                self.tickets.remove(ticket)
                return ev.TicketRemoved(token)
        return self.carry_out_cdi(instruction)

    def _refuse(self, instruction: Any) -> Any:
        self.refused.remove(type(instruction))
        if isinstance(instruction, (do.MakeTicket, do.RemoveTicket)):
            return ev.TicketRefused(instruction.token, "No space left on device")
        return ev.DeviceRefused(instruction.token, ev.DeviceErrorKind.UNKNOWN, "refused by the test")

    def carry_out_cdi(self, instruction: Any) -> Any:
        """Do one of the agent's instructions to the CDI files, or to the daemons."""
        match instruction:
            case do.WriteCdi(token=token) | do.RemoveCdi(token=token) if self.no_cdi:
                return ev.CdiRefused(token, self.no_cdi)
            case do.WriteCdi(token=token, claim=claim, devices=devices):
                self.cdi[claim] = devices
                return ev.CdiWritten(token)
            case do.CompareCdi(token=token, files=files):
                return ev.CdiCompared(token, tuple(f.claim for f in files if self.cdi.get(f.claim) != f.devices))
            case do.RemoveCdi(token=token, claim=claim):
                self.cdi.pop(claim, None)
                return ev.CdiRemoved(token)
        return self.mps.carry_out(instruction)

    def claimed(self, booking: msg.Booking, *claims: tuple[str, str], shared: bool = False) -> msg.Booking:
        """A booking handed over by claims, given as (UID, container)."""
        refs = tuple(
            msg.ResourceClaimRef(uid=uid, name=f"of-{uid}", requests={"gpu": key}, shared=shared) for uid, key in claims
        )
        return replace(booking, resource_claims=refs)

    def prepare(self, claim: str, *, is_carried_out: bool = True) -> int:
        """The kubelet calls; what it gets is in `answers` under the number returned."""
        self.calls += 1
        self.handle(ev.PrepareAsked(self.calls, claim, f"default/of-{claim}"))
        if is_carried_out:
            self.work()
        return self.calls

    def unprepare(self, claim: str) -> int:
        self.calls += 1
        self.happens(ev.UnprepareAsked(self.calls, claim, f"default/of-{claim}"))
        return self.calls

    def steps(self) -> list[type]:
        """What kinds of steps were done, without those for the journal."""
        return [type(step) for step in self.own_done if not isinstance(step, do.SaveJournal)]

    def instances(self, gpu: int = 0) -> list[tuple[str, int, int]]:
        return sorted((i.profile, i.start, i.size) for i in self.hardware.read().gpus[gpu].instances)


def always_done(_descriptor: int) -> None:
    """In place of a wait for the disk."""


@pytest.fixture
def make_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Node]]:
    """Nodes whose agents are killed. No power is cut: what was written is there, and no test waits for the disk."""
    made: list[Node] = []
    monkeypatch.setattr(os, "fsync", always_done)
    monkeypatch.setattr(os, "fdatasync", always_done)

    def make(
        *,
        fleet: str = FLEET,
        is_live: bool = True,
        has_pods: bool = False,
        time_quota: bool = False,
        unseen: str = "",
        **config: Any,
    ) -> Node:
        agent = AgentConfig(**{"news_every_s": 0.0} | config)
        node = Node(tmp_path / str(len(made)), agent, fleet, has_pods, time_quota, unseen)
        made.append(node)
        if is_live:
            node.live()
        return node

    yield make
    for node in made:
        node.stop()


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    """A node with two A100-40GB in MIG mode and one without, opened."""
    return make_node()


@pytest.fixture
def new_node(make_node: Callable[..., Node]) -> Node:
    """The same, whose agent has not started."""
    return make_node(is_live=False)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def hardware(tmp_path: Path) -> HardwareFile:
    """The GPUs of `well`."""
    return made_hardware(tmp_path)


@pytest.fixture
def well(hardware: HardwareFile) -> Iterator[Machine]:
    """A real node that is all well, for `check` to look at."""
    with well_made(hardware) as machine:
        yield machine
