"""Reads simulated GPUs: reports, processes, errors; and what they refuse to create, by the driver's rules for every MIG
model (NVIDIA MIG user guide), independent of the allocator's placement code."""

from collections.abc import Collection, Iterable

import msgspec

from sluice.contracts.fleet_file.empty_snapshots import LINK_SCORE
from sluice.contracts.gpu_reports import model_of_facts, profile_reports
from sluice.contracts.ids import GpuUuid
from sluice.contracts.messages import GpuReport, InstanceReport
from sluice.mig.catalog import find_model
from sluice.mig.model import GpuModel, Placement, Profile
from sluice_node_agent.core.events import Holder
from sluice_node_agent.core.usage import DeviceUse, ProcessUse
from sluice_node_agent.device import port
from sluice_node_agent.device.gpu_health import HealthFacts, is_critical, why_unhealthy
from sluice_node_agent.device.processes import Processes
from sluice_node_agent.simulated.hardware_file import Gpu, Hardware, Instance, Process

_PROCESSES = Processes()
"""The processes of this machine, which a simulated node's real ones are among."""
_WITHOUT_GPM = {
    *("a100", "a30", "a10", "a10g", "a40", "rtx-a6000", "rtx-3090", "t4", "v100"),
    *("l4", "l20", "l40", "l40s", "rtx-4090", "rtx-6000-ada"),
}
"""Models before Hopper, and Ada, by their key or its first word (NVML API reference, "GPM Functions")."""


def find_gpu(hardware: Hardware, gpu: GpuUuid) -> Gpu:
    for found in hardware.gpus:
        if found.uuid == gpu:
            return found
    raise port.GpuLostError(f"{hardware.node} has no GPU {gpu}")


def answering(hardware: Hardware, gpu: GpuUuid) -> Gpu:
    found = find_gpu(hardware, gpu)
    why = _why_lost(hardware, found)
    if why:
        raise port.GpuLostError(f"{gpu}: {why}")
    return found


def instance_of(gpu: Gpu, gi_id: int) -> Instance:
    for instance in gpu.instances:
        if instance.gi_id == gi_id:
            return instance
    raise port.NotFoundError(f"{gpu.uuid} has no GPU instance {gi_id}")


def model_of(gpu: Gpu) -> GpuModel:
    """The model as the fleet file defines it, else the catalog's. Raises NotSupportedError."""
    own = gpu.spelled_out
    if own is not None:
        sizes = (own.memory_mib, own.multiprocessors, own.memory_slices, own.compute_slices)
        return model_of_facts(gpu.model, sizes, own.profiles)
    model = find_model(gpu.model)
    if model is None:
        raise port.NotSupportedError(f"{gpu.uuid}: {gpu.model} is no known model")
    return model


def troubles_of(hardware: Hardware) -> dict[GpuUuid, tuple[str, tuple[int, ...]]]:
    """What the driver reports by itself: how each GPU was lost, and its critical Xid errors. Equal without news."""
    return {gpu.uuid: (_why_lost(hardware, gpu), _xids(hardware, gpu)) for gpu in hardware.gpus}


def report(hardware: Hardware, gpu: Gpu) -> GpuReport:
    model = model_of(gpu)
    lost = _why_lost(hardware, gpu)
    message = lost or _why_unhealthy(hardware, gpu)
    instances = sorted(gpu.instances, key=lambda instance: (instance.start, instance.gi_id))
    peers = [other for other in hardware.gpus if other.index in gpu.linked]
    return GpuReport(
        uuid=gpu.uuid,
        index=gpu.index,
        model=gpu.product_name,
        memory_mib=model.memory_mib,
        multiprocessors=model.multiprocessors,
        mig_enabled=gpu.mig,
        memory_slices=model.memory_slices,
        compute_slices=model.compute_slices,
        profiles=profile_reports(model),
        instances=() if lost else msgspec.convert(instances, tuple[InstanceReport, ...], from_attributes=True),
        creatable={},
        healthy=not message,
        health_message=message,
        lost=bool(lost),
        numa_node=gpu.numa_node,
        links={peer.uuid: LINK_SCORE for peer in peers},
        fixed_layout=gpu.fixed,
    )


def holders(gpu: Gpu, device: str) -> tuple[Holder, ...]:
    return tuple(
        Holder(process.pid, process.owner, process.name, process.kind)
        for process in without_the_dead(gpu.processes)
        if device in {process.device, gpu.uuid}
    )


def uses(gpu: Gpu, wanted: Collection[str]) -> tuple[DeviceUse, ...]:
    """The use of devices, as NVML would report it: before Hopper not how busy a MIG device is."""
    there = {instance.uuid for instance in gpu.instances if instance.uuid} if gpu.mig else {str(gpu.uuid)}
    has_gpm = _WITHOUT_GPM.isdisjoint((gpu.model, gpu.model.partition("-")[0]))
    return tuple(_use(gpu, device, has_gpm=has_gpm) for device in wanted if device in there)


def _use(gpu: Gpu, device: str, *, has_gpm: bool) -> DeviceUse:
    on_it = [each for each in without_the_dead(gpu.processes) if each.device == device and each.kind != "file"]
    busy = min(100.0, sum(each.busy_percent for each in on_it))
    told = has_gpm or not gpu.mig
    return DeviceUse(
        uuid=device,
        memory_mib=sum(each.memory_mib for each in on_it),
        busy_percent=busy if told else None,
        sm_percent=busy if has_gpm else None,
        memory_busy_percent=busy if told else None,
        processes=tuple(
            ProcessUse(each.pid, each.owner, each.memory_mib, None if gpu.mig else each.busy_percent)
            for each in on_it
            if each.kind != "mps"
        ),
    )


def is_used(gpu: Gpu, device: str) -> bool:
    """Whether a process has a context on exactly this device. Those that only have its files open do not count."""
    return any(process.device == device and process.kind != "file" for process in without_the_dead(gpu.processes))


def refuse_second_context(gpu: Gpu, process: Process) -> None:
    """Raise InUseError where compute mode EXCLUSIVE_PROCESS lets no further context onto the GPU, but MPS's."""
    if not gpu.exclusive_process or process.device != gpu.uuid or process.kind == "file":
        return
    first = next((each for each in without_the_dead(gpu.processes) if each.kind != "file"), None)
    if first is not None and (first.kind != "mps" or process.kind == "mps"):
        raise port.InUseError(f"{gpu.uuid} is in compute mode EXCLUSIVE_PROCESS, and process {first.pid} has it")


def without_the_dead(processes: Iterable[Process]) -> list[Process]:
    """Those that still exist: simulated ones, and real ones that live."""
    return [process for process in processes if not process.real or _lives(process)]


def _lives(process: Process) -> bool:
    started_at = _PROCESSES.started_at(process.pid)
    return started_at != 0 and process.started_at in {0, started_at}


def _why_lost(hardware: Hardware, gpu: Gpu) -> str:
    if gpu.lost:
        return gpu.lost
    return "GPU is lost (simulated)" if hardware.faults.gpu_lost == gpu.index else ""


def _xids(hardware: Hardware, gpu: Gpu) -> tuple[int, ...]:
    faults = hardware.faults
    return (faults.xid,) if faults.xid and faults.xid_gpu == gpu.index and is_critical(faults.xid) else ()


def _why_unhealthy(hardware: Hardware, gpu: Gpu) -> str:
    facts = HealthFacts(mig_now=gpu.mig, mig_next=gpu.mig is not (hardware.faults.mig_pending == gpu.index))
    words = why_unhealthy(facts, _xids(hardware, gpu), gpu.uuid)
    return f"{words} (simulated)" if words else ""


def profile_of(model: GpuModel, profile_id: int) -> Profile:
    """The profile with this id (not NVML's enum, and not a place in a list). Raises InvalidArgumentError."""
    for profile in model.profiles:
        if profile.profile_id == profile_id:
            return profile
    raise port.InvalidArgumentError(f"{model.key} has no GPU instance profile {profile_id}")


def why_not(
    model: GpuModel, instances: Iterable[Instance], profile: Profile, start: int, size: int
) -> port.DeviceError | None:
    """Why no instance of `profile` can be created at this placement beside `instances`; None if it can."""
    if Placement(start, size) not in profile.placements:
        return port.InvalidArgumentError(f"{profile.name} cannot be placed at {start}:{size} on {model.key}")
    there = list(instances)
    for other in there:
        if start < other.start + other.size and other.start < start + size:
            taken = f"{other.profile} at {other.start}:{other.size}"
            return port.InsufficientResourcesError(f"{profile.name} at {start}:{size}: {taken} is in the way")
    placed = [found for other in there if (found := model.profile(other.profile)) is not None]
    if sum(other.name == profile.name for other in placed) >= profile.max_instances:
        return port.InsufficientResourcesError(
            f"there are {profile.max_instances} of {profile.name}, and no more can be"
        )
    if sum(other.compute_slices for other in placed) + profile.compute_slices > model.compute_slices:
        return port.InsufficientResourcesError(f"{profile.name}: no compute slices are left")
    for name in ("copy", "decode", "encode", "jpeg", "ofa"):
        used = sum(getattr(other.engines, name) for other in placed)
        if used + getattr(profile.engines, name) > getattr(model.engines, name):
            return port.InsufficientResourcesError(f"{profile.name}: no {name} engine is left")
    return None
