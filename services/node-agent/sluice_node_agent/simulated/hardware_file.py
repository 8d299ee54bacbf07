"""The simulated hardware of one node as a file, so that it outlives every process as hardware does. Each change is one
locked read-modify-write. If `<file>.log` exists, each change appends a line to it: the time (unix ns) and all the
hardware."""

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.fleet_file.fleet_spec import FaultValue, GpuGroupSpec, NodeSpec
from sluice.contracts.gpu_reports import profile_reports
from sluice.contracts.ids import GpuUuid, NodeName
from sluice.contracts.messages import ProfileReport
from sluice.contracts.reasons import shorten
from sluice.mig.catalog import find_model
from sluice.mig.model import GpuModel
from sluice.runtime.errors import ServiceError
from sluice_node_agent.core.events import HolderKind
from sluice_node_agent.simulated import hardware_lines

_NAMESPACE = uuid.UUID("5b0a3a0e-8a0e-5d57-9d0c-4f2f1f6c7a10")
"""Derives GPU UUIDs: a GPU keeps its UUID, whatever happens to this file."""


class HardwareFileError(ServiceError):
    """The file does not match the fleet, or cannot be read."""


class Instance(msgspec.Struct, kw_only=True):
    """A GPU instance; `uuid` is empty without compute instance."""

    gi_id: int
    profile: str
    start: int
    size: int
    uuid: str = ""


class Process(msgspec.Struct, kw_only=True):
    """A process on a device: a MIG device's UUID or the GPU's."""

    pid: int
    owner: str
    device: str
    name: str = "python"
    kind: HolderKind = "compute"
    real: bool = False
    """`pid` is a real process of this machine: it is on the device while it lives."""
    started_at: int = 0
    """Of a real process, when known (/proc/<pid>/stat field 22): tells it from a later one with its pid."""
    memory_mib: int = 0
    busy_percent: float = 0.0
    """Share of the time in which one of its kernels runs."""


class SpelledOut(msgspec.Struct, kw_only=True):
    """A fleet file's definition of a model that is not in the catalog. MiB and SMs."""

    memory_mib: int
    multiprocessors: int
    memory_slices: int
    compute_slices: int
    profiles: tuple[ProfileReport, ...] = ()


class Gpu(msgspec.Struct, kw_only=True):
    """One GPU. `lost` is empty, or the reason. `linked` are the indexes of the GPUs that NVLink connects."""

    uuid: GpuUuid
    index: int
    model: str
    spelled_out: SpelledOut | None = None
    """Its model; None where that is the catalog's of this name."""
    product_name: str
    mig: bool
    switched: bool = False
    """Its MIG mode was changed from the fleet's."""
    numa_node: int | None = None
    linked: list[int] = []
    exclusive_process: bool = False
    fixed: bool = False
    """Its layout is an administrator's."""
    lost: str = ""
    instances: list[Instance] = []
    processes: list[Process] = []


class Faults(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Injected faults. Counts go down by one each time they strike."""

    in_use_times: int = 0
    """How many destructions are refused as in use."""
    insufficient: int = 0
    """How many creations are refused for lack of resources."""
    ci_fails: int = 0
    """How many compute instances cannot be created."""
    no_permission: int = 0
    """How many creations are refused for lack of permission."""
    gpu_lost: int = -1
    """The index of a GPU that does not answer; -1 for none."""
    xid: int = 0
    """The Xid error that the driver reported; 0 for none. Only critical ones make a GPU unhealthy."""
    xid_gpu: int = 0
    """The index of its GPU."""
    mig_pending: int = -1
    """The index of a GPU whose MIG mode changes at the next reboot; -1 for none."""
    slow: float = 1.0
    """Factor on the duration of device operations."""


class Hardware(msgspec.Struct, kw_only=True):
    """All hardware of one simulated node."""

    node: NodeName
    boot_id: str
    gpus: list[Gpu]
    faults: Faults
    declared_faults: dict[str, FaultValue] = {}


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Hardware).decode


class HardwareFile:
    """The file of one node."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._name = str(path)
        self._log = path.with_name(f"{path.name}.log")
        self._last: tuple[tuple[int, int, int], Hardware] | None = None
        """The file's state when it was read last, and what it held."""

    @property
    def exists(self) -> bool:
        return self._path.exists()

    def make(self, node: NodeSpec) -> None:
        """Create the fleet's hardware, unless it exists. Raises HardwareFileError for other GPUs, or a wrong fault."""
        wanted = _gpus_of(node)
        faults = faults_from(dict(node.faults), f"node {node.name}: faults")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with hardware_lines.locked(self._name):
            if not self._path.exists():
                made = Hardware(node=node.name, boot_id=_new_id(), gpus=wanted, faults=faults)
                made.declared_faults = dict(node.faults)
                self._write(_encode(made), how=hardware_lines.begin)
                return
            self._take_over_document()
            hardware = self._decoded(self._line())
            found = [(gpu.uuid, gpu.model, gpu.spelled_out, gpu.mig is not gpu.switched) for gpu in hardware.gpus]
            same = found == [(gpu.uuid, gpu.model, gpu.spelled_out, gpu.mig) for gpu in wanted]
            if hardware.node != node.name or not same:
                raise HardwareFileError(
                    f"{self._path} holds other GPUs than the fleet says node {node.name} has; "
                    "give the node another name, or remove the file while nothing runs"
                )
            moved = _take_over_facts(hardware.gpus, wanted)
            if moved or hardware.declared_faults != node.faults:
                if hardware.declared_faults != node.faults:
                    hardware.faults, hardware.declared_faults = faults, dict(node.faults)
                self._write(_encode(hardware))

    def read(self) -> Hardware:
        """The current hardware, not to be changed."""
        try:
            found = os.stat(self._name)  # noqa: PTH116 - a third of the time of `Path.stat`
        except OSError as error:
            raise HardwareFileError(f"{self._path} cannot be read: {error.strerror}") from error
        state = found.st_ino, found.st_size, found.st_mtime_ns
        if self._last is None or self._last[0] != state:
            self._last = state, self._decoded(self._line())
        return self._last[1]

    @contextmanager
    def changing(self) -> Iterator[Hardware]:
        """The hardware, to be changed: written when the block ends without an exception and changed something."""
        with hardware_lines.locked(self._name):
            before = self._line()
            hardware = self._decoded(before)
            yield hardware
            after = _encode(hardware)
            if after != before:  # another writer may format a line differently: then it is one more
                self._write(after)

    def reboot(self) -> str:
        """Instances and processes vanish, lost GPUs come back, a pending MIG mode takes effect; returns the boot id."""
        with self.changing() as hardware:
            hardware.boot_id = _new_id()
            for gpu in hardware.gpus:
                gpu.instances, gpu.processes, gpu.lost, gpu.exclusive_process = [], [], "", False
                if gpu.index == hardware.faults.mig_pending:
                    gpu.mig, gpu.switched = not gpu.mig, not gpu.switched
            hardware.faults.gpu_lost = hardware.faults.mig_pending = -1
            hardware.faults.xid = 0
            return hardware.boot_id

    def _line(self) -> bytes:
        try:
            return hardware_lines.last_line(self._name)
        except OSError as error:
            raise HardwareFileError(f"{self._path} cannot be read: {error.strerror}") from error

    def _decoded(self, data: bytes) -> Hardware:
        try:
            return _decode(data)
        except NOT_READABLE as error:
            raise HardwareFileError(f"{self._path} is no simulated hardware: {shorten(str(error), 300)}") from error

    def _write(self, data: bytes, how: Callable[[str, bytes], None] = hardware_lines.add_line) -> None:
        # Not synced: it outlives every process, and need not outlive this machine.
        how(self._name, data)
        if self._log.exists():  # after the change: a writer killed between the two leaves it out
            with self._log.open("ab") as log:
                log.write(b"%d %b\n" % (time.time_ns(), data))

    def _take_over_document(self) -> None:
        """Convert a file of an earlier version: one document on many lines."""
        data = self._path.read_bytes()
        if data.startswith(b"{\n"):
            hardware_lines.begin(self._name, _encode(self._decoded(data)))


def faults_from(values: dict[str, FaultValue], where: str) -> Faults:
    """Parse fault switches. Raises HardwareFileError with the error and the known ones."""
    try:
        # As they will be read from the file: JSON has no infinity, and an unreadable file would end the node.
        return msgspec.json.decode(_encode(msgspec.convert(values, Faults)), type=Faults)
    except (msgspec.ValidationError, OverflowError) as error:
        known = ", ".join(Faults.__struct_fields__)
        raise HardwareFileError(f"{where}: {error} (known: {known})") from error


def _new_id() -> str:
    return str(uuid.uuid4())


def _take_over_facts(gpus: list[Gpu], wanted: list[Gpu]) -> bool:
    changed = False
    for gpu, as_declared in zip(gpus, wanted, strict=True):
        declared = as_declared.numa_node, as_declared.linked, as_declared.fixed
        if (gpu.numa_node, gpu.linked, gpu.fixed) != declared:
            gpu.numa_node, gpu.linked, gpu.fixed = declared
            changed = True
    return changed


def _gpus_of(node: NodeSpec) -> list[Gpu]:
    gpus: list[Gpu] = []
    for kind in node.gpus:
        first = len(gpus)
        group_of = {number: group for group in kind.nvlink for number in group}
        for number in range(kind.count):
            index = first + number
            gpu = Gpu(
                uuid=GpuUuid(f"GPU-{uuid.uuid5(_NAMESPACE, f'{node.name}/{index}')}"),
                index=index,
                model=kind.model.key,
                spelled_out=_spelled_out(kind.model),
                product_name=kind.product_name,
                mig=kind.mig,
                numa_node=kind.numa[number] if kind.numa else None,
                linked=[first + peer for peer in group_of.get(number, ()) if peer != number],
                fixed=kind.layout is not None,
                instances=_made_by_hand(kind),
            )
            gpus.append(gpu)
    return gpus


def _spelled_out(model: GpuModel) -> SpelledOut | None:
    if find_model(model.key) == model:
        return None
    return SpelledOut(
        memory_mib=model.memory_mib,
        multiprocessors=model.multiprocessors,
        memory_slices=model.memory_slices,
        compute_slices=model.compute_slices,
        profiles=profile_reports(model),
    )


def _made_by_hand(kind: GpuGroupSpec) -> list[Instance]:
    return [
        Instance(gi_id=gi_id, profile=each.profile, start=each.start, size=each.size, uuid=f"MIG-{_new_id()}")
        for gi_id, each in enumerate(kind.layout or (), start=1)
    ]
