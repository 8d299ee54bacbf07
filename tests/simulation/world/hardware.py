"""
The machines of the simulated world: GPUs as strict as the real ones, processes on them, ticket directories and disks.

Shares no code with `sluice.mig`, with the node agent's simulated backend or with any core, for it judges them. GPU
instances, processes and MPS daemons outlive every agent; a reboot takes them all and changes the boot id; the disk
outlives all.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import TYPE_CHECKING

from simulation.judges.gpu_tables import GpuRow, ProfileRow, Span, fits_in, overlap
from simulation.world.mps_daemons import Daemons

from sluice.contracts.ids import GpuUuid, NodeName
from sluice.contracts.messages import GpuReport, InstanceReport, PlacementReport, ProfileReport
from sluice_node_agent.core.instructions import CdiDevice

if TYPE_CHECKING:
    from simulation.judges.time_quota import Timekeepers

Layout = tuple[tuple[str, Span], ...]
"""What an administrator makes on a GPU: profiles, and where."""
_NO_FILE: tuple[str, int | None] = ("", None)
OPERATOR = "operator"
"""Makes foreign instances: a person with nvidia-smi."""


class DeviceRefusedError(Exception):
    """The driver said no. `kind` is spelled as the agent spells it; `planned` when a fault of the plan made it."""

    def __init__(self, kind: str, why: str, *, planned: bool = False) -> None:
        super().__init__(why)
        self.planned = planned
        self.kind = kind
        self.why = why


@dataclass(slots=True)
class Instance:
    """One GPU instance; `uuid` is empty while it has no compute instance."""

    gi_id: int
    profile: ProfileRow
    span: Span
    maker: str
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a device: a MIG device, or a whole GPU.

    `home` names the daemon that it is a client of; empty when it runs without MPS. Once `terminated` it computes no
    more, and is listed, with its memory, until it ends (docs/hardware).
    """

    pid: int
    owner: str
    device: str
    home: str = ""
    terminated: bool = False
    memory_mib: int = 0
    """What it may use of a home: as its container was started with, within what its server let it have then."""
    file: tuple[str, int | None] = ("", None)
    """Of one that has not opened its device yet: behind which file that is, by GPU and id of the GPU instance."""
    ticket: str = ""
    """What its container's environment names, as it does for whatever runs there later."""


@dataclass(slots=True)
class Ticket:
    """The directory without which no container starts; `ordered_at`: when its agent wanted it."""

    name: str
    allocation: str
    owner: str
    devices: tuple[str, ...]
    homes: tuple[str, ...] = ()
    ordered_at: float = 0.0
    said: object = None
    """What its agent wrote in it, which only an agent can read."""


class Gpu:
    """One GPU of one machine. Every change is reported to `watcher` (what, gpu, instance) after it happened."""

    def __init__(self, uuid: str, index: int, row: GpuRow, *, mig: bool, dice: Random) -> None:
        self.uuid = uuid
        self.index = index
        self.row = row
        self.mig = mig
        self.instances: dict[int, Instance] = {}
        self.processes: list[Process] = []
        self.layout: Layout | None = None
        """The administrator's layout, if any; the agent creates and destroys nothing there."""
        self.servers: dict[str, str] = {}
        """MPS servers: the home of each, and the device that it holds."""
        self.taking_turns = False
        """Whether time is enforced on it, so that shares may use the same SMs one after the other."""
        self.exclusive = False
        """Compute mode EXCLUSIVE_PROCESS: one process may have a context, clients of one MPS server count as one."""
        self.lost = ""
        """Why it does not answer; what is on it stays on it."""
        self.sick = ""
        """Why it must get no new work, although it answers."""
        self.refusals: deque[tuple[str, str]] = deque()
        """Faults to come: which operation (a prefix of its name) fails next, and with which kind."""
        self.watcher: Callable[[str, Gpu, Instance], None] = lambda _what, _gpu, _instance: None
        self._dice = dice
        self._made = 0

    def create_gi(self, profile_id: int, span: Span, maker: str) -> int:
        """Create a GPU instance; its id is the driver's choice."""
        self._maybe_fail("create_gi")
        profile = self.row.profile_of_id(profile_id)
        if not self.mig:
            raise DeviceRefusedError("NotSupported", "MIG mode is off")
        if profile is None or span not in profile.placements:
            raise DeviceRefusedError("InvalidArgument", f"no profile {profile_id} at {span}")
        held = [(found.profile.name, found.span) for found in self.instances.values()]
        if not fits_in(self.row, held, profile, span):
            raise DeviceRefusedError("InsufficientResources", f"{profile.name} does not fit at {span}")
        free = [number for number in range(1, 15) if number not in self.instances]
        instance = Instance(self._dice.choice(free), profile, span, maker)
        self.instances[instance.gi_id] = instance
        self.watcher("gi made", self, instance)
        return instance.gi_id

    def lay_out(self) -> None:
        """The administrator creates what is missing of the layout."""
        for name, span in self.layout or ():
            profile = self.row.profile(name)
            if profile is None or any(overlap(found.span, span) for found in self.instances.values()):
                continue
            free = [number for number in range(1, 15) if number not in self.instances]
            self._made += 1
            uuid = f"MIG-{self.uuid.removeprefix('GPU-')}-{self._made:04d}"
            made = Instance(self._dice.choice(free), profile, span, OPERATOR, uuid)
            self.instances[made.gi_id] = made

    def create_ci(self, gi_id: int) -> str:
        """Create the compute instance that fills a GPU instance; the MIG device's UUID is new each time."""
        self._maybe_fail("create_ci")
        instance = self._found(gi_id)
        if instance.uuid:
            raise DeviceRefusedError("InsufficientResources", "the GPU instance is full")
        self._made += 1
        instance.uuid = f"MIG-{self.uuid.removeprefix('GPU-')}-{self._made:04d}"
        self.watcher("ci made", self, instance)
        return instance.uuid

    def destroy_ci(self, gi_id: int, uuid: str) -> None:
        """Destroy the compute instance whose MIG device is `uuid`."""
        self._maybe_fail("destroy_ci")
        instance = self._found(gi_id)
        if not instance.uuid:
            raise DeviceRefusedError("NotFound", "no compute instance")
        if instance.uuid != uuid:
            raise DeviceRefusedError("Different", f"it is {instance.uuid}")
        if any(process.device == uuid for process in self.processes) or uuid in self.servers.values():
            raise DeviceRefusedError("InUse", "a process is on it")
        self.watcher("ci destroyed", self, instance)
        instance.uuid = ""

    def destroy_gi(self, gi_id: int, span: Span) -> None:
        """Destroy the GPU instance if it sits at `span`."""
        self._maybe_fail("destroy_gi")
        instance = self._found(gi_id)
        if instance.span != span:
            raise DeviceRefusedError("Different", f"it sits at {instance.span}")
        if instance.uuid:
            raise DeviceRefusedError("InUse", "it has a compute instance")
        del self.instances[gi_id]
        self.watcher("gi destroyed", self, instance)

    def set_exclusive(self, *, exclusive: bool) -> None:
        """Put the GPU in compute mode EXCLUSIVE_PROCESS, or back in DEFAULT."""
        self._maybe_fail("set_exclusive")
        if self.mig:
            raise DeviceRefusedError("NotSupported", "not on a GPU in MIG mode")
        self.exclusive = exclusive

    def verify(self, gi_id: int, profile_id: int, span: Span, uuid: str) -> None:
        """Read back: refuses with NotFound when another one has this id, with Different when its device is another."""
        self._maybe_fail("verify")
        instance = self._found(gi_id)
        if (instance.profile.profile_id, instance.span) != (profile_id, span):
            raise DeviceRefusedError("NotFound", f"{instance.profile.name} at {instance.span}")
        if instance.uuid != uuid:
            raise DeviceRefusedError("Different", f"{instance.profile.name} at {instance.span}, {instance.uuid}")

    @property
    def whole(self) -> Span:
        return (0, self.row.memory_slices)

    def has_device(self, uuid: str) -> bool:
        """Whether a container could be given this device now."""
        if not self.mig:
            return uuid == self.uuid
        return any(instance.uuid == uuid for instance in self.instances.values())

    def span_of(self, uuid: str) -> Span | None:
        """Where on this GPU a device is; None when it is not on it."""
        if uuid == self.uuid:
            return self.whole
        return next((found.span for found in self.instances.values() if uuid and found.uuid == uuid), None)

    def holders(self, uuid: str) -> list[Process]:
        """All tenants' processes on a device, or on the whole GPU. MPS servers are in `servers`."""
        self._maybe_fail("holders")
        return [process for process in self.processes if uuid in {self.uuid, process.device}]

    def report(self) -> GpuReport:
        """The GPU as an agent's backend reports it."""
        return GpuReport(
            uuid=GpuUuid(self.uuid),
            index=self.index,
            model=self.row.product_name,
            memory_mib=self.row.memory_mib,
            multiprocessors=self.row.multiprocessors,
            mig_enabled=self.mig,
            memory_slices=self.row.memory_slices,
            compute_slices=self.row.compute_slices,
            profiles=tuple(_profile_report(row) for row in self.row.profiles) if self.mig else (),
            instances=tuple(
                InstanceReport(
                    gi_id=found.gi_id,
                    profile=found.profile.name,
                    start=found.span[0],
                    size=found.span[1],
                    uuid=found.uuid,
                )
                for found in sorted(self.instances.values(), key=lambda found: found.gi_id)
                if not self.lost
            ),
            creatable={},
            healthy=not self.lost and not self.sick,
            health_message=self.lost or self.sick,
            lost=bool(self.lost),
            fixed_layout=self.layout is not None,
        )

    def first_report(self) -> GpuReport:
        """As a backend that has just begun reports it: of one that does not answer it knows that it is there."""
        report = self.report()
        if not self.lost:
            return report
        return GpuReport(
            uuid=report.uuid,
            index=report.index,
            model="",
            memory_mib=0,
            multiprocessors=0,
            mig_enabled=False,
            memory_slices=0,
            compute_slices=0,
            profiles=(),
            instances=(),
            creatable={},
            healthy=False,
            health_message=report.health_message,
            lost=True,
            fixed_layout=report.fixed_layout,
        )

    def _found(self, gi_id: int) -> Instance:
        instance = self.instances.get(gi_id)
        if instance is None:
            raise DeviceRefusedError("NotFound", f"no GPU instance {gi_id}")
        return instance

    def _maybe_fail(self, operation: str) -> None:
        if self.lost:
            raise DeviceRefusedError("GpuLost", self.lost)
        if self.refusals and operation.startswith(self.refusals[0][0]):
            _, kind = self.refusals.popleft()
            raise DeviceRefusedError(kind, f"{operation} failed by plan", planned=True)


@dataclass(slots=True)
class Machine:
    """One node's hardware and disk."""

    node: NodeName
    gpus: dict[str, Gpu]
    boots: int = 1
    tickets: dict[str, Ticket] = field(default_factory=dict)
    marks: dict[tuple[str, int, int], None] = field(default_factory=dict)
    """Beside the tickets: the places of this boot where the agent has begun to make something (size 0: a whole GPU)."""
    doubts: dict[tuple[str, int, int], None] = field(default_factory=dict)
    """Beside the marks: where the agent may have made something, although its driver refused. None else has no mark."""
    journal: list[object] = field(default_factory=list)
    """What the journal says to who reads it now. The last of it may not be on disk."""
    on_disk: int = 0
    """So many of its records are: a power cut leaves these, in any case."""
    journal_problem: str = ""
    forgot_at: float = 0.0
    """When an agent began without what its journal had said."""
    has_pods: bool = False
    """Whether it has a kubelet, so that what runs of a pod is in a cgroup of its own."""
    waiting: list[Process] = field(default_factory=list)
    """Processes of pods that have not opened their devices yet: nothing on a GPU says that they are there."""
    looks: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """When an agent asked who is there, by home, and when it was answered."""
    cdi: dict[str, tuple[CdiDevice, ...]] = field(default_factory=dict)
    """What the CDI files of ResourceClaims hold, by the claim's UID: on a memory disk."""
    shares: set[str] = field(default_factory=set)
    """Pods that share their ResourceClaim with another pod, whose processes these are: their agent knows only these."""
    mps: Daemons = field(default_factory=Daemons)
    time: "Timekeepers | None" = None
    """Where the client library of the time quota is here: the token schedulers of its agent."""
    _pids: int = 1000

    @property
    def boot_id(self) -> str:
        """Another one after each reboot."""
        return f"boot-{self.node.replace('.', '-')}-{self.boots}"

    def pod_of(self, owner: str) -> str:
        """The pod in whose cgroup the processes are that a pod has here."""
        return f"{owner}-other" if owner in self.shares else owner

    def lose_journal(self) -> None:
        self.journal.clear()
        self.on_disk = 0

    def gpu_with(self, device: str) -> Gpu | None:
        """The GPU on which a device (MIG device or whole GPU) is now."""
        return next((gpu for gpu in self.gpus.values() if gpu.has_device(device)), None)

    def new_pid(self) -> int:
        """A process id that was never used."""
        self._pids += 1
        return self._pids

    def start_process(
        self, owner: str, device: str, home: str = "", memory_mib: int = 0, ticket: str = "", pid: int = 0
    ) -> Process | None:
        """A container's process takes a device, by the daemon of a home or by itself, if that can be."""
        gpu = self.gpu_with(device)
        if gpu is None or gpu.lost:
            return None
        if not home and gpu.exclusive and (gpu.servers or gpu.processes):
            return None
        process = Process(pid or self.new_pid(), owner, device, home, memory_mib=memory_mib, ticket=ticket)
        gpu.processes.append(process)
        return process

    def start_waiting(
        self, owner: str, device: str, home: str = "", memory_mib: int = 0, ticket: str = ""
    ) -> Process | None:
        """A container's process that will open its device later, if that is there now."""
        gpu = self.gpu_with(device)
        if gpu is None:
            return None
        gi_id = next((found.gi_id for found in gpu.instances.values() if found.uuid == device), None)
        file = (gpu.uuid, gi_id)
        process = Process(self.new_pid(), owner, device, home, memory_mib=memory_mib, file=file, ticket=ticket)
        self.waiting.append(process)
        return process

    def open_late(self, process: Process) -> Process | None:
        """A process that waited opens what is behind its device's file now: drivers number files by ids used again."""
        if process not in self.waiting:
            return None
        self.waiting.remove(process)
        gpu = self.gpus[process.file[0]]
        behind = gpu.instances.get(process.file[1]) if process.file[1] is not None else None
        device = behind.uuid if behind is not None else process.device
        if not device or (process.home and self.mps.alive(process.home) is None):
            return None  # it finds no device, or no daemon, and ends
        told = (process.memory_mib, process.ticket)
        return self.start_process(process.owner, device, process.home, *told, process.pid)

    def of_pod(self, owner: str) -> list[Process]:
        """All that is in a pod's cgroup."""
        there = [*(process for _, process in self.processes()), *self.waiting]
        return [process for process in there if process.owner == owner]

    def start_sandbox(self, owner: str) -> Process | None:
        """The process that is in a pod's cgroup from before its first container to after its last."""
        if not self.has_pods:
            return None
        there = next((one for one in self.waiting if one.owner == owner and one.file == _NO_FILE), None)
        if there is None:
            there = Process(self.new_pid(), owner, "", file=_NO_FILE)
            self.waiting.append(there)
        return there

    def behind(self, gpu: str, gi_id: int | None) -> str:
        """The device that is behind a device file now; empty where there is none."""
        if gi_id is None:
            return gpu
        instance = self.gpus[gpu].instances.get(gi_id)
        return instance.uuid if instance is not None else ""

    def end_processes(self, owner: str, *, sandboxes: bool = True) -> None:
        """The pod's cgroup is empty, or has only its sandbox left."""
        self.waiting = [
            process
            for process in self.waiting
            if process.owner != owner or (process.file == _NO_FILE and not sandboxes)
        ]
        for gpu in self.gpus.values():
            gpu.processes = [process for process in gpu.processes if process.owner != owner]

    def processes(self) -> list[tuple[Gpu, Process]]:
        """Everything that runs on a GPU of this machine."""
        return [(gpu, process) for gpu in self.gpus.values() for process in gpu.processes]

    def reboot(self, *, tickets_survive: bool, homes_survive: bool = True, unwritten: int = 0) -> None:
        """MIG instances, processes, daemons and compute modes are gone; directories too where they lie in memory.

        After a power cut also the last `unwritten` records of the journal, as far as they were not on disk.
        """
        self.boots += 1
        del self.journal[max(self.on_disk, len(self.journal) - unwritten) :]
        self.on_disk = len(self.journal)
        self.mps.reboot(homes_survive=homes_survive)
        self.marks.clear()
        self.doubts.clear()
        self.waiting.clear()
        for gpu in self.gpus.values():
            gpu.instances.clear()
            gpu.processes.clear()
            gpu.servers.clear()
            gpu.exclusive = False
        if not tickets_survive:
            self.tickets.clear()
            self.cdi.clear()


@cache
def _profile_report(row: ProfileRow) -> ProfileReport:
    copy, decode, encode, jpeg, ofa = row.engines
    return ProfileReport(
        name=row.name,
        profile_id=row.profile_id,
        compute_slices=row.compute_slices,
        memory_mib=row.memory_mib,
        multiprocessors=row.multiprocessors,
        copy_engines=copy,
        decoders=decode,
        encoders=encode,
        jpegs=jpeg,
        ofas=ofa,
        max_instances=row.max_instances,
        placements=tuple(PlacementReport(start=start, size=size) for start, size in row.placements),
    )
