"""
The history checker: everything that must hold at every instant, checked when it happens.

It hears what landed on the bus, what was done on the hardware, and what agents and kubelets did; it keeps its own
books and uses no code of the system but its message types. The first violation ends the run.
"""

from collections import Counter

from simulation.agents import AgentHost
from simulation.clockwork import Clockwork
from simulation.folder import Folder, Kubelets
from simulation.given_up import GivenUp
from simulation.hardware import OPERATOR, Gpu, Instance, Machine, Process, Ticket
from simulation.host import Host
from simulation.tables import Span, fits_in, overlap

from sluice.contracts.exchange import Write
from sluice.contracts.messages import (
    AllocationRequested,
    AnyMessage,
    Booking,
    Bound,
    Closed,
    Grant,
    NodeOpened,
    Released,
    RequestRejected,
    RequestWithdrawn,
    Revoke,
    SliceDegraded,
    SliceFailed,
    SliceGone,
    SliceReady,
)

WRITES_PER_REQUEST_MAX = 400
SETTLED_PAST_S = 8.0
"""A request that appears so long after its pod was last touched is of that pod as it is now."""


class ViolationError(Exception):
    """An invariant does not hold. `rule` names it."""

    def __init__(self, rule: str, text: str) -> None:
        """Which one, and how."""
        super().__init__(f"{rule}: {text}")
        self.rule = rule
        self.text = text


class Judge:
    """All that is known, and the rules."""

    def __init__(self, clockwork: Clockwork, machines: dict[str, Machine], folder: Folder, kubelets: Kubelets) -> None:
        """Nothing has happened."""
        self.clockwork = clockwork
        self.machines = machines
        self.folder = folder
        self.kubelets = kubelets
        self.bookings: dict[str, Booking] = {}
        self.ledger: dict[str, dict[str, Grant | Revoke | Closed]] = {}
        self.heads: dict[str, NodeOpened] = {}
        self.gone: dict[str, None] = {}
        self.said_gone: dict[str, None] = {}
        """What agents wanted to say is gone, and was (checked then): a wiped broker may never have heard it."""
        self.revoked: dict[str, None] = {}
        self.failed: dict[str, None] = {}
        self.ready: dict[str, SliceReady] = {}
        self.told_devices: dict[str, str] = {}
        """MIG device -> allocation, from every SliceReady that landed."""
        self.told_tickets: dict[str, str] = {}
        self.bound: dict[str, Bound] = {}
        self.asked_at: dict[str, float] = {}
        self.requests: dict[str, AllocationRequested] = {}
        self.ended: dict[str, None] = {}
        self.ended_here: dict[str, None] = {}
        """The same in this life of the broker: where nothing is stored, no guard keeps an old duplicate out."""
        self.rejected: dict[str, None] = {}
        self.writes: Counter[str] = Counter()
        self._boots: dict[str, str] = {}
        """Ticket -> the boot in which it was made."""
        self.given_up = GivenUp()
        self.checks = 0

    # -- the bus --------------------------------------------------------------------------------------------------

    def landed(self, write: Write, _sequence: int) -> None:
        """A value is the last one of its subject now."""
        self.checks += 1
        message: AnyMessage = write.message
        if wrong := self.given_up.landed(write):
            self._fail("taken until settled", wrong)
        match message:
            case AllocationRequested() | RequestRejected() | RequestWithdrawn():
                self._request(write.subject.rpartition(".")[2], message)
            case SliceReady() | SliceGone() | SliceFailed() | SliceDegraded():
                self._slice(message)
            case NodeOpened():
                self.heads[message.node] = message
            case Grant():
                self._granted(message)
            case Revoke():
                self._revoked(message)
            case Closed():
                self._closed(message)
            case Bound():
                self._bound(message)
            case Released():
                self._released(message)
            case _:
                pass

    def wiped(self) -> None:
        """
        Nothing is on the bus any more. What happened has happened, but a binding that its source never read was never
        acted on, and counts as unsaid.
        """
        self.bound = {request: bound for request, bound in self.bound.items() if request in self.kubelets.bound}
        self.ledger.clear()
        self.heads.clear()
        self.ended_here.clear()
        self.given_up.wiped()

    def _granted(self, grant: Grant) -> None:
        booking = grant.booking
        book = self.ledger.setdefault(booking.node, {})
        known = book.get(booking.allocation)
        if known is not None and not isinstance(known, Closed) and grant.revision < known.revision:
            self._fail("I6", f"{booking.allocation}: Grant {grant.revision} lands over revision {known.revision}")
        if not grant.adopted:
            if booking.node not in self.heads:
                self._fail("opened before use", f"{booking.allocation} on {booking.node}, which has no head")
            self._check_place(grant)
        book[booking.allocation] = grant
        self.bookings[booking.allocation] = booking

    def _check_place(self, grant: Grant) -> None:
        """I1 and I2 for a new booking: the place exists, is free, and nobody else's process is on it."""
        booking = grant.booking
        machine = self.machines[booking.node]
        held = self.held(booking.node, besides=(booking.allocation, *grant.after))
        for device in booking.devices:
            gpu, span = machine.gpus[device.gpu], (device.start, device.size)
            on_gpu = [(profile, at) for uuid, profile, at, _ in held if uuid == device.gpu]
            other = next((a for uuid, _, at, a in held if uuid == device.gpu and overlap(at, span)), None)
            if other is not None:
                self._fail("I1", f"{booking.allocation} is granted {device} which {other} holds")
            if device.profile is not None:
                row = gpu.row.profile(device.profile)
                if not gpu.mig or row is None or not fits_in(gpu.row, on_gpu, row, span):
                    self._fail("I2", f"{booking.allocation}: {device} is not possible beside {on_gpu}")
            elif gpu.mig:
                self._fail("I2", f"{booking.allocation}: whole GPU granted on a GPU in MIG mode")
            if not grant.after:
                self._check_tenants(booking, gpu, span)
            held.append((device.gpu, device.profile or "", span, booking.allocation))

    def _check_tenants(self, booking: Booking, gpu: Gpu, span: Span) -> None:
        for process in gpu.processes:
            at = gpu.span_of(process.device)
            if at is not None and overlap(at, span) and process.owner not in {booking.owner, OPERATOR}:
                self._fail("I1", f"{booking.allocation} is granted {span} of {gpu.uuid} where {process} still runs")

    def held(self, node: str, besides: tuple[str, ...] = ()) -> list[tuple[str, str, Span, str]]:
        """What the ledger of a node books: GPU, profile ("" for a whole GPU), span, allocation."""
        return [
            (device.gpu, device.profile or "", (device.start, device.size), allocation)
            for allocation, entry in self.ledger.get(node, {}).items()
            if not isinstance(entry, Closed) and allocation not in self.gone and allocation not in besides
            for device in entry.booking.devices
        ]

    def _revoked(self, revoke: Revoke) -> None:
        booking = revoke.booking
        bound = self.bound.get(booking.request)
        is_bound = bound is not None and bound.allocation == booking.allocation
        unwanted = booking.request in self.ended or booking.request in self.rejected
        unwanted = unwanted or booking.name not in self.folder.pods
        if is_bound and not unwanted and booking.allocation not in self.failed:
            self._fail("undisturbed", f"{booking.allocation} is bound and wanted, and revoked: {revoke.cause}")
        self.revoked[booking.allocation] = None
        self.bookings[booking.allocation] = booking
        self.ledger.setdefault(booking.node, {})[booking.allocation] = revoke

    def _closed(self, closed: Closed) -> None:
        if closed.allocation not in self.gone:
            self._fail("LAW 3", f"{closed.allocation} is closed before its agent said SliceGone")
        self.ledger.setdefault(closed.node, {})[closed.allocation] = closed

    def _bound(self, bound: Bound) -> None:
        before = self.bound.get(bound.request)
        if before is not None and before.allocation != bound.allocation and before.allocation not in self.failed:
            self._fail("bound once", f"{bound.request}: {bound.allocation} after {before.allocation}")
        if bound.allocation not in self.ready:
            self._fail("bound when ready", f"{bound.request}: {bound.allocation} was never said to be ready")
        self.bound[bound.request] = bound

    def _released(self, released: Released) -> None:
        bound = self.bound.get(released.request)
        if bound is not None and bound.allocation not in self.said_gone:
            self._fail("LAW 3", f"{released.request} is released before {bound.allocation} is gone")
        asked = self.requests.get(released.request)
        if asked is not None and self._processes_of(asked.owner):
            self._fail("LAW 3", f"{released.request} is released while its processes run")

    def _slice(self, said: SliceReady | SliceGone | SliceFailed | SliceDegraded) -> None:
        match said:
            case SliceReady():
                self._ready(said)
            case SliceGone():
                self.gone[said.allocation] = None
            case _:
                self.failed[said.allocation] = None

    def _ready(self, ready: SliceReady) -> None:
        self.ready[ready.allocation] = ready
        self.told_tickets[ready.ticket] = ready.allocation
        for device in ready.devices:
            if device.profile is not None:
                self.told_devices[device.uuid] = ready.allocation

    def _request(self, request: str, message: AllocationRequested | RequestRejected | RequestWithdrawn) -> None:
        self.asked_at.setdefault(request, self.clockwork.now)
        if isinstance(message, AllocationRequested):
            if request in self.ended_here:
                self._fail("I5", f"{request} is asked for again after it was withdrawn")
            self.requests[request] = message
            self.rejected.pop(request, None)
        elif isinstance(message, RequestWithdrawn):
            self._check_withdrawn(request)
            self.ended[request] = self.ended_here[request] = None
        else:
            self.rejected[request] = None

    def _check_withdrawn(self, request: str) -> None:
        """A living pod's request is never withdrawn."""
        asked = self.requests.get(request)
        if asked is None or request in self.ended or asked.name not in self.folder.pods:
            return
        if self.asked_at[request] > self.folder.since[asked.name] + SETTLED_PAST_S:
            self._fail("undisturbed", f"{request} of {asked.name} is withdrawn, and the pod is still in the folder")

    # -- agents ---------------------------------------------------------------------------------------------------

    def instructed(self, host: Host, instruction: object) -> None:
        """A core wants something."""
        if not isinstance(instruction, Write):
            return
        self.given_up.sent(host.run, instruction)
        if instruction.request:
            self.writes[instruction.request] += 1
            if self.writes[instruction.request] > WRITES_PER_REQUEST_MAX:
                self._fail("I11", f"over {WRITES_PER_REQUEST_MAX} writes for {instruction.request}")
        message = instruction.message
        if isinstance(message, SliceGone) and isinstance(host, AgentHost) and message.allocation not in self.said_gone:
            self._check_gone(host.machine, message.allocation)
            self.said_gone[message.allocation] = None

    def _check_gone(self, machine: Machine, allocation: str) -> None:
        """SliceGone is said: no ticket, no process of the tenant, no instance."""
        booking = self.bookings.get(allocation)
        if booking is None:
            return
        if any(ticket.allocation == allocation for ticket in machine.tickets.values()):
            self._fail("LAW 3", f"{allocation} is said to be gone and its ticket is there")
        for device in booking.devices:
            gpu, span = machine.gpus[device.gpu], (device.start, device.size)
            for process in gpu.processes:
                at = gpu.span_of(process.device)
                if process.owner == booking.owner and at is not None and overlap(at, span):
                    self._fail("LAW 3", f"{allocation} is said to be gone and {process} runs")
            for instance in gpu.instances.values():
                if instance.maker == OPERATOR or not overlap(instance.span, span) or device.profile is None:
                    continue
                if not self._is_anothers(instance, machine.node, gpu, allocation):
                    self._fail("LAW 3", f"{allocation} is said to be gone and {instance} is there")

    def _is_anothers(self, instance: Instance, node: str, gpu: Gpu, allocation: str) -> bool:
        told = self.told_devices.get(instance.uuid)
        if told is not None:
            return told != allocation
        tickets = self.machines[node].tickets.values()
        if any(instance.uuid in ticket.devices and ticket.allocation != allocation for ticket in tickets):
            return True  # handed to the next tenant already, only not said yet
        return any(
            uuid == gpu.uuid and overlap(span, instance.span)
            for uuid, _, span, _ in self.held(node, besides=(allocation,))
        )

    def ticket(self, what: str, machine: Machine, ticket: Ticket) -> None:
        """A ticket directory was made or removed: where a place changes hands."""
        if what == "removed":
            allocation = self.told_tickets.get(ticket.name)
            boot = self._boots.pop(ticket.name, machine.boot_id)
            if allocation is None or boot != machine.boot_id or allocation in self.failed:
                return
            if allocation not in self.revoked and all(machine.gpu_with(uuid) for uuid in ticket.devices):
                self._fail("only a Revoke destroys", f"ticket of {allocation} removed")
            return
        self._boots[ticket.name] = machine.boot_id
        if ticket.allocation in self.gone:
            self._fail("I6", f"{ticket.allocation} is handed out after it was said to be gone")
        mine = self._places(machine, ticket)
        for other in machine.tickets.values():
            if other.allocation == ticket.allocation:
                continue
            for gpu, span in self._places(machine, other):
                if any(gpu is own and overlap(span, at) for own, at in mine):
                    self._fail("I1", f"{ticket.allocation} and {other.allocation} are both handed {span} of {gpu.uuid}")

    def _places(self, machine: Machine, ticket: Ticket) -> list[tuple[Gpu, Span]]:
        found = []
        for uuid in ticket.devices:
            gpu = machine.gpu_with(uuid)
            span = gpu.span_of(uuid) if gpu is not None else None
            if gpu is not None and span is not None:
                found.append((gpu, span))
        return found

    # -- hardware -------------------------------------------------------------------------------------------------

    def hardware(self, what: str, gpu: Gpu, instance: Instance) -> None:
        """A GPU or compute instance was made or destroyed by an agent."""
        if what in {"ci destroyed", "gi destroyed"} and instance.maker == OPERATOR:
            self._fail("I13", f"foreign instance {instance} of {gpu.uuid} destroyed")
        allocation = self.told_devices.get(instance.uuid)
        if what == "ci destroyed" and allocation is not None and allocation not in self.revoked | self.failed:
            self._fail("only a Revoke destroys", f"{instance.uuid} of {allocation} destroyed")

    def started(self, machine: Machine, process: Process) -> None:
        """A container runs on a device."""
        for gpu, other in machine.processes():
            if other.owner not in {process.owner, OPERATOR} and other.device == process.device:
                self._fail("I1", f"{process} and {other} share {process.device} of {gpu.uuid}")

    def _processes_of(self, owner: str) -> list[Process]:
        return [p for machine in self.machines.values() for _, p in machine.processes() if p.owner == owner]

    def _fail(self, rule: str, text: str) -> None:
        raise ViolationError(rule, text)
