"""The machine below the agent: faults, foreign instances, tenants, reboots; `look` reads it without the backend."""

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sluice.contracts.fleet_file.fleet_spec import parse_fleet
from sluice_node_agent.device.port import GpuBackend
from sluice_node_agent.simulated.backend import SimulatedBackend
from sluice_node_agent.simulated.hardware_file import HardwareFile, Instance, Process

NODE = "n1"
FIRST_PID = 5_000_000
"""Above the kernel's limit (PID_MAX_LIMIT, 4,194,304): never a real process."""


def fleet(*, sliced: int, whole: int) -> str:
    """One node with so many A100-40GB in MIG mode, and so many without."""
    kinds = [f'{{ model = "a100-40gb", count = {sliced}, mig = true }}'] if sliced else []
    kinds += [f'{{ model = "a100-40gb", count = {whole}, mig = false }}'] if whole else []
    return f'[[node]]\nname = "{NODE}"\ngpus = [{", ".join(kinds)}]\n'


@dataclass(frozen=True, slots=True)
class Found:
    """One GPU instance that is there."""

    gpu: str
    gi_id: int
    profile: str
    start: int
    size: int
    uuid: str


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """One GPU that is there."""

    uuid: str
    mig: bool
    exclusive_process: bool
    instances: tuple[Found, ...]


class Machine(Protocol):
    """One node's GPUs, from outside."""

    name: str

    def backend(self) -> GpuBackend:
        """What the agent shall use; called in the agent's process."""

    def environment(self) -> dict[str, str]:
        """For MPS daemons: which machine they are on."""

    def look(self) -> tuple[FoundGpu, ...]: ...

    def fault(self, **switches: int) -> None:
        """Set fault switches (`in_use_times`, `insufficient`, `ci_fails`, `gpu_lost`: -1 for none)."""

    def put_foreign(self, gpu: int, profile: str, start: int, size: int) -> int:
        """An operator makes a GPU instance by hand. Returns its id."""

    def take_foreign(self, gpu: int, gi_id: int) -> None: ...

    def start_process(self, device: str, owner: str) -> int:
        """A process of a pod is on a device; its pid is that of no real process."""

    def stop_process(self, pid: int) -> None: ...

    def reboot(self) -> None:
        """The node reboots. The caller has killed all processes."""


class SimulatedMachine:
    """The hardware file of `sluice_node_agent.simulated.backend`."""

    name = "simulated"

    def __init__(self, path: Path, *, sliced: int, whole: int) -> None:
        """Make a node with so many GPUs in MIG mode and without."""
        self._path = path
        self._pids = itertools.count(FIRST_PID)
        self._file = HardwareFile(path)
        self._file.make(parse_fleet(fleet(sliced=sliced, whole=whole), origin="soak").nodes[0])

    def backend(self) -> GpuBackend:
        return SimulatedBackend(self._file)

    def environment(self) -> dict[str, str]:
        """The stand-in of the MPS daemon enters its processes in the file."""
        return {"SLUICE_SIMULATED_HARDWARE": str(self._path)}

    def look(self) -> tuple[FoundGpu, ...]:
        return tuple(
            FoundGpu(
                uuid=gpu["uuid"],
                mig=gpu["mig"],
                exclusive_process=bool(gpu.get("exclusive_process", False)),
                instances=tuple(
                    Found(gpu["uuid"], i["gi_id"], i["profile"], i["start"], i["size"], i.get("uuid", ""))
                    for i in sorted(gpu["instances"], key=lambda i: (i["start"], i["gi_id"]))
                ),
            )
            for gpu in self._read()["gpus"]
        )

    def fault(self, **switches: int) -> None:
        with self._file.changing() as hardware:
            for name, value in switches.items():
                setattr(hardware.faults, name, value)

    def put_foreign(self, gpu: int, profile: str, start: int, size: int) -> int:
        """An instance with a compute instance, of an id that is free."""
        with self._file.changing() as hardware:
            instances = hardware.gpus[gpu].instances
            gi_id = max((instance.gi_id for instance in instances), default=6) + 1
            uuid = f"MIG-foreign-{gpu}-{start}"
            instances.append(Instance(gi_id=gi_id, profile=profile, start=start, size=size, uuid=uuid))
            return gi_id

    def take_foreign(self, gpu: int, gi_id: int) -> None:
        with self._file.changing() as hardware:
            instances = hardware.gpus[gpu].instances
            instances[:] = [instance for instance in instances if instance.gi_id != gi_id]

    def start_process(self, device: str, owner: str) -> int:
        pid = next(self._pids)
        with self._file.changing() as hardware:
            for gpu in hardware.gpus:
                if device in {gpu.uuid, *(instance.uuid for instance in gpu.instances)}:
                    gpu.processes.append(Process(pid=pid, owner=owner, device=device))
                    return pid
        raise LookupError(f"there is no device {device}")

    def stop_process(self, pid: int) -> None:
        with self._file.changing() as hardware:
            for gpu in hardware.gpus:
                gpu.processes[:] = [process for process in gpu.processes if process.pid != pid]

    def reboot(self) -> None:
        """Instances vanish, the boot id is another."""
        self._file.reboot()

    def _read(self) -> Any:
        """The last whole line: after a kill half of one may follow."""
        return json.loads(self._path.read_bytes().split(b"\n")[-2])
