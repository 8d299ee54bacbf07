"""What an agent's instructions do to its machine, and how the machine answers. It takes no time and decides nothing."""

from collections.abc import Iterable
from random import Random

from simulation.world.hardware import OPERATOR, DeviceRefusedError, Gpu, Machine
from simulation.world.mps_daemons import MPS_ROOT, Daemon, DaemonRefusedError, Directory, clients_of, let_go

from sluice.contracts.ids import GpuUuid, HomeId
from sluice_node_agent.core import events as ev
from sluice_node_agent.core import instructions as do

TICKS_PER_S = 100
_NOT_OURS = {"NotFound", "Different"}


def on_gpu(gpu: Gpu, machine: Machine, instruction: do.GpuInstruction) -> ev.Event:
    """Carry out an instruction about a GPU. Raises DeviceRefusedError."""
    token = instruction.token
    match instruction:
        case do.CreateGpuInstance():
            span = (instruction.start, instruction.size)
            return ev.GpuInstanceCreated(token, gpu.create_gi(instruction.profile_id, span, "agent"))
        case do.CreateComputeInstance():
            return ev.ComputeInstanceCreated(token, gpu.create_ci(instruction.gi_id))
        case do.VerifyInstance():
            span = (instruction.start, instruction.size)
            gpu.verify(instruction.gi_id, instruction.profile_id, span, instruction.uuid)
            return ev.InstanceVerified(token)
        case do.DestroyComputeInstance():
            gpu.destroy_ci(instruction.gi_id, instruction.uuid)
            return ev.ComputeInstanceDestroyed(token)
        case do.DestroyGpuInstance():
            gpu.destroy_gi(instruction.gi_id, (instruction.start, instruction.size))
            return ev.GpuInstanceDestroyed(token)
        case do.ListHolders():
            return ev.HoldersListed(token, _holders(gpu, machine, instruction.uuid))
        case do.SetComputeMode():
            gpu.set_exclusive(exclusive=instruction.exclusive_process)
            return ev.ComputeModeSet(token)
        case do.ReadGpu():
            return ev.GpuRead(token, gpu.report())


def on_marked_gpu(gpu: Gpu, machine: Machine, instruction: do.GpuInstruction) -> ev.Event:
    """As `on_gpu`, with the marks of places that the agent keeps beside its tickets. Raises DeviceRefusedError."""
    begins = isinstance(instruction, do.CreateGpuInstance)
    begins = begins or (isinstance(instruction, do.SetComputeMode) and instruction.exclusive_process)
    place = _marked(instruction)
    if isinstance(instruction, do.CreateGpuInstance) and not gpu.lost:
        _refuse_taken(gpu, instruction)
    is_new = begins and place is not None and place not in machine.marks
    if begins and place is not None:
        machine.marks[place] = None
    try:
        done = on_gpu(gpu, machine, instruction)
    except DeviceRefusedError as refused:
        unclear = refused.kind in {"GpuLost", "Unknown"}
        creates = isinstance(instruction, do.CreateGpuInstance)
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
    if isinstance(instruction, do.ReadGpu):
        _forget_what_vanished(gpu, machine)
    return done


def _refuse_taken(gpu: Gpu, instruction: do.CreateGpuInstance) -> None:
    """An agent looks before it marks a place and creates there: what is there has no owner of its own."""
    span = (instruction.start, instruction.size)
    for instance in gpu.instances.values():
        if instance.span == span and instance.profile.profile_id == instruction.profile_id:
            raise DeviceRefusedError("InsufficientResources", f"{instance.gi_id} is at {span} already")


def found_marks(machine: Machine) -> tuple[ev.OwnershipMark, ...]:
    """The marks behind which something is, or may be, as an agent finds them when it starts."""
    for gpu in machine.gpus.values():
        _forget_what_vanished(gpu, machine)
    return marks_of(machine.marks)


def marks_of(places: Iterable[tuple[str, int, int]]) -> tuple[ev.OwnershipMark, ...]:
    return tuple(ev.OwnershipMark(GpuUuid(gpu), start, size) for gpu, start, size in sorted(places))


def _forget_what_vanished(gpu: Gpu, machine: Machine) -> None:
    spans = {instance.span for instance in gpu.instances.values()}
    for known in (machine.marks, machine.doubts):
        for of, start, size in tuple(known):
            if of == gpu.uuid and size and not gpu.lost and (start, size) not in spans:
                del known[of, start, size]


def _marked(instruction: do.GpuInstruction) -> tuple[str, int, int] | None:
    match instruction:
        case do.CreateGpuInstance() | do.DestroyGpuInstance():
            return instruction.gpu, instruction.start, instruction.size
        case do.SetComputeMode():
            return instruction.gpu, 0, 0
        case _:
            return None


def on_mps(machine: Machine, instruction: do.MpsInstruction, now: float, dice: Random, *, dying: bool) -> ev.Event:
    """Carry out an instruction about a daemon. `dying`: its agent dies over it, and it may be done by half."""
    token, mps = instruction.token, machine.mps
    try:
        match instruction:
            case do.StartMps():
                return _start(machine, instruction, now, by_half=dying and dice.random() < 0.5)
            case do.SetMpsLimits():
                mps.limit(instruction.home, instruction.limits.active_thread_percentage, instruction.limits.memory_mib)
                return ev.MpsLimitsSet(token)
            case do.WatchMps():
                return _look(machine, instruction)
            case do.TerminateMpsClients():
                _terminate(machine, instruction)
                return ev.MpsClientsTerminated(token)
            case do.SetQuotas():
                assert machine.time is not None, "there is no library of the time quota here"
                machine.time.serve(instruction.home, instruction.tenants)
                return ev.QuotasSet(token)
            case do.StopMps():
                mps.stop(instruction.home, machine.gpus)
                if machine.time is not None:
                    machine.time.end(instruction.home)
                return ev.MpsStopped(token)
    except DaemonRefusedError as refused:
        return ev.MpsRefused(token, str(refused))


def found_homes(machine: Machine) -> tuple[ev.FoundMpsHome, ...]:
    """The homes whose directories are on the disk, as an agent finds them when it starts."""
    found = []
    for directory in machine.mps.directories.values():
        running = machine.mps.alive(directory.home)
        found.append(
            ev.FoundMpsHome(
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
    """The home whose pipe directory a container was given; empty when it was given none."""
    inside = pipe_directory.removeprefix(f"{MPS_ROOT}/").removesuffix("/pipe")
    return inside if pipe_directory == f"{MPS_ROOT}/{inside}/pipe" else ""


def _holders(gpu: Gpu, machine: Machine, uuid: str) -> tuple[ev.Holder, ...]:
    tenants = [
        ev.Holder(process.pid, "" if process.owner == OPERATOR else machine.pod_of(process.owner), kind="compute")
        for process in gpu.holders(uuid)
    ]
    servers = [
        ev.Holder(daemon.pid, "", "nvidia-cuda-mps-server", "mps")
        for home, device in gpu.servers.items()
        if uuid in {gpu.uuid, device} and (daemon := machine.mps.alive(home)) is not None
    ]
    return (*tenants, *servers)


def _start(machine: Machine, start: do.StartMps, now: float, *, by_half: bool) -> ev.Event:
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
    return ev.MpsStarted(start.token, daemon.pid, daemon.started_at)


def _look(machine: Machine, watch: do.WatchMps) -> ev.MpsSeen:
    daemon = machine.mps.listed.get(watch.home)
    quota = machine.time.look(watch.home, machine) if machine.time is not None else None
    if daemon is None or not daemon.alive or not _is_meant(daemon, watch):
        return ev.MpsSeen(watch.token, alive=False, quota=quota)
    gpu = machine.gpus[daemon.directory.gpu]
    clients = tuple(ev.MpsClient(process.pid, machine.pod_of(process.owner)) for process in clients_of(gpu, watch.home))
    return ev.MpsSeen(watch.token, alive=True, fault=daemon.fault, clients=clients, quota=quota)


def _terminate(machine: Machine, terminate: do.TerminateMpsClients) -> None:
    daemon = machine.mps.alive(terminate.home)
    if daemon is None:
        raise DaemonRefusedError(f"no daemon of {terminate.home} answers")
    gpu = machine.gpus[daemon.directory.gpu]
    for owner in let_go(gpu, terminate.home, terminate.pids):
        machine.mps.on_terminated(daemon, owner)


def _is_meant(daemon: Daemon, watch: do.WatchMps) -> bool:
    return (daemon.pid, daemon.started_at) == (watch.pid, watch.started_at)
