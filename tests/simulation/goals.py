"""
What must be so once the faults have stopped: everyone answered, nothing leaked, and nothing left after the last pod.

Each function returns what is still missing, in words; empty is good.
"""

from simulation.agents import AgentHost
from simulation.broker import Broker
from simulation.folder import Folder, Kubelets
from simulation.hardware import OPERATOR, Gpu, Machine
from simulation.judge import Judge
from simulation.pods import Device, Pod
from simulation.tables import GpuRow, Span, fits_in, overlap

from sluice.contracts.exchange import Stream
from sluice.contracts.messages import (
    AllocationRequested,
    AnyMessage,
    Bound,
    Closed,
    NodeOpened,
    Pending,
    Refused,
    Released,
    RequestRejected,
    RequestWithdrawn,
    SliceDegraded,
    SliceGone,
)
from sluice_node_agent.core.records import SliceRecord, Tombstone

Held = list[tuple[str, Span]]


class Goals:
    """Looks at the whole world at once."""

    def __init__(
        self, broker: Broker, judge: Judge, folder: Folder, kubelets: Kubelets, agents: dict[str, AgentHost]
    ) -> None:
        """Nothing is looked at yet."""
        self.broker = broker
        self.judge = judge
        self.folder = folder
        self.kubelets = kubelets
        self.agents = agents

    def _values(self) -> dict[str, AnyMessage | None]:
        now = self.broker.clockwork.now
        return {
            entry.subject: entry.message
            for stream in (Stream.BOOK, Stream.STATE)
            for entry in self.broker.values.snapshot(stream, (), now)
        }

    # -- everyone answered, nothing leaked ------------------------------------------------------------------------

    def settled(self) -> list[str]:
        """What is missing until every pod of the folder has its answer and hardware is what was granted."""
        values = self._values()
        missing: list[str] = []
        wanted: dict[str, Bound] = {}
        for pod in self.folder.pods.values():
            missing += self._answered(pod, values, wanted)
        for subject, message in values.items():
            if isinstance(message, AllocationRequested) and message.name not in self.folder.pods:
                missing.append(f"{subject} asks for a pod that is gone")
        missing += self._nothing_else_held(wanted)
        missing += self._hardware_is(wanted)
        return missing

    def _answered(self, pod: Pod, values: dict[str, AnyMessage | None], wanted: dict[str, Bound]) -> list[str]:
        asked = {
            subject.rpartition(".")[2]: message
            for subject, message in values.items()
            if isinstance(message, AllocationRequested) and message.name == pod.name
        }
        if pod.ask.end == "rejected":
            for request in asked:  # an edit that is refused leaves the pod as it was
                answer = values.get(f"sluice.binding.{request}")
                if isinstance(answer, Bound):
                    wanted[answer.allocation] = answer
            said = [m for m in values.values() if isinstance(m, RequestRejected) and pod.file in m.origin]
            return [] if len(said) == 1 else [f"{pod.name}: {len(said)} rejections, one is due"]
        if len(asked) != 1:
            return [f"{pod.name}: {len(asked)} requests, one is due"]
        request, message = next(iter(asked.items()))
        if [claim.container for claim in message.claims] != list(pod.ask.containers):
            return [f"{pod.name}: an older ask stands"]
        answer = values.get(f"sluice.binding.{request}")
        if pod.ask.end == "refused":
            return [] if isinstance(answer, Refused) else [f"{pod.name}: {answer}, a refusal is due"]
        match answer:
            case Bound():
                wanted[answer.allocation] = answer
                runs = not pod.runs or self.kubelets.runs(request)
                return [*self._serves(pod, answer), *([] if runs else [f"{pod.name}: bound, and does not run"])]
            case Refused() if answer.request_revision < message.revision:
                return self._waits(pod, values.get(f"sluice.waiting.{request}"))
            case None:
                return self._waits(pod, values.get(f"sluice.waiting.{request}"))
            case _:
                return [f"{pod.name}: {request} has no answer but {answer}"]

    def _waits(self, pod: Pod, waiting: AnyMessage | None) -> list[str]:
        """Who is not served is told why, and would really fit nowhere."""
        if not isinstance(waiting, Pending):
            return [f"{pod.name}: has no answer at all"]
        node = self._could_fit(pod)
        return [f"{pod.name}: waits, and would fit on {node}"] if node else []

    def _serves(self, pod: Pod, bound: Bound) -> list[str]:
        """Whether what was granted is what is asked for now."""
        booking = self.judge.bookings[bound.allocation]
        left = list(pod.ask.devices)
        for device in booking.devices:
            gpu = self.agents[booking.node].machine.gpus[device.gpu]
            fitting = next((d for d in left if d.profile_on(gpu.row, mig=gpu.mig) == (device.profile or "")), None)
            if fitting is None:
                return [f"{pod.name}: {device} is not what is asked for"]
            left.remove(fitting)
        return [f"{pod.name}: {len(left)} devices are missing"] if left else []

    def _nothing_else_held(self, wanted: dict[str, Bound]) -> list[str]:
        return [
            f"{allocation} is held on {node} for nobody"
            for node in self.agents
            for allocation in dict.fromkeys(held[3] for held in self.judge.held(node))
            if allocation not in wanted
        ]

    def _hardware_is(self, wanted: dict[str, Bound]) -> list[str]:
        """Instances, tickets and devices are exactly those of the bound allocations."""
        missing: list[str] = []
        for node, host in self.agents.items():
            machine = host.machine
            bound = {a: b for a, b in wanted.items() if b.node == node and not self._is_kept_out(machine, a)}
            places = sorted(
                (device.gpu, device.profile, (device.start, device.size))
                for allocation in bound
                for device in self.judge.bookings[allocation].devices
                if device.profile is not None
            )
            there = sorted(
                (gpu.uuid, instance.profile.name, instance.span)
                for gpu in machine.gpus.values()
                for instance in gpu.instances.values()
                if instance.maker != OPERATOR
            )
            if places != there:
                missing.append(f"{node}: instances {there}, granted {places}")
            tickets = sorted((ticket.allocation, ticket.name) for ticket in machine.tickets.values())
            if tickets != sorted((allocation, one.ticket) for allocation, one in bound.items()):
                missing.append(f"{node}: tickets {tickets}, bound {sorted(bound)}")
            missing += [
                f"{one.request}: device {uuid} does not exist"
                for one in bound.values()
                for container in one.containers
                for uuid in container.visible_devices.split(",")
                if uuid and machine.gpu_with(uuid) is None
            ]
        return missing

    def _is_kept_out(self, machine: Machine, allocation: str) -> bool:
        """Lost at a reboot, not to be made again beside what an operator made there since, and its agent says so."""
        said = any(
            isinstance(message, SliceDegraded) and message.allocation == allocation
            for message in self._values().values()
        )
        return said and any(
            instance.maker == OPERATOR
            for device in self.judge.bookings[allocation].devices
            for instance in machine.gpus[device.gpu].instances.values()
        )

    def _could_fit(self, pod: Pod) -> str:
        """A node on which the pod would fit, each of its devices on a GPU of its own; empty when there is none."""
        for node, host in self.agents.items():
            held = self.judge.held(node)
            gpus = list(host.machine.gpus.values())
            if self._fit(gpus, list(pod.ask.devices), held):
                return node
        return ""

    def _fit(self, gpus: list[Gpu], devices: list[Device], held: list[tuple[str, str, Span, str]]) -> bool:
        if not devices:
            return True
        for number, gpu in enumerate(gpus):
            on_gpu: Held = [(profile, span) for uuid, profile, span, _ in held if uuid == gpu.uuid]
            on_gpu += [(i.profile.name, i.span) for i in gpu.instances.values() if i.maker == OPERATOR]
            if _fits_on(gpu.row, on_gpu, devices[0], mig=gpu.mig):
                rest = gpus[:number] + gpus[number + 1 :]
                if self._fit(rest, devices[1:], held):
                    return True
        return False

    # -- nothing left ---------------------------------------------------------------------------------------------

    def empty(self) -> list[str]:
        """What is left after all pods were removed."""
        left: list[str] = []
        for subject, message in self._values().items():
            kind = subject.split(".")[1]
            over = (
                kind not in {"request", "ledger", "binding", "slice"}
                or isinstance(message, (Closed, NodeOpened, Released))
                or (isinstance(message, (RequestWithdrawn, SliceGone)) and message.closing)
            )
            if not over:
                left.append(f"{subject}: {type(message).__name__}")
        for node, host in self.agents.items():
            machine = host.machine
            left += [f"{node}: {found}" for found in machine.tickets.values()]
            left += [f"{node}: {process}" for _, process in machine.processes() if process.owner != OPERATOR]
            left += [
                f"{node}: {instance}"
                for gpu in machine.gpus.values()
                for instance in gpu.instances.values()
                if instance.maker != OPERATOR
            ]
            last = {_allocation(record): record for record in machine.journal}
            left += [f"{node}: journal has {a}" for a, record in last.items() if isinstance(record, SliceRecord)]
        return left

    def forgotten(self) -> list[str]:
        """What is left after the last closing word has expired."""
        return [
            f"{subject}: {type(message).__name__}"
            for subject, message in self._values().items()
            if subject.split(".")[1] in {"request", "binding", "slice", "waiting"} or isinstance(message, Closed)
        ]


def _allocation(record: object) -> str:
    if isinstance(record, SliceRecord):
        return record.booking.allocation
    return record.allocation if isinstance(record, Tombstone) else ""


def _fits_on(row: GpuRow, held: Held, device: Device, *, mig: bool) -> bool:
    name = device.profile_on(row, mig=mig)
    if name is None:
        return False
    if not mig:
        return not held
    profile = row.profile(name)
    if profile is None or any(not held_name for held_name, _ in held):
        return False
    return any(
        fits_in(row, held, profile, span) for span in profile.placements if not any(overlap(span, at) for _, at in held)
    )
