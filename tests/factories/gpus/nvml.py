"""
A machine with NVIDIA GPUs for tests: our own NVML library (`tests/nvml`), what is on it, and what goes wrong with it.

Held by a state file, it outlives the process that works on it and is one machine for all that name the file; without a
file it ends with the test. Its processes have entries in a made-up /proc, so that they have names and owners.
"""

import ctypes
import itertools
import os
import shutil
import tomllib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml
from nvml.build import Built
from nvml.tables import CATALOG

from sluice.contracts.fleet_file.fleet_spec import NodeSpec
from sluice_node_agent.device.processes import Processes

OK, IN_USE = 0, 19
ALWAYS = 0xFFFFFFFF
"""As a number of times: every time."""
XID, DOUBLE_BIT_ECC = 0x8, 0x2
_NAMESPACE = uuid.UUID("6f6c1d8e-33f4-5d0a-a2b4-1f3f1d1c9e55")
_KINDS = {"compute": 0, "mps": 0, "client": 1, "graphics": 2}
_SHOWN_MAX = 1 << 18
_MODELS = {model["key"]: model for model in tomllib.loads(CATALOG.read_text(encoding="utf-8"))["model"]}


def has_a_driver() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


class NvmlMachine:
    """One machine. GPUs are named by index, devices by UUID."""

    def __init__(self, built: Built, directory: Path, *, state: Path | None = None) -> None:
        """Open the machine of the `state` file, or an empty one. `directory` is for its /proc."""
        self.built = built
        self.state = state
        self.proc = directory / "proc"
        self.proc.mkdir(parents=True, exist_ok=True)
        self._pids = itertools.count(5_000_000)  # above the kernel's limit (PID_MAX_LIMIT): never a process of ours
        self.library = ctypes.CDLL(str(built.in_process))
        self._call("open", str(state).encode() if state else None)
        if state is None:
            self._call("clear")

    @property
    def processes(self) -> Processes:
        return Processes(self.proc)

    def environment(self) -> dict[str, str]:
        """With which a child process finds this machine's library and state."""
        assert self.state is not None, "a machine without a state file cannot be shared"
        return {"LD_LIBRARY_PATH": str(self.built.for_children.parent), "NVML_FOR_TESTS_STATE": str(self.state)}

    @contextmanager
    def loaded(self) -> Iterator["NvmlMachine"]:
        """Have pynvml work on this machine, and leave no trace of it in pynvml afterwards."""
        _hook(self.library)
        try:
            yield self
        finally:
            _hook(None)

    # -- what there is --------------------------------------------------------------------------------------------

    def add_fleet(self, node: NodeSpec) -> list[str]:
        """The GPUs of a node of a fleet file; their UUIDs. One link between those of an `nvlink` group."""
        uuids: list[str] = []
        for kind in node.gpus:
            first = len(uuids)
            for number in range(kind.count):
                numa = kind.numa[number] if kind.numa else None
                name = f"{node.name}/{first + number}"
                uuids.append(self.add_gpu(kind.model.key, mig=kind.mig, numa=numa, name=kind.product_name, seed=name))
                for instance in kind.layout or ():
                    self.make_instance(first + number, instance.profile, instance.start)
            for group in kind.nvlink:
                for one, other in itertools.combinations(group, 2):
                    self.link(first + one, first + other)
        return uuids

    def add_gpu(self, model: str, *, mig: bool = True, numa: int | None = None, name: str = "", seed: str = "") -> str:
        """A GPU of a model of the catalog (its key); its UUID."""
        made = f"GPU-{uuid.uuid5(_NAMESPACE, seed) if seed else uuid.uuid4()}"
        known = _MODELS[model]
        product = name or known["product_names"][0]
        if not known["profiles"]:
            sizes = known["memory_mib"], known["multiprocessors"], -1 if numa is None else numa
            self._call("add_plain_gpu", made.encode(), product.encode(), *sizes)
            return made
        self._call("add_gpu", model.encode(), made.encode(), product.encode(), int(mig), -1 if numa is None else numa)
        return made

    def add_plain_gpu(self, name: str, *, memory_mib: int, multiprocessors: int) -> str:
        """A GPU without MIG that is in no catalog; its UUID."""
        made = f"GPU-{uuid.uuid4()}"
        self._call("add_plain_gpu", made.encode(), name.encode(), memory_mib, multiprocessors, -1)
        return made

    def link(self, one: int, other: int, count: int = 1) -> None:
        self._call("link", one, other, count)

    def link_to_switch(self, gpu: int, count: int) -> None:
        self._call("link_switch", gpu, count)

    def make_instance(self, gpu: int, profile: str, start: int, *, compute: bool = True) -> int:
        """An instance by a foreign hand, as with nvidia-smi; the id of its GPU instance."""
        with self._initialised():
            model = self._model_of(gpu)
            row = next(row for row in model["profiles"] if row["name"] == profile)
            span = pynvml.c_nvmlGpuInstancePlacement_t(start, row["size"])
            instance = ctypes.c_void_p()
            create = self.library.nvmlDeviceCreateGpuInstanceWithPlacement
            _ok(create(self._handle(gpu), row["profile_id"], ctypes.byref(span), ctypes.byref(instance)))
            info = pynvml.c_nvmlGpuInstanceInfo_t()
            _ok(self.library.nvmlGpuInstanceGetInfo(instance, ctypes.byref(info)))
            if compute:
                self._fill(instance)
            return int(info.id)

    def make_compute_instance(self, gpu: int, gi_id: int, profile: int) -> None:
        """A further compute instance by a foreign hand; `profile` is NVML's number of it."""
        with self._initialised():
            instance, compute = ctypes.c_void_p(), ctypes.c_void_p()
            _ok(self.library.nvmlDeviceGetGpuInstanceById(self._handle(gpu), gi_id, ctypes.byref(instance)))
            _ok(self.library.nvmlGpuInstanceCreateComputeInstance(instance, profile, ctypes.byref(compute)))

    def show(self) -> list[tuple[str, ...]]:
        """Everything on the GPUs, from the library's state, as text: gi, ci, process and mode tuples."""
        text = ctypes.create_string_buffer(_SHOWN_MAX)
        assert self.library.sluice_nvml_show(text, _SHOWN_MAX) >= 0
        return [tuple(line.split()) for line in text.value.decode().splitlines()]

    # -- processes ------------------------------------------------------------------------------------------------

    def add_process(
        self, device: str, *, owner: str = "", name: str = "python", kind: str = "compute", pid: int | None = None
    ) -> int:
        """A process on a device; its pid (`pid`: a real one). Raises OSError where the compute mode lets it not in."""
        number = next(self._pids) if pid is None else pid
        self.enter_process(number, owner=owner, name=name)
        about = (device.encode(), number, name.encode(), _KINDS[kind], int(pid is not None))
        code = self.library.sluice_nvml_add_process(*about)
        if code != OK:
            self.leave_process(number)
            raise OSError(code, f"{device} takes no process {number}")
        return number

    def use(self, pid: int, *, memory_mib: int = 0, busy_percent: int = 0, sms_percent: int = 100) -> None:
        """What a process holds, how much of the time it computes, and on how many of the SMs meanwhile."""
        self._call("use", pid, memory_mib, busy_percent, sms_percent)

    def remove_process(self, pid: int) -> None:
        self.leave_process(pid)
        self._call("remove_process", pid)

    def add_file_holder(self, *files: str, owner: str = "", name: str = "dcgm") -> int:
        """A process that only has these device files open; its pid. NVML does not know it."""
        pid = next(self._pids)
        self.enter_process(pid, owner=owner, name=name, files=files)
        return pid

    def enter_process(self, pid: int, *, owner: str, name: str, files: tuple[str, ...] = ()) -> None:
        """Write its entries of the made-up /proc."""
        entry = self.proc / str(pid)
        (entry / "fd").mkdir(parents=True, exist_ok=True)
        pod = f"kubepods.slice/kubepods-pod{owner.replace('-', '_')}.slice/cri-containerd-0.scope"
        (entry / "cgroup").write_text(f"0::/{pod if owner else 'system.slice/x.service'}\n", encoding="utf-8")
        (entry / "comm").write_text(f"{name[:15]}\n", encoding="utf-8")
        (entry / "cmdline").write_bytes(f"{name}\0".encode())
        started_at = " ".join(["0"] * 18)
        (entry / "stat").write_text(f"{pid} ({name[:15]}) S {started_at} 4711 0\n", encoding="utf-8")
        for number, file in enumerate(files, start=3):
            (entry / "fd" / str(number)).symlink_to(file)

    def leave_process(self, pid: int) -> None:
        shutil.rmtree(self.proc / str(pid), ignore_errors=True)

    # -- what goes wrong ------------------------------------------------------------------------------------------

    def fault(self, name: str, value: int) -> None:
        """
        Set a fault, 0 for none.

        in_use_times, insufficient, ci_fails, gi_holds, no_permission: so many calls are refused. slow_ms. init_error:
        what nvmlInit returns. stable_uuids: a MIG device made again at its place has its old UUID. parent_in_ci_info:
        a compute instance's info names the GPU, not the MIG device.
        """
        self._call("fault", name.encode(), value)

    def fail(self, symbol: str, code: int, times: int = 1) -> None:
        """So many of the next calls of a function return this code."""
        self._call("fail", symbol.encode(), code, times)

    def lose(self, gpu: int) -> None:
        self._call("set_lost", gpu, 1)
        self.tell(gpu, XID, 79)

    def find(self, gpu: int) -> None:
        """It answers again, with everything that was on it."""
        self._call("set_lost", gpu, 0)

    def reset(self, gpu: int) -> None:
        """It is reset: it answers, and nothing is on it. A pending MIG mode takes effect."""
        self._call("reset_gpu", gpu)

    def reboot(self) -> None:
        """All GPUs are reset, and no process is left."""
        self._call("reboot")
        for entry in self.proc.iterdir():
            shutil.rmtree(entry)

    def xid(self, gpu: int, number: int) -> None:
        self.tell(gpu, XID, number)

    def tell(self, gpu: int, kind: int, data: int) -> None:
        """The driver reports an event (an event type of NVML)."""
        self._call("tell", gpu, ctypes.c_uint64(kind), ctypes.c_uint64(data))

    def set_mig(self, gpu: int, *, current: bool, pending: bool) -> None:
        """MIG mode as it is, and as it will be after a reset."""
        self._call("set_mig", gpu, int(current), int(pending))

    def set_events(self, gpu: int, *, supported: bool) -> None:
        """Whether the GPU reports errors by itself."""
        self._call("set_events", gpu, int(supported))

    def set_ecc(self, gpu: int, uncorrected: int) -> None:
        """Uncorrectable memory errors since the last reset."""
        self._call("set_ecc", gpu, uncorrected)

    def set_recovery(self, gpu: int, action: int) -> None:
        self._call("set_recovery", gpu, action)

    def set_versions(self, driver: str, cuda: int) -> None:
        """The versions that the driver reports (CUDA 13.1: 13010)."""
        self._call("set_versions", driver.encode(), cuda)

    def compute_mode(self, gpu: int) -> int:
        """NVML's number of it: 0 DEFAULT, 3 EXCLUSIVE_PROCESS."""
        return int(self.library.sluice_nvml_compute_mode(gpu))

    # -- inside ---------------------------------------------------------------------------------------------------

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, f"sluice_nvml_{name}")(*arguments)
        assert code >= 0, f"sluice_nvml_{name}{arguments} returned {code}"

    @contextmanager
    def _initialised(self) -> Iterator[None]:
        _ok(self.library.nvmlInitWithFlags(0))
        try:
            yield
        finally:
            _ok(self.library.nvmlShutdown())

    def _handle(self, gpu: int) -> ctypes.c_void_p:
        device = ctypes.c_void_p()
        _ok(self.library.nvmlDeviceGetHandleByIndex_v2(gpu, ctypes.byref(device)))
        return device

    def _model_of(self, gpu: int) -> dict[str, Any]:
        name = ctypes.create_string_buffer(96)
        _ok(self.library.nvmlDeviceGetName(self._handle(gpu), name, len(name)))
        product = name.value.decode()
        return next(model for model in _MODELS.values() if product in model["product_names"])

    def _fill(self, instance: ctypes.c_void_p) -> None:
        info, best = pynvml.c_nvmlComputeInstanceProfileInfo_t(), (0, 0)
        for profile in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            query = self.library.nvmlGpuInstanceGetComputeInstanceProfileInfo
            if query(instance, profile, 0, ctypes.byref(info)) == OK:
                best = max(best, (info.multiprocessorCount, info.id))
        compute = ctypes.c_void_p()
        _ok(self.library.nvmlGpuInstanceCreateComputeInstance(instance, best[1], ctypes.byref(compute)))


def child_environment(machine: NvmlMachine, **more: str) -> dict[str, str]:
    """Our environment, and what a child needs to find the machine."""
    return {**os.environ, **machine.environment(), **more}


def _ok(code: int) -> None:
    assert code == OK, f"NVML returned {code}"


def _hook(library: ctypes.CDLL | None) -> None:
    """Give pynvml a library, or none; forget the functions that it found in another."""
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml._nvmlLib_refcount = 0
    pynvml.nvmlLib = library
