"""A node's agent: its core on the simulated machine, with a journal on that machine's disk."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from random import Random

from simulation.broker import Broker
from simulation.clockwork import Clockwork
from simulation.hardware import DeviceRefusedError, Gpu, Machine, Ticket
from simulation.host import Host
from simulation.trace import Trace

from sluice.contracts.exchange import Stream
from sluice.contracts.ids import NodeName, RunId
from sluice.contracts.messages import NodeSnapshot
from sluice.contracts.subjects import ledger_filter
from sluice_node_agent.core.agent import Agent
from sluice_node_agent.core.events import (
    AgentStarted,
    ComputeInstanceCreated,
    ComputeInstanceDestroyed,
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    DeviceErrorKind,
    DeviceRefused,
    Event,
    GpuInstanceCreated,
    GpuInstanceDestroyed,
    GpuInstruction,
    GpuRead,
    Holder,
    HoldersListed,
    InstanceVerified,
    JournalSaved,
    ListHolders,
    MakeTicket,
    ReadGpu,
    RemoveTicket,
    SaveJournal,
    TicketMade,
    TicketRemoved,
    VerifyInstance,
)
from sluice_node_agent.core.records import Forgotten, NodeRecord, Record, SliceRecord, Tombstone
from sluice_node_agent.core.rules import Rules

CREATE_S = 0.08
DISK_S = 0.002


class AgentHost(Host):
    """One node agent. `machine` outlives it."""

    kind = "node-agent"

    def __init__(
        self, machine: Machine, rules: Rules, clockwork: Clockwork, broker: Broker, dice: Random, trace: Trace
    ) -> None:
        """On one machine, with these rules."""
        super().__init__(f"agent-{machine.node}", clockwork, broker, dice, trace)
        self.machine = machine
        self.rules = rules
        self.on_ticket: list[Callable[[str, Machine, Ticket], None]] = []
        self.agent: Agent | None = None
        self._in_kernel: deque[Callable[[], object]] = deque()
        self._disk_free_at = 0.0

    def make_core(self, run: RunId) -> Agent:
        """A new agent's core."""
        self.agent = Agent(self.machine.node, run, self.rules)
        return self.agent

    def readings(self) -> list[tuple[Stream, tuple[str, ...], NodeName | None]]:
        """Its own ledger, and nothing else."""
        return [(Stream.BOOK, (ledger_filter(self.machine.node),), self.machine.node)]

    @property
    def endpoint(self) -> str:
        """Where this life is pulled from."""
        return f"127.0.0.1:{10_000 + self.life}"

    def begin(self) -> None:
        """Tell what the journal says and what is on the devices."""
        self._disk_free_at = self.clockwork.now
        machine = self.machine
        problem, machine.journal_problem = machine.journal_problem, ""
        records = tuple(_replayed(machine.journal))
        machine.journal = list(records)
        started = AgentStarted(
            boot_id=machine.boot_id,
            endpoint=self.endpoint,
            gpus=tuple(gpu.report() for gpu in machine.gpus.values()),
            records=records,
            journal_problem=problem,
            tickets=tuple(machine.tickets),
        )
        self.offer(started)

    def end(self) -> None:
        """What was in the kernel is done or not done; nobody hears of it."""
        for step in self._in_kernel:
            if self.dice.random() < 0.5:
                step()
        self._in_kernel.clear()

    def pull(self, endpoint: str) -> NodeSnapshot | str:
        """What the gRPC server answers: the snapshot, or why there is none."""
        if not self.alive or self.paused or self.agent is None:
            return "nobody answers"
        if endpoint != self.endpoint:
            return "nobody listens there"
        return self.agent.snapshot() if self.agent.started else "not started"

    # -- instructions ---------------------------------------------------------------------------------------------

    def execute(self, instruction: object) -> None:
        """Do it on the machine after the time it takes, and tell how it went."""
        match instruction:
            case SaveJournal():
                self._disk_free_at = max(self._disk_free_at, self.clockwork.now) + DISK_S * (1 + self.dice.random())
                self._do(self._disk_free_at - self.clockwork.now, lambda: self._save(instruction))
            case MakeTicket():
                self._do(DISK_S, lambda: self._make_ticket(instruction))
            case RemoveTicket():
                self._do(DISK_S, lambda: self._remove_ticket(instruction))
            case CreateGpuInstance() | CreateComputeInstance() | DestroyComputeInstance() | DestroyGpuInstance():
                slow = self.broker.sky.chance("slow_device", self.clockwork.now)
                self._do(
                    (CREATE_S + self.dice.random() * CREATE_S) * (30 if slow else 1), lambda: self._gpu(instruction)
                )
            case VerifyInstance() | ReadGpu() | ListHolders():
                self._do(DISK_S, lambda: self._gpu(instruction))
            case _:
                raise AssertionError(f"nobody carries out {instruction!r}")

    def _do(self, delay_s: float, step: Callable[[], Event]) -> None:
        """The step happens after `delay_s`, its answer comes a moment later: a crash may fall between."""
        self._in_kernel.append(step)
        life = self.life

        def happen() -> None:
            if life != self.life or not self.alive:
                return
            self._in_kernel.remove(step)
            result = step()
            self.later(0.001 * self.dice.random(), lambda: self.offer(result))

        self.clockwork.after(delay_s, happen)

    def _save(self, save: SaveJournal) -> Event:
        self.machine.journal.append(save.record)
        return JournalSaved(save.token)

    def _make_ticket(self, make: MakeTicket) -> Event:
        devices = tuple(uuid for one in make.containers for uuid in one.visible_devices.split(",") if uuid)
        if make.ticket not in self.machine.tickets:
            ticket = Ticket(make.ticket, make.allocation, make.owner, devices)
            self.machine.tickets[make.ticket] = ticket
            for hear in self.on_ticket:
                hear("made", self.machine, ticket)
        return TicketMade(make.token)

    def _remove_ticket(self, remove: RemoveTicket) -> Event:
        ticket = self.machine.tickets.pop(remove.ticket, None)
        if ticket is not None:
            for hear in self.on_ticket:
                hear("removed", self.machine, ticket)
        return TicketRemoved(remove.token)

    def _gpu(self, instruction: GpuInstruction) -> Event:
        gpu = self.machine.gpus[instruction.gpu]
        try:
            return _on_gpu(gpu, instruction)
        except DeviceRefusedError as refused:
            self.trace.tell(self.name, "device refused", gpu.uuid, f"{type(instruction).__name__}: {refused.why}")
            return DeviceRefused(instruction.token, DeviceErrorKind(refused.kind), refused.why)


def _on_gpu(gpu: Gpu, instruction: GpuInstruction) -> Event:
    token = instruction.token
    match instruction:
        case CreateGpuInstance():
            span = (instruction.start, instruction.size)
            return GpuInstanceCreated(token, gpu.create_gi(instruction.profile_id, span, "agent"))
        case CreateComputeInstance():
            return ComputeInstanceCreated(token, gpu.create_ci(instruction.gi_id))
        case VerifyInstance():
            span = (instruction.start, instruction.size)
            gpu.verify(instruction.gi_id, instruction.profile_id, span, instruction.uuid)
            return InstanceVerified(token)
        case DestroyComputeInstance():
            gpu.destroy_ci(instruction.gi_id, instruction.uuid)
            return ComputeInstanceDestroyed(token)
        case DestroyGpuInstance():
            gpu.destroy_gi(instruction.gi_id, (instruction.start, instruction.size))
            return GpuInstanceDestroyed(token)
        case ListHolders():
            every = instruction.uuid == gpu.uuid
            on_it = [process for process in gpu.processes if every or process.device == instruction.uuid]
            return HoldersListed(token, tuple(Holder(process.pid, process.owner) for process in on_it))
        case ReadGpu():
            return GpuRead(token, gpu.report())


def _replayed(journal: list[object]) -> list[Record]:
    """The last record of everything, in the order in which each thing first came up."""
    last: dict[str, Record] = {}
    for record in journal:
        match record:
            case NodeRecord():
                last["node"] = record
            case SliceRecord():
                last[record.booking.allocation] = record
            case Tombstone():
                last[record.allocation] = record
            case Forgotten():
                last.pop(record.allocation, None)
            case _:
                raise AssertionError(f"not a record: {record!r}")
    return list(last.values())


def quick_rules(closing_ttl_s: int) -> Rules:
    """The rules of an agent, in a hurry: the world of one seed lasts minutes."""
    return replace(
        Rules(),
        closing_ttl_s=closing_ttl_s,
        tombstone_ttl_s=closing_ttl_s * 2.0,
        back_off_first_s=0.2,
        back_off_max_s=3.0,
        quarantine_after=3,
        remake_retry_s=3.0,
        read_devices_s=4.0,
    )
