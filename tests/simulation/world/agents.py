"""A node's agent: its core on the simulated machine, with a journal on that machine's disk."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from random import Random

from simulation.judges.share_limits import Held, held_by
from simulation.world.broker import Broker
from simulation.world.device_steps import found_homes, found_marks, home_of, marks_of, on_marked_gpu, on_mps
from simulation.world.hardware import DeviceRefusedError, Gpu, Machine, Ticket
from simulation.world.host import Host
from simulation.world.kubelet_plugin import SHARED
from simulation.world.mps_daemons import MPS_ROOT
from simulation.world.trace import Trace
from simulation.world.virtual_clock import VirtualClock

from sluice.contracts.bus.events import Stream, Ticked
from sluice.contracts.bus.subjects import ledger_filter
from sluice.contracts.ids import AllocationId, GpuUuid, NodeName, RunId
from sluice.contracts.messages import NodeSnapshot
from sluice_node_agent.core import events as ev
from sluice_node_agent.core import instructions as do
from sluice_node_agent.core.agent import Agent
from sluice_node_agent.core.config import AgentConfig
from sluice_node_agent.core.journal_records import (
    ForgottenTombstone,
    NodeRecord,
    Record,
    SharedDeviceGone,
    SharedDeviceRecord,
    SliceRecord,
    TicketRecord,
    Tombstone,
    WarmGone,
    WarmRecord,
    must_outlive_boot,
)

CREATE_S = 0.08
DISK_S = 0.002
NAMES_EVERY_S = 3.0
"""So often a GPU that did not report its UUID is asked for it."""
WRITE_S = 0.0001
"""A record into the file: a copy in memory."""
MPS_S = 0.05
REGISTERED_S = 2.0
"""Within so long after a start the kubelet has registered the plugin."""
ANSWERS_S, SLOW_CLOCK = 3.0, 1.5
"""A call is answered within so long, or so long after the agent's own limit by a slow clock."""
UNSEEN = 0.05
"""So often processes cannot be looked for: an agent may have no file left to open."""
SUPERVISOR_S = 0.8
"""An agent that cannot start is started again after so long."""


class AgentHost(Host):
    """One node agent. `machine` outlives it."""

    kind = "node-agent"

    def __init__(
        self, machine: Machine, config: AgentConfig, clockwork: VirtualClock, broker: Broker, dice: Random, trace: Trace
    ) -> None:
        super().__init__(f"agent-{machine.node}", clockwork, broker, dice, trace)
        self.machine = machine
        self.config = config
        self.on_ticket: list[Callable[[str, Machine, Ticket], None]] = []
        self.on_pulled: list[Callable[[NodeSnapshot], None]] = []
        self.on_refused: list[Callable[[Machine, Gpu, object, DeviceRefusedError], None]] = []
        self.agent: Agent | None = None
        self.hands_over = False
        """Whether the node's kubelet hands devices over by ResourceClaim."""
        self.on_prepared: list[Callable[[Machine, str, do.AnswerCall], None]] = []
        self.on_hanging: list[Callable[[Machine, str], None]] = []
        self.on_cdi: list[Callable[[Machine, str, tuple[do.CdiDevice, ...]], None]] = []
        """With what the file held before."""
        self._calls: dict[int, tuple[str, Callable[[do.AnswerCall | None], None]]] = {}
        """Of the kubelet: the claim, and what gets the answer, or learns that the connection is gone."""
        self._numbered = 0
        self._in_kernel: deque[Callable[[], object]] = deque()
        self._saves: dict[Callable[[], object], None] = {}
        self._busy: dict[str, float] = {}
        """GPUs and homes that an instruction is out about, and since when: no lock is held for a second one."""
        self._disk_free_at = 0.0
        self.disk_full = False
        """Nothing can be appended to its journal: a run that needs it ends, and none begins."""
        self.no_room_for_tickets = False
        """The memory disk that tickets are on is full: none is made, and none can be removed."""
        self.calm = False
        """Whether it handles a tick that production may leave out, because it said that it was calm."""
        self.slow_until = 0.0
        """Whatever is asked of a GPU or of a daemon takes at least until then."""

    def start(self) -> None:
        """Begin a new run; while the journal cannot be opened, its supervisor tries again and again."""
        if not self.disk_full:
            super().start()
            return
        self.trace.tell(self.name, "CANNOT START", "", "its disk is full")
        self._start_again()

    def keeps_tickets(self) -> bool:
        """Whether tickets may outlive a reboot that begins now: not on a memory disk that is full; it is empty then."""
        kept, self.no_room_for_tickets = not self.no_room_for_tickets, False
        return kept

    def _start_again(self) -> None:
        life = self.life

        def again() -> None:
            if not self.alive and life == self.life:
                self.start()

        self.clockwork.after(SUPERVISOR_S, again)

    def make_core(self, run: RunId) -> Agent:
        self.agent = Agent(self.machine.node, run, self.config)
        return self.agent

    def readings(self) -> list[tuple[Stream, tuple[str, ...], NodeName | None]]:
        return [(Stream.BOOK, (ledger_filter(self.machine.node),), self.machine.node)]

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{10_000 + self.life}"

    def begin(self) -> None:
        """Report what the journal says and what is on the devices."""
        self._disk_free_at = self.clockwork.now
        self._busy.clear()
        machine = self.machine
        self._clear_tickets()
        for daemon in machine.mps.listed.values():
            daemon.noticed_at = inf if daemon.alive else self.clockwork.now
        problem = machine.journal_problem
        if problem:
            machine.forgot_at = self.clockwork.now
        records = tuple(_replayed(machine.journal))
        machine.journal = list(records)
        machine.on_disk = len(records)
        nameless = {gpu.index: gpu.lost for gpu in machine.gpus.values() if gpu.lost and self._cannot_tell(gpu)}
        told = (gpu for gpu in machine.gpus.values() if gpu.index not in nameless)
        started = ev.AgentStarted(
            boot_id=machine.boot_id,
            endpoint=self.endpoint,
            gpus=tuple(gpu.first_report() for gpu in told),
            nameless=nameless,
            records=records,
            journal_problem=problem,
            tickets=tuple(machine.tickets),
            found_tickets=tuple(_said(ticket) for ticket in machine.tickets.values()),
            modes=("exclusive", "mps", "fractional"),
            mps_root=MPS_ROOT,
            homes=found_homes(machine),
            marks=found_marks(machine),
            unmarked=marks_of(machine.doubts),
            has_pods=machine.has_pods,
            time_quota=machine.time is not None,
            cdi_claims=tuple(machine.cdi),
            hand_over=self.hands_over,
        )
        self.offer(started)
        if self.hands_over:
            self.later(REGISTERED_S * self.dice.random(), lambda: self.offer(ev.HandOverChanged(able=True)))

        if nameless:
            self.later(NAMES_EVERY_S, lambda: self._ask_names(nameless))

    def _ask_names(self, nameless: Mapping[int, str]) -> None:
        """Those that reported no UUID at the start are asked for it, again and again."""
        machine = self.machine
        for gpu in machine.gpus.values():
            if gpu.index in nameless and not gpu.lost:
                self.troubled(gpu.uuid)
        left = {gpu.index: gpu.lost for gpu in machine.gpus.values() if gpu.index in nameless and gpu.lost}
        if left:
            self.later(NAMES_EVERY_S, lambda: self._ask_names(left))

    def _cannot_tell(self, gpu: Gpu) -> bool:
        """Whether a GPU that does not answer in this run does not even report its UUID: every other one does."""
        return (gpu.index + self.life) % 2 == 0

    def end(self) -> None:
        """What was in the kernel is done or not done; the result is lost."""
        saved = True
        for step in self._in_kernel:
            done = self.dice.random() < 0.5
            if step in self._saves:  # one file: what was written later is not there without what came before
                done = saved = saved and done
            if done:
                step()
        self._in_kernel.clear()
        self._saves.clear()
        calls, self._calls = self._calls, {}
        for _, hear in calls.values():
            hear(None)
        if self.machine.time is not None:
            self.machine.time.end_all()

    def pull(self, endpoint: str) -> NodeSnapshot | str:
        """What the gRPC server answers: the snapshot, or why there is none."""
        if not self.alive or self.paused or self.agent is None:
            return "no agent answers"
        if endpoint != self.endpoint:
            return "no agent listens there"
        if not self.agent.started:
            return "not started"
        snapshot = self.agent.snapshot()
        for hear in self.on_pulled:
            hear(snapshot)
        return snapshot

    # -- instructions ---------------------------------------------------------------------------------------------

    def _handle(self, event: object) -> None:
        self.calm = isinstance(event, Ticked) and self.agent is not None and self.agent.is_calm
        super()._handle(event)

    def execute(self, instruction: object) -> None:
        """Do it on the machine after the time it takes, and report how it went."""
        match instruction:
            case do.SaveJournal():
                write = partial(self._save, instruction)
                self._saves[write] = None
                lasting = must_outlive_boot(instruction.record)
                self._do(WRITE_S, write, then=partial(self._sync, instruction) if lasting else None)
            case do.MakeTicket():
                ordered_at = self.clockwork.now
                self._do(DISK_S, lambda: self._make_ticket(instruction, ordered_at))
            case do.CompareTickets():
                self._do(DISK_S, lambda: self._compare_tickets(instruction))
            case do.RemoveTicket():
                self._do(DISK_S, lambda: self._remove_ticket(instruction))
            case (
                do.CreateGpuInstance()
                | do.CreateComputeInstance()
                | do.DestroyComputeInstance()
                | do.DestroyGpuInstance()
            ):
                self._do(self._slowly(CREATE_S), lambda: self._gpu(instruction), instruction.gpu)
            case do.VerifyInstance() | do.ReadGpu() | do.ListHolders() | do.SetComputeMode():
                self._do(DISK_S, lambda: self._gpu(instruction), instruction.gpu)
            case do.ListTenants():
                self._do(DISK_S, lambda: self._tenants(instruction))
            case do.StartMps() | do.StopMps():
                self._do(self._slowly(MPS_S), lambda: self._mps(instruction), instruction.home)
            case do.SetMpsLimits() | do.SetQuotas() | do.WatchMps() | do.TerminateMpsClients():
                self._do(MPS_S * (0.2 + self.dice.random()), lambda: self._mps(instruction), instruction.home)
            case _:
                self._hand_over(instruction)

    def call(self, claim: str, hear: Callable[[do.AnswerCall | None], None], *, prepare: bool) -> None:
        """Its kubelet calls it about a claim. It gets None where nothing listens, or the connection goes."""
        if not self.alive or not self.hands_over:
            hear(None)
            return
        self._numbered += 1
        self._calls[self._numbered] = (claim, hear)
        bound_s = self.config.prepare_within_s * SLOW_CLOCK + ANSWERS_S if prepare else ANSWERS_S
        self._look_for_answer(self._numbered, self.clockwork.now, bound_s)
        asked = ev.PrepareAsked if prepare else ev.UnprepareAsked
        self.offer(asked(self._numbered, claim, f"lab/{claim}"))

    def _look_for_answer(self, number: int, asked_at: float, bound_s: float) -> None:
        """A call that is not answered in time hangs, unless its agent stood still meanwhile."""

        def look() -> None:
            if number not in self._calls:
                return
            if self.paused or self.clockwork.now < max(asked_at, self._able_since) + bound_s:
                self.clockwork.after(1.0, look)
                return
            for tell in self.on_hanging:
                tell(self.machine, self._calls[number][0])

        self.clockwork.after(bound_s, look)

    def _hand_over(self, instruction: object) -> None:
        match instruction:
            case do.AnswerCall():
                self._answer(instruction)
            case do.WriteCdi() | do.RemoveCdi():
                self._do(DISK_S, lambda: self._cdi(instruction))
            case do.CompareCdi(token=token, files=files):
                there = self.machine.cdi
                self._do(
                    DISK_S,
                    lambda: ev.CdiCompared(
                        token, tuple(each.claim for each in files if there.get(each.claim) != each.devices)
                    ),
                )
            case _:
                raise AssertionError(f"no handler for {instruction!r}")

    def _answer(self, answer: do.AnswerCall) -> None:
        claim, hear = self._calls.pop(answer.call, ("", None))
        if hear is None:
            raise AssertionError(f"{self.name}: a second answer, or one to no call: {answer}")
        if answer.devices:
            for tell in self.on_prepared:
                tell(self.machine, claim, answer)
        hear(answer)

    def _cdi(self, order: do.WriteCdi | do.RemoveCdi) -> ev.Event:
        if self.no_room_for_tickets:
            return ev.CdiRefused(order.token, "no space left on device")
        before = self.machine.cdi.pop(order.claim, ())
        if isinstance(order, do.WriteCdi):
            self.machine.cdi[order.claim] = order.devices
        for tell in self.on_cdi:
            tell(self.machine, order.claim, before)
        return ev.CdiWritten(order.token) if isinstance(order, do.WriteCdi) else ev.CdiRemoved(order.token)

    def troubled(self, gpu: str) -> None:
        """The driver reports an error of a GPU."""
        if self.alive:
            self.later(DISK_S, lambda: self.offer(ev.GpuTroubled(GpuUuid(gpu))))

    def booked(self) -> list[Held]:
        records = [record for record in _replayed(self.machine.journal) if isinstance(record, SliceRecord)]
        return [held_by(record.booking, device) for record in records for device in record.booking.devices]

    def release(self, allocation: str, *, ignore_holders: bool) -> None:
        """An operator has a quarantined slice tried again."""
        if self.alive:
            self.offer(ev.QuarantineReleased(AllocationId(allocation), ignore_holders=ignore_holders))

    def _slowly(self, least_s: float) -> float:
        slow = self.broker.sky.chance("slow_device", self.clockwork.now)
        return (least_s + self.dice.random() * least_s) * (30 if slow else 1)

    def _do(
        self, delay_s: float, step: Callable[[], ev.Event], about: str = "", then: Callable[[], None] | None = None
    ) -> None:
        """The step happens after `delay_s`, its answer a moment later; `then` answers where something comes first."""
        if about:
            assert about not in self._busy, f"{self.name}: two instructions at once about {about}"
            self._busy[about] = self.clockwork.now
            delay_s = max(delay_s, self.slow_until - self.clockwork.now)
        self._in_kernel.append(step)
        life = self.life

        def happen() -> None:
            if life != self.life or not self.alive:
                return
            self._in_kernel.remove(step)
            self._saves.pop(step, None)
            result = step()
            if then is None:
                self.later(0.001 * self.dice.random(), lambda: answer(result))
            elif self.alive and life == self.life:
                then()

        def answer(result: ev.Event) -> None:
            asked_at = self._busy.pop(about, 0.0)
            if isinstance(result, ev.MpsSeen):
                self.machine.looks.setdefault(about, []).append((asked_at, self.clockwork.now))
                self._told_of(about, result)
            self.offer(result)

        self.clockwork.after(delay_s, happen)

    def _told_of(self, home: str, seen: ev.MpsSeen) -> None:
        """From now on the core knows whether a daemon is dead (unless it stands still)."""
        daemon = self.machine.mps.listed.get(home)
        if daemon is not None and not daemon.alive and not seen.alive and not self.paused:
            daemon.noticed_at = self.clockwork.now

    def _save(self, save: do.SaveJournal) -> ev.Event:
        if self.disk_full:  # the journal raises an error, which ends the agent before it publishes
            if self.alive:
                self.kill()
                self._start_again()
            return ev.JournalSaved(save.token)
        self.machine.journal.append(save.record)
        self.machine.journal_problem = ""  # until then the next run finds a new journal beside what is there
        return ev.JournalSaved(save.token)

    def _sync(self, save: do.SaveJournal) -> None:
        """What was written until now is on disk when this is answered."""
        written = len(self.machine.journal)
        self._disk_free_at = max(self._disk_free_at, self.clockwork.now) + DISK_S * (1 + self.dice.random())

        def sync() -> ev.Event:
            self.machine.on_disk = max(self.machine.on_disk, written)
            return ev.JournalSaved(save.token)

        self._do(self._disk_free_at - self.clockwork.now, sync)

    def _make_ticket(self, make: do.MakeTicket, ordered_at: float) -> ev.Event:
        if self.no_room_for_tickets:
            return ev.TicketRefused(make.token, "no space left on device")
        devices = tuple(uuid for one in make.containers for uuid in one.visible_devices.split(",") if uuid)
        if make.ticket not in self.machine.tickets:
            homes = tuple(home for one in make.containers if (home := home_of(one.mps_pipe_directory)))
            ticket = Ticket(make.ticket, make.allocation, make.owner, devices, homes, ordered_at, make.record)
            self.machine.tickets[make.ticket] = ticket
            for hear in self.on_ticket:
                hear("made", self.machine, ticket)
        self.machine.tickets[make.ticket].said = make.record
        return ev.TicketMade(make.token)

    def _compare_tickets(self, compare: do.CompareTickets) -> ev.Event:
        there = self.machine.tickets

        def is_wrong(ordered: do.MakeTicket) -> bool:
            return ordered.ticket not in there or there[ordered.ticket].said != ordered.record

        return ev.TicketsCompared(compare.token, tuple(each.ticket for each in compare.tickets if is_wrong(each)))

    def _remove_ticket(self, remove: do.RemoveTicket) -> ev.Event:
        if self.no_room_for_tickets:
            return ev.TicketRefused(remove.token, "no space left on device")
        ticket = self.machine.tickets.pop(remove.ticket, None)
        if ticket is not None:
            for hear in self.on_ticket:
                hear("removed", self.machine, ticket)
        return ev.TicketRemoved(remove.token)

    def _clear_tickets(self) -> None:
        """Those of before a reboot go first, whatever else is known."""
        for ticket in () if self.no_room_for_tickets else tuple(self.machine.tickets.values()):
            if isinstance(ticket.said, TicketRecord) and ticket.said.boot_id != self.machine.boot_id:
                del self.machine.tickets[ticket.name]
                for hear in self.on_ticket:
                    hear("removed", self.machine, ticket)

    def _gpu(self, instruction: do.GpuInstruction) -> ev.Event:
        gpu = self.machine.gpus[instruction.gpu]
        try:
            return on_marked_gpu(gpu, self.machine, instruction)
        except DeviceRefusedError as refused:
            self.trace.tell(self.name, "device refused", gpu.uuid, f"{type(instruction).__name__}: {refused.why}")
            for hear in self.on_refused:
                hear(self.machine, gpu, instruction, refused)
            return ev.DeviceRefused(instruction.token, ev.DeviceErrorKind(refused.kind), refused.why)

    def _tenants(self, instruction: do.ListTenants) -> ev.Event:
        """Processes in the pod's cgroup, or with a claim's file mounted; now and then that cannot be seen."""
        if self.dice.random() < UNSEEN:
            return ev.TenantsUnseen(instruction.token, "too many open files")
        owner = instruction.owner
        is_found = self.machine.pod_of(owner) == owner or f"{owner}{SHARED}" in instruction.claims
        left = self.machine.of_pod(owner) if is_found else []
        homes = instruction.homes
        found = [
            ev.PodProcess(process.pid, "python", container=f"container-{process.pid}", ticket=process.ticket)
            for process in left
            if not homes or process.home in homes
        ]
        return ev.TenantsListed(instruction.token, tuple(found))

    def _mps(self, instruction: do.MpsInstruction) -> ev.Event:
        return on_mps(self.machine, instruction, self.clockwork.now, self.dice, dying=not self.alive)


def _said(ticket: Ticket) -> ev.FoundTicket:
    """What a ticket says; of half of one, or of another program's file, nothing."""
    record = ticket.said if isinstance(ticket.said, TicketRecord) else None
    return ev.FoundTicket(ticket.name, record, "" if record is not None else "it holds no record")


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
            case ForgottenTombstone():
                last.pop(record.allocation, None)
            case SharedDeviceRecord():
                last[f"home {record.home}"] = record
            case SharedDeviceGone():
                last.pop(f"home {record.home}", None)
            case WarmRecord():
                last[f"warm {record.gpu} {record.gi_id}"] = record
            case WarmGone():
                last.pop(f"warm {record.gpu} {record.gi_id}", None)
            case _:
                raise AssertionError(f"not a record: {record!r}")
    return list(last.values())


def quick_rules(closing_ttl_s: int, keep_warm_s: float = 0.0) -> AgentConfig:
    """The rules of an agent, in a hurry: the world of one seed lasts minutes."""
    return replace(
        AgentConfig(),
        closing_ttl_s=closing_ttl_s,
        tombstone_ttl_s=closing_ttl_s * 2.0,
        back_off_first_s=0.2,
        back_off_max_s=3.0,
        quarantine_after=3,
        remake_retry_s=3.0,
        look_s=5.0,
        read_devices_s=4.0,
        watch_mps_s=2.0,
        container_start_s=1.0,
        compare_tickets_s=0.0,
        prepare_within_s=5.0,
        keep_warm_s=keep_warm_s,
    )
