"""
Simulated GPUs, as strict as real ones: what NVML would refuse is refused, with the same kinds of errors.

Ids of GPU instances cannot be derived from their placement, every compute instance gets a UUID never seen before, and
creating takes its time. State lives in the hardware file, not in this process.
"""

import random
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from sluice.contracts.hardware import profile_reports
from sluice.contracts.ids import GpuUuid
from sluice.contracts.messages import GpuReport, InstanceReport
from sluice.mig.catalog import find
from sluice.mig.model import GpuModel
from sluice_node_agent.core.events import Holder
from sluice_node_agent.device.geometry import profile_of, why_not
from sluice_node_agent.device.hardware_file import Gpu, Hardware, HardwareFile, Instance
from sluice_node_agent.device.port import (
    DeviceError,
    DifferentError,
    GpuLostError,
    InsufficientResourcesError,
    InUseError,
    NotFoundError,
    NotSupportedError,
    RebootedError,
)

GI_IDS = range(15)
"""The ids that a driver gives to GPU instances (minor numbers of /dev/nvidia-caps leave room for gi0 to gi14)."""


class SimulatedGpus:
    """The GPUs of one simulated node (a `GpuBackend`)."""

    def __init__(self, file: HardwareFile, *, create_ms: int = 0, destroy_ms: int = 0) -> None:
        """Open the hardware. Raises HardwareFileError."""
        self._file = file
        self._create_ms = create_ms
        self._destroy_ms = destroy_ms
        self._boot_id = file.read().boot_id

    def boot_id(self) -> str:
        """The boot in which this was opened."""
        return self._boot_id

    def driver_version(self) -> str:
        """Says that it is simulated."""
        return "simulated"

    # -- reading --------------------------------------------------------------------------------------------------

    def read(self) -> tuple[GpuReport, ...]:
        """All GPUs."""
        hardware = self._now()
        return tuple(_report(gpu, _why_lost(hardware, gpu)) for gpu in hardware.gpus)

    def read_gpu(self, gpu: GpuUuid) -> GpuReport:
        """One GPU."""
        hardware = self._now()
        found = _find(hardware, gpu)
        return _report(found, _why_lost(hardware, found))

    def instance(self, gpu: GpuUuid, gi_id: int) -> InstanceReport:
        """One GPU instance."""
        hardware = self._now()
        return _instance_report(_instance(_answering(hardware, gpu), gi_id))

    def processes(self, gpu: GpuUuid, uuid: str) -> tuple[Holder, ...]:
        """Processes on a device; those on any MIG device of a GPU are on the GPU too."""
        found = _answering(self._now(), gpu)
        return tuple(
            Holder(process.pid, process.owner, process.name)
            for process in found.processes
            if uuid in {process.device, found.uuid}
        )

    # -- changing -------------------------------------------------------------------------------------------------

    def create_gpu_instance(self, gpu: GpuUuid, profile_id: int, start: int, size: int) -> int:
        """Create a GPU instance at a placement."""
        self._take_time(self._create_ms / 2)
        with self._changing(gpu) as (hardware, found):
            model = _model(found)
            if not found.mig:
                raise NotSupportedError(f"{gpu}: MIG is not enabled")
            if not found.instances and any(process.device == gpu for process in found.processes):
                raise InUseError(f"{gpu}: a process holds the whole GPU")
            refusal = why_not(model, found.instances, profile_of(model, profile_id), start, size)
            if refusal is not None:
                raise refusal
            if _strikes(hardware, "insufficient"):
                raise InsufficientResourcesError(f"{gpu}: simulated lack of resources")
            taken = {instance.gi_id for instance in found.instances}
            gi_id = random.choice([number for number in GI_IDS if number not in taken])
            name = profile_of(model, profile_id).name
            found.instances.append(Instance(gi_id=gi_id, profile=name, start=start, size=size))
            return gi_id

    def create_compute_instance(self, gpu: GpuUuid, gi_id: int) -> str:
        """Create the compute instance of a GPU instance."""
        self._take_time(self._create_ms / 2)
        with self._changing(gpu) as (hardware, found):
            instance = _instance(found, gi_id)
            if instance.uuid:
                raise InsufficientResourcesError(f"{gpu}: GPU instance {gi_id} has a compute instance already")
            if _strikes(hardware, "ci_fails"):
                raise InsufficientResourcesError(f"{gpu}: simulated failure of the compute instance")
            instance.uuid = f"MIG-{uuid.uuid4()}"
            return instance.uuid

    def destroy_compute_instance(self, gpu: GpuUuid, gi_id: int, uuid: str) -> None:
        """Destroy the compute instance of a GPU instance."""
        self._take_time(self._destroy_ms / 2)
        with self._changing(gpu) as (hardware, found):
            instance = _instance(found, gi_id)
            if not instance.uuid:
                raise NotFoundError(f"{gpu}: GPU instance {gi_id} has no compute instance")
            if instance.uuid != uuid:
                raise DifferentError(f"{gpu}: GPU instance {gi_id} is {instance.uuid}, not {uuid}")
            if any(process.device == uuid for process in found.processes) or _strikes(hardware, "in_use_times"):
                raise InUseError(f"{uuid}: in use by another client")
            instance.uuid = ""

    def destroy_gpu_instance(self, gpu: GpuUuid, gi_id: int, start: int, size: int) -> None:
        """Destroy a GPU instance."""
        self._take_time(self._destroy_ms / 2)
        with self._changing(gpu) as (_, found):
            instance = _instance(found, gi_id)
            if (instance.start, instance.size) != (start, size):
                raise DifferentError(f"{gpu}: GPU instance {gi_id} is at {instance.start}:{instance.size}")
            if instance.uuid:
                raise InUseError(f"{gpu}: GPU instance {gi_id} has a compute instance")
            found.instances.remove(instance)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _now(self) -> Hardware:
        hardware = self._file.read()
        self._check_boot(hardware)
        return hardware

    def _check_boot(self, hardware: Hardware) -> None:
        if hardware.boot_id != self._boot_id:
            raise RebootedError(f"{hardware.node} was rebooted")

    @contextmanager
    def _changing(self, gpu: GpuUuid) -> Iterator[tuple[Hardware, Gpu]]:
        """One GPU to be changed. A refusal changes nothing but the faults that were used up for it."""
        refusal: DeviceError | None = None
        with self._file.changing() as hardware:
            self._check_boot(hardware)
            try:
                yield hardware, _answering(hardware, gpu)
            except DeviceError as error:
                refusal = error
        if refusal is not None:
            raise refusal

    def _take_time(self, duration_ms: float) -> None:
        slow = self._file.read().faults.slow
        if duration_ms * slow > 0:
            time.sleep(duration_ms * slow / 1000)


def _find(hardware: Hardware, gpu: GpuUuid) -> Gpu:
    for found in hardware.gpus:
        if found.uuid == gpu:
            return found
    raise GpuLostError(f"{hardware.node} has no GPU {gpu}")


def _why_lost(hardware: Hardware, gpu: Gpu) -> str:
    if gpu.lost:
        return gpu.lost
    return "GPU is lost (simulated)" if hardware.faults.gpu_lost == gpu.index else ""


def _answering(hardware: Hardware, gpu: GpuUuid) -> Gpu:
    found = _find(hardware, gpu)
    why = _why_lost(hardware, found)
    if why:
        raise GpuLostError(f"{gpu}: {why}")
    return found


def _instance(gpu: Gpu, gi_id: int) -> Instance:
    for instance in gpu.instances:
        if instance.gi_id == gi_id:
            return instance
    raise NotFoundError(f"{gpu.uuid} has no GPU instance {gi_id}")


def _strikes(hardware: Hardware, fault: str) -> bool:
    left: int = getattr(hardware.faults, fault)
    if left > 0:
        setattr(hardware.faults, fault, left - 1)
    return left > 0


def _model(gpu: Gpu) -> GpuModel:
    model = find(gpu.model)
    if model is None:
        raise NotSupportedError(f"{gpu.uuid}: {gpu.model} is no known model")
    return model


def _report(gpu: Gpu, lost: str) -> GpuReport:
    model = _model(gpu)
    instances = sorted(gpu.instances, key=lambda instance: (instance.start, instance.gi_id))
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
        instances=() if lost else tuple(_instance_report(instance) for instance in instances),
        creatable={},
        healthy=not lost,
        health_message=lost,
    )


def _instance_report(instance: Instance) -> InstanceReport:
    return InstanceReport(
        gi_id=instance.gi_id,
        profile=instance.profile,
        start=instance.start,
        size=instance.size,
        uuid=instance.uuid,
    )
