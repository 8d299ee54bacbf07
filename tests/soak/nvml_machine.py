"""The soak's second machine: our own NVML library (`tests/nvml`) under the real backend, its state in a file."""

import ctypes
import uuid
from contextlib import AbstractContextManager
from pathlib import Path

from factories.gpus.nvml import NvmlMachine, _ok
from nvml.build import build
from soak.machine import NODE, Found, FoundGpu, fleet

from sluice.contracts.fleet_file.fleet_spec import parse_fleet
from sluice_node_agent.device.nvml.backend import NvmlBackend
from sluice_node_agent.device.port import GpuBackend

EXCLUSIVE_PROCESS = 3
"""nvmlComputeMode_t."""


class BootedNvml(NvmlBackend):
    """The backend as it is, on a machine that can reboot without this kernel."""

    boot = ""

    def boot_id(self) -> str:
        return self.boot


class NvmlSoakMachine:
    """One node of the C library (a `soak.machine.Machine`)."""

    name = "NVML"

    def __init__(self, directory: Path, *, sliced: int, whole: int) -> None:
        """Build the library if it is not there yet, and the node. Raises NoCompilerError."""
        self._machine = NvmlMachine(build(directory / "nvml"), directory, state=directory / "state")
        node = parse_fleet(fleet(sliced=sliced, whole=whole), origin="soak").nodes[0]
        self._uuids = self._machine.add_fleet(node)
        self._mig = [index < sliced for index in range(len(self._uuids))]
        self._lost: list[int] = []
        self._loaded: AbstractContextManager[NvmlMachine] | None = None
        self._boot = str(uuid.uuid4())
        assert node.name == NODE

    def backend(self) -> GpuBackend:
        """NVML as the agent uses it; pynvml is given the library for good, for this process is the agent's."""
        self._loaded = self._machine.loaded()
        self._loaded.__enter__()
        gpus = BootedNvml(self._machine.processes)
        gpus.boot = self._boot
        return gpus

    def environment(self) -> dict[str, str]:
        """The stand-in of the MPS daemon knows nothing of this machine."""
        return {}

    def look(self) -> tuple[FoundGpu, ...]:
        said = self._machine.show()
        uuids = {(line[1], line[2]): line[4] for line in said if line[0] == "ci"}
        modes = {line[1]: int(line[2]) for line in said if line[0] == "mode"}
        found: dict[str, list[Found]] = {}
        for line in said:
            if line[0] == "gi":
                _, gpu, gi_id, profile, start, size = line
                device = uuids.get((gpu, gi_id), "")
                one = Found(self._uuids[int(gpu)], int(gi_id), profile, int(start), int(size), device)
                found.setdefault(gpu, []).append(one)
        return tuple(
            FoundGpu(
                uuid=device,
                mig=self._mig[index],
                exclusive_process=modes.get(str(index)) == EXCLUSIVE_PROCESS,
                instances=tuple(sorted(found.get(str(index), []), key=lambda one: (one.start, one.gi_id))),
            )
            for index, device in enumerate(self._uuids)
        )

    def fault(self, **switches: int) -> None:
        for name, value in switches.items():
            if name != "gpu_lost":
                self._machine.fault(name, value)
                continue
            for gpu in self._lost:
                self._machine.find(gpu)
            self._lost = [value] if value >= 0 else []
            for gpu in self._lost:
                self._machine._call("set_lost", gpu, 1)  # without the Xid: that would need a restart of the agent

    def put_foreign(self, gpu: int, profile: str, start: int, size: int) -> int:
        return self._machine.make_instance(gpu, profile, start)

    def take_foreign(self, gpu: int, gi_id: int) -> None:
        library = self._machine.library
        with self._machine._initialised():
            instance = ctypes.c_void_p()
            _ok(library.nvmlDeviceGetGpuInstanceById(self._machine._handle(gpu), gi_id, ctypes.byref(instance)))
            for line in self._machine.show():
                if line[0] == "ci" and (int(line[1]), int(line[2])) == (gpu, gi_id):
                    compute = ctypes.c_void_p()
                    find = library.nvmlGpuInstanceGetComputeInstanceById
                    _ok(find(instance, int(line[3]), ctypes.byref(compute)))
                    _ok(library.nvmlComputeInstanceDestroy(compute))
            _ok(library.nvmlGpuInstanceDestroy(instance))

    def start_process(self, device: str, owner: str) -> int:
        """On the machine and in its /proc."""
        return self._machine.add_process(device, owner=owner)

    def stop_process(self, pid: int) -> None:
        self._machine.remove_process(pid)

    def reboot(self) -> None:
        """All GPUs are reset, and the kernel is another."""
        self.fault(gpu_lost=-1)
        self._machine.reboot()
        self._boot = str(uuid.uuid4())
