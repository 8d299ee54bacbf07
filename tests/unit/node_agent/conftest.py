"""A node around the agent's core: real files for hardware, journal and tickets, a made-up bus, and crashes at will."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sluice.contracts import subjects
from sluice.contracts.exchange import (
    Entry,
    LastRead,
    Observed,
    ReadingCaughtUp,
    ReadingStarted,
    ReadLast,
    Stream,
    Ticked,
    Write,
    WriteAccepted,
    WriteRefused,
)
from sluice.contracts.fleet import parse_fleet
from sluice.contracts.ids import AllocationId, GpuUuid, Incarnation, NodeName, OperationId, RequestId, RunId, SourceName
from sluice.contracts.messages import AnyMessage, Booking, Closed, DeviceGrant, Grant, NodeOpened, Revoke
from sluice_node_agent.core.agent import Agent
from sluice_node_agent.core.events import (
    GPU_INSTRUCTIONS,
    AgentStarted,
    DeviceRefused,
    JournalSaved,
    MakeTicket,
    RemoveTicket,
    SaveJournal,
    TicketMade,
    TicketRemoved,
)
from sluice_node_agent.core.rules import Rules
from sluice_node_agent.device.hardware_file import HardwareFile
from sluice_node_agent.device.port import DeviceError
from sluice_node_agent.device.simulated import SimulatedGpus
from sluice_node_agent.shell.hands import Hands
from sluice_node_agent.shell.journal import Journal
from sluice_node_agent.shell.tickets import Tickets

FLEET = """
[[node]]
name = "n1.example"
gpus = [{ model = "a100-40gb", count = 2, mig = true }, { model = "a100-40gb", count = 1, mig = false }]
"""


@dataclass
class Node:
    """One node: what survives a crash (files, bus), and the agent that does not."""

    tmp_path: Path
    rules: Rules

    def __post_init__(self) -> None:
        """Make the files."""
        self.fleet_node = parse_fleet(FLEET, origin="test").nodes[0]
        self.name: NodeName = self.fleet_node.name
        self.hardware = HardwareFile(self.tmp_path / "hardware" / "n1.json")
        self.hardware.make(self.fleet_node)
        self.gpus: list[GpuUuid] = [gpu.uuid for gpu in self.hardware.read().gpus]
        self.tickets = Tickets(self.tmp_path / "tickets")
        self.incarnation = Incarnation("1")
        self.ledger: dict[str, Entry] = {}
        self.words: dict[str, Entry] = {}
        self.sequence = 100
        self.lives = 0
        self.now = 1000.0
        self.journal: Journal | None = None
        self.threads = ThreadPoolExecutor(1)
        self.waiting: deque[Any] = deque()
        self.own_done: list[Any] = []

    # -- lives ----------------------------------------------------------------------------------------------------

    def start(self) -> list[Any]:
        """A new life of the agent: its first instructions."""
        self.stop()
        self.lives += 1
        self.run = RunId(f"run{self.lives}")
        self.agent = Agent(self.name, self.run, self.rules)
        self.journal = Journal(self.tmp_path / "agent", self.name)
        self.backend = SimulatedGpus(self.hardware)
        self.hands = Hands(self.backend, self.journal, self.tickets, self.threads)
        gpus = self.backend.read()
        problem = self.journal.problem
        if self.journal.is_new and any(gpu.instances for gpu in gpus):
            problem = "there is no journal"
        started = AgentStarted(
            boot_id=self.backend.boot_id(),
            endpoint="127.0.0.1:1",
            gpus=gpus,
            records=self.journal.records(),
            journal_problem=problem,
            tickets=self.tickets.names(),
        )
        return self.handle(started)

    def stop(self) -> None:
        """The process dies: what it had in memory is gone."""
        self.waiting.clear()
        if self.journal is not None:
            self.journal.close()
            self.journal = None

    def open(self) -> None:
        """The allocator opens the node for this run; the ledger is read from the start."""
        head = NodeOpened(
            node=self.name, incarnation=self.incarnation, boot_id=self.backend.boot_id(), agent_run=self.run
        )
        self.put(subjects.head(self.name).subject, head)
        self.read_ledger()

    def live(self) -> None:
        """Start, be opened, and work until there is nothing to do."""
        self.start()
        self.work()
        self.open()
        self.work()

    # -- ledger ---------------------------------------------------------------------------------------------------

    def put(self, subject: str, message: AnyMessage) -> Entry:
        """Write an entry of the ledger; nobody reads it yet."""
        self.sequence += 1
        entry = Entry(subject, self.sequence, OperationId(f"o{self.sequence}"), message)
        self.ledger[subject] = entry
        return entry

    def read_ledger(self) -> None:
        """The durable is reset: everything is read again."""
        self.handle(ReadingStarted(Stream.BOOK, self.incarnation))
        for entry in self.ledger.values():
            self.handle(Observed(Stream.BOOK, entry))
        self.handle(ReadingCaughtUp(Stream.BOOK))

    def order(self, message: Grant | Revoke | Closed) -> list[Any]:
        """One entry of the ledger, read live."""
        allocation = message.allocation if isinstance(message, Closed) else message.booking.allocation
        entry = self.put(subjects.ledger(self.name, allocation).subject, message)
        return self.handle(Observed(Stream.BOOK, entry))

    def booking(self, allocation: str, *devices: tuple[int, str | None, int, int], owner: str = "pod-1") -> Booking:
        """A booking of devices given as (GPU index, profile, start, size)."""
        return Booking(
            allocation=AllocationId(allocation),
            request=RequestId(f"req-{allocation}"),
            request_revision=1,
            source=SourceName("folder"),
            owner=owner,
            namespace="default",
            name="pod",
            node=self.name,
            devices=tuple(
                DeviceGrant(container="main", gpu=self.gpus[gpu], profile=profile, start=start, size=size)
                for gpu, profile, start, size in devices
            ),
        )

    def grant(self, booking: Booking, revision: int = 1, after: tuple[str, ...] = ()) -> Grant:
        """An order to make."""
        waits = tuple(AllocationId(other) for other in after)
        return Grant(revision=revision, incarnation=self.incarnation, booking=booking, after=waits)

    def revoke(self, booking: Booking, revision: int = 2) -> Revoke:
        """An order to unmake."""
        return Revoke(revision=revision, incarnation=self.incarnation, booking=booking, cause="pod gone")

    def closed(self, booking: Booking, revision: int = 2) -> Closed:
        """The end of an entry."""
        return Closed(
            revision=revision,
            allocation=booking.allocation,
            request=booking.request,
            node=self.name,
            cause="pod gone",
        )

    def word(self, allocation: str) -> Any:
        """The last word about a slice on the bus."""
        entry = self.words.get(subjects.slice_(self.name, AllocationId(allocation)).subject)
        return entry.message if entry is not None else None

    def news(self) -> Any:
        """The last news of the node on the bus."""
        return self.words[subjects.node(self.name).subject].message

    # -- work -----------------------------------------------------------------------------------------------------

    def handle(self, event: Any) -> list[Any]:
        """Give the core an event; what it instructs waits for `work`."""
        out = self.agent.handle(event, self.now)
        self.waiting.extend(out)
        return list(out)

    def tick(self, duration_s: float = 1.0) -> None:
        """Let time pass, and work."""
        self.now += duration_s
        self.handle(Ticked())
        self.work()

    def work(self, *, own_max: int | None = None) -> bool:
        """Carry out instructions, at most `own_max` of the agent's own. False when there are more."""
        done = 0
        while self.waiting:
            if isinstance(self.waiting[0], (Write, ReadLast)):
                self.answer(self.waiting.popleft())
                continue
            if done == own_max:
                return False
            done += 1
            instruction = self.waiting.popleft()
            self.handle(self.carry_out(instruction))
        return True

    def answer(self, instruction: Write | ReadLast) -> None:
        """The bus's part."""
        current = self.words.get(instruction.subject)
        if isinstance(instruction, ReadLast):
            self.handle(LastRead(instruction.subject, current))
        elif instruction.expected != (current.sequence if current is not None else 0):
            self.handle(WriteRefused(instruction.operation, current.sequence if current is not None else 0))
        else:
            self.sequence += 1
            entry = Entry(instruction.subject, self.sequence, instruction.operation, instruction.message)
            self.words[instruction.subject] = entry
            self.handle(WriteAccepted(instruction.operation, self.sequence))

    def carry_out(self, instruction: Any) -> Any:
        """Do one of the agent's own instructions to the real files."""
        self.own_done.append(instruction)
        if isinstance(instruction, GPU_INSTRUCTIONS):
            try:
                return self.hands._carry_out(instruction)
            except DeviceError as error:
                return DeviceRefused(instruction.token, error.kind, str(error))
        match instruction:
            case SaveJournal(token=token, record=record):
                assert self.journal is not None
                self.journal.append([record])
                return JournalSaved(token)
            case MakeTicket(token=token):
                self.tickets.make(instruction)
                return TicketMade(token)
            case RemoveTicket(token=token, ticket=ticket):
                self.tickets.remove(ticket)
                return TicketRemoved(token)
        raise AssertionError(instruction)

    # -- looking --------------------------------------------------------------------------------------------------

    def instances(self, gpu: int = 0) -> list[tuple[str, int, int]]:
        """What is on one GPU: profile, start, size."""
        return sorted((i.profile, i.start, i.size) for i in self.hardware.read().gpus[gpu].instances)


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Makes nodes, each with files of its own."""
    made: list[Node] = []

    def make(**rules: Any) -> Node:
        node = Node(tmp_path / str(len(made)), Rules(**rules))
        made.append(node)
        return node

    yield make
    for node in made:
        node.stop()
        node.threads.shutdown()


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    """A node with two A100-40GB in MIG mode and one without."""
    return make_node()
