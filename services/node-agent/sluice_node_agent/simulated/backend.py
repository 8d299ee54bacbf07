"""Simulated GPUs, as strict as real ones: they refuse what NVML refuses, with the same kinds of errors. The state is in
the hardware file. Device nodes are `/dev/null` under the names of real ones, so that CDI files have their form."""

import random
import threading
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from sluice.contracts.ids import GpuUuid
from sluice.contracts.messages import GpuReport
from sluice_node_agent.core.events import Holder
from sluice_node_agent.core.usage import DeviceUse
from sluice_node_agent.device import port
from sluice_node_agent.device.nvidia_nodes import CharDevice, CommonEdits
from sluice_node_agent.simulated import reports
from sluice_node_agent.simulated.hardware_file import Gpu, Hardware, HardwareFile, Instance

GI_IDS = range(15)
"""The ids of GPU instances (minor numbers of /dev/nvidia-caps leave room for gi0 to gi14)."""
_LOOK_AGAIN_S = 0.2
"""How often `troubled` reads the file: soon enough for a person who tries it, and no load with many nodes."""


class SimulatedBackend:
    """The GPUs of one simulated node (a `GpuBackend`)."""

    def __init__(self, file: HardwareFile, *, create_ms: int = 0, destroy_ms: int = 0, by_hand: bool = False) -> None:
        """Open the hardware. `by_hand`: an administrator may change fixed layouts. Raises HardwareFileError."""
        self._file = file
        self._by_hand = by_hand
        self._create_ms = create_ms
        self._destroy_ms = destroy_ms
        self._closed = threading.Event()
        hardware = file.read()
        self._boot_id = hardware.boot_id
        self._heard, self._told = hardware, reports.troubles_of(hardware)
        self._shown: dict[GpuUuid, tuple[Hardware, GpuReport]] = {}

    def boot_id(self) -> str:
        return self._boot_id

    def driver_version(self) -> str:
        return "simulated"

    def close(self) -> None:
        self._closed.set()

    def read(self) -> tuple[GpuReport, ...]:
        hardware = self._now()
        return tuple(reports.report(hardware, gpu) for gpu in hardware.gpus)

    def nameless(self) -> dict[int, str]:
        """None: simulated GPUs can always read their UUID."""
        return {}

    def read_gpu(self, gpu: GpuUuid) -> GpuReport:
        hardware, shown = self._now(), self._shown.get(gpu)
        if shown is None or shown[0] is not hardware:  # the file has changed
            shown = self._shown[gpu] = hardware, reports.report(hardware, reports.find_gpu(hardware, gpu))
        return shown[1]

    def instance_at(self, gpu: GpuUuid, profile_id: int, start: int, size: int) -> int | None:
        found = reports.answering(self._now(), gpu)
        if not found.mig:
            return None
        wanted = (reports.profile_of(reports.model_of(found), profile_id).name, start, size)
        at = (each for each in found.instances if (each.profile, each.start, each.size) == wanted)
        return next((each.gi_id for each in at), None)

    def processes(self, gpu: GpuUuid, uuid: str) -> tuple[Holder, ...]:
        """Processes on a device; those on a GPU's MIG devices are on the GPU too."""
        return reports.holders(reports.answering(self._now(), gpu), uuid)

    def uses(self, gpu: GpuUuid, wanted: Collection[str]) -> tuple[DeviceUse, ...]:
        """The use of devices; without MIG also per process."""
        return reports.uses(reports.answering(self._now(), gpu), wanted)

    def troubled(self, timeout_s: float) -> tuple[GpuUuid, ...]:
        until = time.monotonic() + timeout_s
        while True:
            hardware = self._now()
            now = self._told if hardware is self._heard else reports.troubles_of(hardware)
            new = tuple(gpu for gpu, trouble in now.items() if any(trouble) and trouble != self._told.get(gpu))
            self._heard, self._told = hardware, now
            left_s = until - time.monotonic()
            if new or left_s <= 0 or self._closed.wait(min(left_s, _LOOK_AGAIN_S)):
                return new

    def create_gpu_instance(self, gpu: GpuUuid, profile_id: int, start: int, size: int) -> int:
        with self._changing(gpu, self._create_ms) as (hardware, found):
            model = reports.model_of(found)
            if not found.mig:
                raise port.NotSupportedError(f"{gpu}: MIG is not enabled")
            self._refuse_fixed(found, "creating a GPU instance")
            if _strikes(hardware, "no_permission"):
                raise port.NoPermissionError(f"{gpu}: simulated lack of rights")
            if not found.instances and reports.is_used(found, gpu):
                raise port.InUseError(f"{gpu}: a process holds the whole GPU")
            refused = reports.why_not(model, found.instances, reports.profile_of(model, profile_id), start, size)
            if refused is not None:
                raise refused
            if _strikes(hardware, "insufficient"):
                raise port.InsufficientResourcesError(f"{gpu}: simulated lack of resources")
            taken = {instance.gi_id for instance in found.instances}
            gi_id = random.choice([number for number in GI_IDS if number not in taken])
            name = reports.profile_of(model, profile_id).name
            found.instances.append(Instance(gi_id=gi_id, profile=name, start=start, size=size))
            return gi_id

    def create_compute_instance(self, gpu: GpuUuid, gi_id: int) -> str:
        with self._changing(gpu, self._create_ms) as (hardware, found):
            self._refuse_fixed(found, "creating a compute instance")
            instance = reports.instance_of(found, gi_id)
            if instance.uuid:
                raise port.InsufficientResourcesError(f"{gpu}: GPU instance {gi_id} has a compute instance already")
            if _strikes(hardware, "ci_fails"):
                raise port.InsufficientResourcesError(f"{gpu}: simulated failure of the compute instance")
            instance.uuid = f"MIG-{uuid.uuid4()}"
            return instance.uuid

    def destroy_compute_instance(self, gpu: GpuUuid, gi_id: int, uuid: str) -> None:
        with self._changing(gpu, self._destroy_ms) as (hardware, found):
            self._refuse_fixed(found, "destroying a compute instance")
            instance = reports.instance_of(found, gi_id)
            if not instance.uuid:
                raise port.NotFoundError(f"{gpu}: GPU instance {gi_id} has no compute instance")
            if instance.uuid != uuid:
                raise port.DifferentError(f"{gpu}: GPU instance {gi_id} is {instance.uuid}, not {uuid}")
            if reports.is_used(found, uuid) or _strikes(hardware, "in_use_times"):
                raise port.InUseError(f"{uuid}: in use by another client")
            instance.uuid = ""
            found.processes = [process for process in found.processes if process.device != uuid]

    def destroy_gpu_instance(self, gpu: GpuUuid, gi_id: int, start: int, size: int) -> None:
        with self._changing(gpu, self._destroy_ms) as (_, found):
            self._refuse_fixed(found, "destroying a GPU instance")
            instance = reports.instance_of(found, gi_id)
            if (instance.start, instance.size) != (start, size):
                raise port.DifferentError(f"{gpu}: GPU instance {gi_id} is at {instance.start}:{instance.size}")
            if instance.uuid:
                raise port.InUseError(f"{gpu}: GPU instance {gi_id} has a compute instance")
            found.instances.remove(instance)

    def set_exclusive_process(self, gpu: GpuUuid, *, exclusive: bool) -> None:
        """Set the compute mode. Existing contexts stay, as on real GPUs."""
        with self._changing(gpu) as (_, found):
            if found.mig:
                raise port.NotSupportedError(f"{gpu}: the compute mode of a GPU in MIG mode cannot be set")
            found.exclusive_process = exclusive

    def _refuse_fixed(self, gpu: Gpu, doing: str) -> None:
        if gpu.fixed and not self._by_hand:
            raise port.NotSupportedError(port.refusal(gpu.uuid, doing))

    def _now(self) -> Hardware:
        hardware = self._file.read()
        self._check_boot(hardware)
        return hardware

    def _check_boot(self, hardware: Hardware) -> None:
        if hardware.boot_id != self._boot_id:
            raise port.RebootedError(f"{hardware.node} was rebooted")

    @contextmanager
    def _changing(self, gpu: GpuUuid, takes_ms: int = 0) -> Iterator[tuple[Hardware, Gpu]]:
        """The hardware and one GPU, after half of an instance's time. What was changed before a refusal stays."""
        if takes_ms > 0:
            time.sleep(takes_ms / 2 * max(0.0, self._file.read().faults.slow) / 1000)
        refused: port.DeviceError | None = None
        with self._file.changing() as hardware:
            self._check_boot(hardware)
            try:
                found = reports.answering(hardware, gpu)
                found.processes = reports.without_the_dead(found.processes)
                yield hardware, found
            except port.DeviceError as error:
                refused = error
        if refused is not None:
            raise refused


def _strikes(hardware: Hardware, fault: str) -> bool:
    left: int = getattr(hardware.faults, fault)
    if left > 0:
        setattr(hardware.faults, fault, left - 1)
    return left > 0


_MAJOR, _MINOR = 1, 3
"""/dev/null (Documentation/admin-guide/devices.txt of the kernel)."""
_CONTROL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_PER_GPU, _PER_INSTANCE, _FIRST = 135, 9, 3
"""Minor numbers of capabilities: kernel-open/nvidia/nv-caps.c of NVIDIA/open-gpu-kernel-modules."""
_RENDER = 128
"""The first minor number of render nodes."""


class SimulatedNodes:
    """The GPUs of a simulated node (a `DeviceNodes`)."""

    def __init__(self, file: HardwareFile) -> None:
        self._file = file

    def common(self) -> CommonEdits:
        """The control devices, and the variable that keeps NVIDIA's runtime from adding others."""
        nodes = [_harmless(f"/dev/{name}").node for name in _CONTROL]
        return CommonEdits({"env": ["NVIDIA_VISIBLE_DEVICES=void"], "deviceNodes": nodes})

    def of(self, gpu: GpuUuid, gi_id: int | None) -> tuple[CharDevice, ...]:
        index = reports.find_gpu(self._file.read(), gpu).index
        if gi_id is None:
            more: tuple[str, ...] = (f"/dev/dri/card{index}", f"/dev/dri/renderD{_RENDER + index}")
        else:
            capability = _FIRST + _PER_GPU * index + _PER_INSTANCE * gi_id
            more = tuple(f"/dev/nvidia-caps/nvidia-cap{each}" for each in (capability, capability + 1))
        return tuple(_harmless(path) for path in (f"/dev/nvidia{index}", *more))


def _harmless(path: str) -> CharDevice:
    return CharDevice(path, _MAJOR, _MINOR)
