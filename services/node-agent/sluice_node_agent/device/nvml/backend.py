"""The GPUs of a real node, through NVML: a `GpuBackend`. A lost GPU never hides the others; nothing here decides,
retries or waits. Only the modules `device.nvml*` touch pynvml, and none of its errors leaves them."""

from collections.abc import Collection
from pathlib import Path

import pynvml  # type: ignore[import-untyped]

from sluice.contracts.ids import GpuUuid
from sluice.contracts.messages import GpuReport
from sluice.runtime import logs
from sluice_node_agent.core.events import Holder
from sluice_node_agent.core.usage import DeviceUse
from sluice_node_agent.device import port
from sluice_node_agent.device.gpu_health import RECOVERY_CHANGED, is_critical
from sluice_node_agent.device.nvidia_nodes import GpuFiles
from sluice_node_agent.device.nvml import attributes, holders
from sluice_node_agent.device.nvml import mig as nvml_mig
from sluice_node_agent.device.nvml.errors import no_backend, told
from sluice_node_agent.device.nvml.events import EventSet
from sluice_node_agent.device.nvml.inventory import GpuInventory
from sluice_node_agent.device.nvml.mig import Handle
from sluice_node_agent.device.nvml.utilization import UtilizationReader
from sluice_node_agent.device.processes import Processes

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class NvmlBackend:
    """The GPUs of this node in NVML (a `GpuBackend`)."""

    def __init__(
        self,
        processes: Processes,
        *,
        fixed: port.FixedLayoutSelector = port.FixedLayoutSelector(),  # noqa: B008  # frozen
    ) -> None:
        """The layout of `fixed` GPUs is never changed. Raises BackendError. A GPU that cannot read its UUID is left
        out, logged, and `nameless`."""
        self._processes = processes
        self._log = logs.get("nvml")
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise no_backend(error.value) from None
        self._events = EventSet()
        self._uses = UtilizationReader(processes)
        try:
            self._boot_id = BOOT_ID.read_text(encoding="ascii").strip()
            self._driver_version = str(pynvml.nvmlSystemGetDriverVersion())
            self._inventory = GpuInventory(self._events, fixed=fixed)
            self._on = self._inventory.handles.on
            self.read()
        except (pynvml.NVMLError, UnicodeDecodeError, port.DeviceError, OSError) as error:
            self.close()
            raise _as_backend_error(error) from None

    def boot_id(self) -> str:
        """The kernel's boot id at the start of this process, which a reboot ends."""
        return self._boot_id

    def driver_version(self) -> str:
        return self._driver_version

    def read(self) -> tuple[GpuReport, ...]:
        return self._inventory.read()

    def nameless(self) -> dict[int, str]:
        return self._inventory.nameless()

    def read_gpu(self, gpu: GpuUuid) -> GpuReport:
        return self._inventory.read_gpu(gpu)

    def instance_at(self, gpu: GpuUuid, profile_id: int, start: int, size: int) -> int | None:
        doing = f"looking for a GPU instance of profile {profile_id} at {start}:{size}"
        return self._on(gpu, doing, lambda device: nvml_mig.instance_at(device, profile_id, start, size))

    def processes(self, gpu: GpuUuid, uuid: str) -> tuple[Holder, ...]:
        """Processes with a context on a device, or its files open; on a whole GPU also those on its MIG devices."""
        return self._on(gpu, f"listing the processes of {uuid}", lambda device: self._holders(gpu, device, uuid))

    def uses(self, gpu: GpuUuid, wanted: Collection[str]) -> tuple[DeviceUse, ...]:
        return self._on(gpu, "reading its use", lambda device: self._uses.read(gpu, device, wanted))

    def files_of(self, gpu: GpuUuid) -> GpuFiles:
        return self._on(gpu, "finding its device files", attributes.files)

    def create_gpu_instance(self, gpu: GpuUuid, profile_id: int, start: int, size: int) -> int:
        """Create a GPU instance at a placement. Refused while MIG mode waits for a reset."""

        def create(device: Handle) -> int:
            mode = nvml_mig.mode(device)
            if not mode.now or not mode.after_reset:
                words = "MIG mode is off" if not mode.now else "MIG mode will be off after the next reset"
                raise port.NotSupportedError(f"{gpu}: {words}")
            self._refuse_fixed(gpu, "creating a GPU instance")
            return nvml_mig.create_gpu_instance(
                device, self._inventory.profiles_of(gpu, device), profile_id, start, size
            )

        return self._on(gpu, f"creating a GPU instance of profile {profile_id} at {start}:{size}", create)

    def create_compute_instance(self, gpu: GpuUuid, gi_id: int) -> str:
        def create(device: Handle) -> str:
            self._refuse_fixed(gpu, "creating a compute instance")
            return nvml_mig.create_compute_instance(device, gi_id, self._inventory.profiles_of(gpu, device))

        return self._on(gpu, f"creating the compute instance of GPU instance {gi_id}", create)

    def destroy_compute_instance(self, gpu: GpuUuid, gi_id: int, uuid: str) -> None:
        def destroy(device: Handle) -> None:
            self._refuse_fixed(gpu, "destroying a compute instance")
            parent = nvml_mig.gpu_instance(device, gi_id)
            there = nvml_mig.compute_instances(device, parent, gi_id)
            if not there:
                raise port.NotFoundError(f"{gpu}: GPU instance {gi_id} has no compute instance")
            # Another program may have created more than one there: all must be the expected one.
            others = [one.uuid for one in there if one.uuid and one.uuid != uuid]
            if not others and not all(one.uuid for one in there):  # it may be the expected one, in use
                raise port.DeviceError(
                    f"{gpu}: GPU instance {gi_id} is a device that does not tell its UUID, perhaps {uuid}"
                )
            if others:
                raise port.DifferentError(f"{gpu}: GPU instance {gi_id} is {', '.join(others)}, not {uuid}")
            pynvml.nvmlComputeInstanceDestroy(there[0].handle)

        self._on(gpu, f"destroying the compute instance of GPU instance {gi_id} ({uuid})", destroy)

    def destroy_gpu_instance(self, gpu: GpuUuid, gi_id: int, start: int, size: int) -> None:
        def destroy(device: Handle) -> None:
            self._refuse_fixed(gpu, "destroying a GPU instance")
            found = nvml_mig.gpu_instance(device, gi_id)
            span = pynvml.nvmlGpuInstanceGetInfo(found).placement
            if (span.start, span.size) != (start, size):
                raise port.DifferentError(
                    f"{gpu}: GPU instance {gi_id} is at {span.start}:{span.size}, not {start}:{size}"
                )
            pynvml.nvmlGpuInstanceDestroy(found)

        self._on(gpu, f"destroying GPU instance {gi_id}", destroy)

    def set_exclusive_process(self, gpu: GpuUuid, *, exclusive: bool) -> None:
        """Set the compute mode, and read it back: a driver that reports success without effect is an error."""
        wanted = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS if exclusive else pynvml.NVML_COMPUTEMODE_DEFAULT
        name = "EXCLUSIVE_PROCESS" if exclusive else "DEFAULT"

        def change(device: Handle) -> None:
            if nvml_mig.mode(device).now:
                raise port.NotSupportedError(f"{gpu}: a GPU in MIG mode has no compute mode {name}")
            pynvml.nvmlDeviceSetComputeMode(device, wanted)
            if (found := pynvml.nvmlDeviceGetComputeMode(device)) != wanted:
                raise port.DeviceError(f"{gpu}: compute mode {name} was set, but {found} was read back")

        self._on(gpu, f"setting compute mode {name}", change)

    def troubled(self, timeout_s: float) -> tuple[GpuUuid, ...]:
        """Wait for the driver's events; returns the GPUs to read, and those that can read their UUID by now. A critical
        Xid makes its GPU unhealthy until a reset or the end of this process."""
        handles = self._inventory.handles.all()
        found: dict[GpuUuid, None] = {}
        for trouble in self._events.wait(handles, timeout_s):
            if trouble.xid or trouble.gpu is None:  # else it may be an instance of our own
                self._log.warning("the driver reported an error", gpu=trouble.gpu, xid=trouble.xid)
            if trouble.gpu is None:
                found.update(dict.fromkeys(handles))  # the readings find the GPU
            elif trouble.gpu in handles:
                critical = trouble.xid != 0 and is_critical(trouble.xid)
                if critical:
                    self._inventory.xids.add(trouble.gpu, trouble.xid)
                if critical or trouble.xid in {0, RECOVERY_CHANGED}:
                    found[trouble.gpu] = None
        return tuple(found | dict.fromkeys(self._inventory.named_by_now()))

    def close(self) -> None:
        self._events.close()
        self._uses.close()
        with told("letting go of the driver"):
            pynvml.nvmlShutdown()

    def _refuse_fixed(self, gpu: GpuUuid, doing: str) -> None:
        if self._inventory.is_fixed(gpu):
            raise port.NotSupportedError(port.refusal(gpu, doing))

    def _holders(self, gpu: GpuUuid, device: Handle, uuid: str) -> tuple[Holder, ...]:
        if uuid == gpu:
            files = holders.whole_gpu_files(device)
            return holders.holders(holders.using(device), files, self._processes)
        mig = nvml_mig.mig_device(device, uuid)
        if mig is None:
            return ()
        files = holders.mig_files(device, mig.gi_id, mig.ci_id)
        return holders.holders(holders.using(mig.handle, is_instance=True), files, self._processes)


def _as_backend_error(error: Exception) -> port.BackendError:
    if isinstance(error, pynvml.NVMLError):
        return no_backend(error.value)
    if isinstance(error, UnicodeDecodeError):
        return port.BackendError(
            "the NVIDIA driver's version is not valid text: check nvidia-smi on this node, and reinstall the driver"
        )
    if isinstance(error, OSError):
        return port.BackendError(f"the node's boot id cannot be read: {error}")
    return port.BackendError(str(error))
