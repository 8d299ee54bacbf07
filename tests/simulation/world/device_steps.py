"""What an agent's instructions do to its machine, and how the machine answers. It takes no time and decides nothing."""

from collections.abc import Iterable
from random import Random

from simulation.world.hardware import OPERATOR, DeviceRefusedError, Gpu, Machine
from simulation.world.mps_daemons import MPS_ROOT, Daemon, DaemonRefusedError, Directory, clients_of, let_go

from sluice.contracts.ids import GpuUuid, HomeId
from sluice_node_agent.core.events import (
    ComputeInstanceCreated,
    ComputeInstanceDestroyed,
    ComputeModeSet,
    Event,
    FoundMpsHome,
    GpuInstanceCreated,
    GpuInstanceDestroyed,
    GpuRead,
    Holder,
    HoldersListed,
    InstanceVerified,
    MpsClient,
    MpsClientsTerminated,
    MpsLimitsSet,
    MpsRefused,
    MpsSeen,
    MpsStarted,
    MpsStopped,
    OwnershipMark,
    QuotasSet,
)
from sluice_node_agent.core.instructions import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    GpuInstruction,
    ListHolders,
    MpsInstruction,
    ReadGpu,
    SetComputeMode,
    SetMpsLimits,
    SetQuotas,
    StartMps,
    StopMps,
    TerminateMpsClients,
    VerifyInstance,
    WatchMps,
)

TICKS_PER_S = 100
_NOT_OURS = {"NotFound", "Different"}


def on_gpu(gpu: Gpu, machine: Machine, instruction: GpuInstruction) -> Event:
    """Carry out an instruction about a GPU. Raises DeviceRefusedError."""
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
            return HoldersListed(token, _holders(gpu, machine, instruction.uuid))
        case SetComputeMode():
            gpu.set_exclusive(exclusive=instruction.exclusive_process)
            return ComputeModeSet(token)
        case ReadGpu():
            return GpuRead(token, gpu.report())


def on_marked_gpu(gpu: Gpu, machine: Machine, instruction: GpuInstruction) -> Event:
    """As `on_gpu`, with the marks of places that the agent keeps beside its tickets. Raises DeviceRefusedError."""
    begins = isinstance(instruction, CreateGpuInstance)
    begins = begins or (isinstance(instruction, SetComputeMode) and instruction.exclusive_process)
    place = _marked(instruction)
    if isinstance(instruction, CreateGpuInstance) and not gpu.lost:
        _refuse_taken(gpu, instruction)
    is_new = begins and place is not None and place not in machine.marks
    if begins and place is not None:
        machine.marks[place] = None
    try:
        done = on_gpu(gpu, machine, instruction)
    except DeviceRefusedError as refused:
        unclear = refused.kind in {"GpuLost", "Unknown"}
        creates = isinstance(instruction, CreateGpuInstance)
        nothing_left = is_new and (creates or not unclear) if begins else refused.kind in _NOT_OURS
        if place is not None and nothing_left:
            machine.marks.pop(place, None)
            if creates and unclear:
                machine.doubts[place] = None
        raise
    if place is not None:
        machine.doubts.pop(place, None)
    if place is not None and not begins:
        machine.marks.pop(place, None)
    if isinstance(instruction, ReadGpu):
        _forget_what_vanished(gpu, machine)
    return done


def _refuse_taken(gpu: Gpu, instruction: CreateGpuInstance) -> None:
    """An agent looks before it marks a place and creates there: what is there has no owner of its own."""
    span = (instruction.start, instruction.size)
    for instance in gpu.instances.values():
        if instance.span == span and instance.profile.profile_id == instruction.profile_id:
            raise DeviceRefusedError("InsufficientResources", f"{instance.gi_id} is at {span} already")


def found_marks(machine: Machine) -> tuple[OwnershipMark, ...]:
    """The marks behind which something is, or may be, as an agent finds them when it starts."""
    for gpu in machine.gpus.values():
        _forget_what_vanished(gpu, machine)
    return marks_of(machine.marks)


def marks_of(places: Iterable[tuple[str, int, int]]) -> tuple[OwnershipMark, ...]:
    return tuple(OwnershipMark(GpuUuid(gpu), start, size) for gpu, start, size in sorted(places))


def _forget_what_vanished(gpu: Gpu, machine: Machine) -> None:
    spans = {instance.span for instance in gpu.instances.values()}
    for known in (machine.marks, machine.doubts):
        for of, start, size in tuple(known):
            if of == gpu.uuid and size and not gpu.lost and (start, size) not in spans:
                del known[of, start, size]


def _marked(instruction: GpuInstruction) -> tuple[str, int, int] | None:
    match instruction:
        case CreateGpuInstance() | DestroyGpuInstance():
            return instruction.gpu, instruction.start, instruction.size
        case SetComputeMode():
            return instruction.gpu, 0, 0
        case _:
            return None


def on_mps(machine: Machine, instruction: MpsInstruction, now: float, dice: Random, *, dying: bool) -> Event:
    """Carry out an instruction about a daemon. `dying`: its agent dies over it, and it may be done by half."""
    token, mps = instruction.token, machine.mps
    try:
        match instruction:
            case StartMps():
                return _start(machine, instruction, now, by_half=dying and dice.random() < 0.5)
            case SetMpsLimits():
                mps.limit(instruction.home, instruction.limits.active_thread_percentage, instruction.limits.memory_mib)
                return MpsLimitsSet(token)
            case WatchMps():
                return _look(machine, instruction)
            case TerminateMpsClients():
                _terminate(machine, instruction)
                return MpsClientsTerminated(token)
            case SetQuotas():
                assert machine.time is not None, "there is no library of the time quota here"
                machine.time.serve(instruction.home, instruction.tenants)
                return QuotasSet(token)
            case StopMps():
                mps.stop(instruction.home, machine.gpus)
                if machine.time is not None:
                    machine.time.end(instruction.home)
                return MpsStopped(token)
    except DaemonRefusedError as refused:
        return MpsRefused(token, str(refused))


def found_homes(machine: Machine) -> tuple[FoundMpsHome, ...]:
    """The homes whose directories are on the disk, as an agent finds them when it starts."""
    found = []
    for directory in machine.mps.directories.values():
        running = machine.mps.alive(directory.home)
        found.append(
            FoundMpsHome(
                home=HomeId(directory.home),
                gpu=GpuUuid(directory.gpu),
                device=directory.device,
                namespace=directory.namespace,
                uid=directory.uid,
                pid=running.pid if running is not None else 0,
                started_at=running.started_at if running is not None else 0,
            )
        )
    return tuple(found)


def home_of(pipe_directory: str) -> str:
    """The home whose pipe directory a container was told; empty when it was told none."""
    inside = pipe_directory.removeprefix(f"{MPS_ROOT}/").removesuffix("/pipe")
    return inside if pipe_directory == f"{MPS_ROOT}/{inside}/pipe" else ""


def _holders(gpu: Gpu, machine: Machine, uuid: str) -> tuple[Holder, ...]:
    tenants = [
        Holder(process.pid, "" if process.owner == OPERATOR else machine.pod_of(process.owner), kind="compute")
        for process in gpu.holders(uuid)
    ]
    servers = [
        Holder(daemon.pid, "", "nvidia-cuda-mps-server", "mps")
        for home, device in gpu.servers.items()
        if uuid in {gpu.uuid, device} and (daemon := machine.mps.alive(home)) is not None
    ]
    return (*tenants, *servers)


def _start(machine: Machine, start: StartMps, now: float, *, by_half: bool) -> Event:
    directory = Directory(start.home, start.gpu, start.device, start.namespace, start.uid)
    if by_half:
        machine.mps.prepare(directory)
        raise DaemonRefusedError("the agent died over it")
    daemon = machine.mps.start(
        directory,
        machine.gpus[start.gpu],
        machine.new_pid(),
        int(now * TICKS_PER_S),
        start.limits.active_thread_percentage,
        start.limits.memory_mib,
    )
    return MpsStarted(start.token, daemon.pid, daemon.started_at)


def _look(machine: Machine, watch: WatchMps) -> MpsSeen:
    daemon = machine.mps.listed.get(watch.home)
    quota = machine.time.look(watch.home, machine) if machine.time is not None else None
    if daemon is None or not daemon.alive or not _is_meant(daemon, watch):
        return MpsSeen(watch.token, alive=False, quota=quota)
    gpu = machine.gpus[daemon.directory.gpu]
    clients = tuple(MpsClient(process.pid, machine.pod_of(process.owner)) for process in clients_of(gpu, watch.home))
    return MpsSeen(watch.token, alive=True, fault=daemon.fault, clients=clients, quota=quota)


def _terminate(machine: Machine, terminate: TerminateMpsClients) -> None:
    daemon = machine.mps.alive(terminate.home)
    if daemon is None:
        raise DaemonRefusedError(f"no daemon of {terminate.home} answers")
    gpu = machine.gpus[daemon.directory.gpu]
    for owner in let_go(gpu, terminate.home, terminate.pids):
        machine.mps.on_terminated(daemon, owner)


def _is_meant(daemon: Daemon, watch: WatchMps) -> bool:
    return (daemon.pid, daemon.started_at) == (watch.pid, watch.started_at)
