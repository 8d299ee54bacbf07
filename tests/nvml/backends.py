"""Simulated devices and NVML on our library behind one interface: processes, faults, other programs, reboots."""

import itertools
from abc import ABC, abstractmethod
from pathlib import Path

from factories.gpus.nvml import NvmlMachine
from nvml.build import Built

from sluice.contracts.fleet_file.fleet_spec import NodeSpec, parse_fleet
from sluice_node_agent.device.port import FixedLayoutSelector, GpuBackend
from sluice_node_agent.simulated.backend import SimulatedBackend
from sluice_node_agent.simulated.hardware_file import HardwareFile, Process

XID = 95
"""Uncontained memory error: the GPU still answers, and must get no new slices."""


def fleet(gpus: str) -> NodeSpec:
    """One node with these GPUs, as a fleet file says them."""
    return parse_fleet(f'[[node]]\nname = "n1"\ngpus = [{gpus}]\n', origin="test").nodes[0]


class DeviceRig(ABC):
    """The GPUs of one node, and a backend on them."""

    kind: str
    backend: GpuBackend

    def uuids(self) -> list[str]:
        return [report.uuid for report in self.backend.read()]

    def ids(self, gpu: int = 0) -> dict[str, int]:
        """Profile ids by name, as the GPU reports them."""
        return {profile.name: profile.profile_id for profile in self.backend.read()[gpu].profiles}

    def make(self, profile: str, start: int, *, gpu: int = 0, compute: bool = True) -> tuple[int, str]:
        """An instance through the backend: its id and UUID."""
        report = self.backend.read()[gpu]
        row = next(row for row in report.profiles if row.name == profile)
        gi_id = self.backend.create_gpu_instance(report.uuid, row.profile_id, start, row.placements[0].size)
        return gi_id, self.backend.create_compute_instance(report.uuid, gi_id) if compute else ""

    def spans(self, gpu: int = 0) -> list[tuple[str, int, int]]:
        """What is on a GPU: profile, start, size."""
        return [(each.profile, each.start, each.size) for each in self.backend.read()[gpu].instances]

    @abstractmethod
    def reopen(self) -> None:
        """The agent's process ends and another begins."""

    @abstractmethod
    def reboot(self) -> None:
        """The node reboots, and an agent begins."""

    @abstractmethod
    def start_process(self, device: str, *, owner: str = "", kind: str = "compute", pid: int | None = None) -> int:
        """A process on a device; its pid. With `pid` a real one."""

    @abstractmethod
    def use(self, pid: int, *, memory_mib: int, busy_percent: int) -> None:
        """What a process holds of its device, and how much of the time it computes there on all SMs."""

    @abstractmethod
    def stop_process(self, pid: int) -> None: ...

    @abstractmethod
    def foreign(self, profile: str, start: int, *, gpu: int = 0, compute: bool = True) -> int:
        """An instance by another hand; its id."""

    @abstractmethod
    def fault(self, name: str, times: int) -> None:
        """in_use_times, insufficient, ci_fails, no_permission: so many calls are refused."""

    @abstractmethod
    def lose(self, gpu: int) -> None: ...

    @abstractmethod
    def find(self, gpu: int) -> None: ...

    @abstractmethod
    def xid(self, gpu: int, number: int = XID) -> None:
        """The driver reports an Xid error of a GPU."""

    @abstractmethod
    def pend_mig(self, gpu: int) -> None:
        """The GPU's MIG mode is to change at its next reset."""

    @abstractmethod
    def slow(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class SimulatedRig(DeviceRig):
    """Simulated devices on a hardware file."""

    kind = "simulated"

    def __init__(self, node: NodeSpec, directory: Path) -> None:
        self.file = HardwareFile(directory / "n1.json")
        self.file.make(node)
        self.backend = SimulatedBackend(self.file)
        self._pids = itertools.count(5_000_000)

    def reopen(self) -> None:
        self.backend.close()
        self.backend = SimulatedBackend(HardwareFile(self.file._path))

    def reboot(self) -> None:
        self.file.reboot()
        self.reopen()

    def start_process(self, device: str, *, owner: str = "", kind: str = "compute", pid: int | None = None) -> int:
        number = next(self._pids) if pid is None else pid
        with self.file.changing() as hardware:
            gpu = next(g for g in hardware.gpus if device in {g.uuid, *(each.uuid for each in g.instances)})
            name = "nvidia-cuda-mps-server" if kind == "mps" else "python"
            new = Process(pid=number, owner=owner, device=device, name=name, kind=kind, real=pid is not None)
            gpu.processes.append(new)
        return number

    def use(self, pid: int, *, memory_mib: int, busy_percent: int) -> None:
        with self.file.changing() as hardware:
            (found,) = (process for gpu in hardware.gpus for process in gpu.processes if process.pid == pid)
            found.memory_mib, found.busy_percent = memory_mib, busy_percent

    def stop_process(self, pid: int) -> None:
        with self.file.changing() as hardware:
            for gpu in hardware.gpus:
                gpu.processes = [process for process in gpu.processes if process.pid != pid]

    def foreign(self, profile: str, start: int, *, gpu: int = 0, compute: bool = True) -> int:
        """By another backend on the same file."""
        backend, self.backend = self.backend, SimulatedBackend(self.file, by_hand=True)
        try:
            return self.make(profile, start, gpu=gpu, compute=compute)[0]
        finally:
            self.backend = backend

    def fault(self, name: str, times: int) -> None:
        with self.file.changing() as hardware:
            setattr(hardware.faults, name, times)

    def lose(self, gpu: int) -> None:
        self.fault("gpu_lost", gpu)

    def find(self, gpu: int) -> None:
        self.fault("gpu_lost", -1)

    def xid(self, gpu: int, number: int = XID) -> None:
        with self.file.changing() as hardware:
            hardware.faults.xid, hardware.faults.xid_gpu = number, gpu

    def pend_mig(self, gpu: int) -> None:
        self.fault("mig_pending", gpu)

    def slow(self) -> None:
        self.backend.close()
        self.backend = SimulatedBackend(self.file, create_ms=100, destroy_ms=100)

    def close(self) -> None:
        self.backend.close()


class NvmlRig(DeviceRig):
    """NVML, loaded into this process."""

    kind = "nvml"

    def __init__(self, node: NodeSpec, directory: Path, built: Built) -> None:
        from sluice_node_agent.device.nvml.backend import NvmlBackend  # noqa: PLC0415 - needs pynvml, which is optional

        self._open = NvmlBackend
        self.machine = NvmlMachine(built, directory)
        self.machine.add_fleet(node)
        fixed = [kind.layout is not None for kind in node.gpus for _ in range(kind.count)]
        self._fixed = FixedLayoutSelector(indices=frozenset(index for index, is_fixed in enumerate(fixed) if is_fixed))
        self._loaded = self.machine.loaded()
        self._loaded.__enter__()
        self.backend = NvmlBackend(self.machine.processes, fixed=self._fixed)

    def reopen(self) -> None:
        self.backend.close()
        self.backend = self._open(self.machine.processes, fixed=self._fixed)

    def reboot(self) -> None:
        """All GPUs are reset, between two runs of an agent."""
        self.backend.close()
        self.machine.reboot()
        self.backend = self._open(self.machine.processes, fixed=self._fixed)

    def start_process(self, device: str, *, owner: str = "", kind: str = "compute", pid: int | None = None) -> int:
        """On the machine and in its /proc."""
        name = "nvidia-cuda-mps-server" if kind == "mps" else "python"
        if kind == "file":
            index = self.uuids().index(device)
            return self.machine.add_file_holder(f"/dev/nvidia{index}", owner=owner, name=name)
        return self.machine.add_process(device, owner=owner, name=name, kind=kind, pid=pid)

    def use(self, pid: int, *, memory_mib: int, busy_percent: int) -> None:
        self.machine.use(pid, memory_mib=memory_mib, busy_percent=busy_percent)

    def stop_process(self, pid: int) -> None:
        self.machine.remove_process(pid)

    def foreign(self, profile: str, start: int, *, gpu: int = 0, compute: bool = True) -> int:
        return self.machine.make_instance(gpu, profile, start, compute=compute)

    def fault(self, name: str, times: int) -> None:
        self.machine.fault(name, times)

    def lose(self, gpu: int) -> None:
        self.machine.lose(gpu)

    def find(self, gpu: int) -> None:
        self.machine.find(gpu)

    def xid(self, gpu: int, number: int = XID) -> None:
        self.machine.xid(gpu, number)

    def pend_mig(self, gpu: int) -> None:
        on = self.backend.read()[gpu].mig_enabled
        self.machine.set_mig(gpu, current=on, pending=not on)

    def slow(self) -> None:
        self.machine.fault("slow_ms", 50)

    def close(self) -> None:
        """Leave NVML, and pynvml as it was."""
        try:
            self.backend.close()
        finally:
            self._loaded.__exit__(None, None, None)
