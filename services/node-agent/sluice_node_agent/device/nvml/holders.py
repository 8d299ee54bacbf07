"""Which processes are on a GPU or MIG device: those that NVML lists, and those that only hold its device files, which
keep it busy too (NVIDIA/DCGM issues 95 and 276, Project-HAMi/HAMi issue 1088)."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pynvml  # type: ignore[import-untyped]

from sluice_node_agent.core.events import Holder, HolderKind
from sluice_node_agent.device.nvml.errors import MISSING, known_or, older, told_or
from sluice_node_agent.device.nvml.mig import Handle
from sluice_node_agent.device.port import DeviceError
from sluice_node_agent.device.processes import Processes

MPS_SERVER = "nvidia-cuda-mps-server"
_COMM_LENGTH = 15
"""The kernel keeps this many characters of a process's name (TASK_COMM_LEN in proc(5), less the final zero)."""
CAPS = "/dev/nvidia-caps/nvidia-cap"
_UNSUPPORTED = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED})
_UNTOLD = MISSING | _UNSUPPORTED
"""This driver, or this GPU, has no such list. Any other error would hide a list."""
_UNTOLD_OF_INSTANCES = _UNTOLD | {pynvml.NVML_ERROR_INVALID_ARGUMENT}
"""As above: a MIG device that has just listed its compute processes is no valid argument where there is no list."""


def whole_gpu_files(device: Handle) -> tuple[str, ...]:
    minor = told_or(_UNSUPPORTED, None, pynvml.nvmlDeviceGetMinorNumber, device)
    return () if minor is None else (f"/dev/nvidia{minor}",)


def mig_files(device: Handle, gi_id: int, ci_id: int) -> tuple[str, ...]:
    """The capability files of a MIG device's two instances. Minor numbers (NVIDIA/open-gpu-kernel-modules, nv-caps.c):
    1 and 2 are mig/config and monitor, then 15 GPU instances per GPU with 8 compute instances each."""
    minor = told_or(_UNSUPPORTED, None, pynvml.nvmlDeviceGetMinorNumber, device)
    if minor is None:
        return ()
    gpu_instance = 3 + 135 * minor + 9 * gi_id
    return f"{CAPS}{gpu_instance}", f"{CAPS}{gpu_instance + 1 + ci_id}"


def using(handle: Handle, *, is_instance: bool = False) -> dict[int, None]:
    """Pids with a context on a GPU or MIG device: compute, compute over MPS, and graphics; on a GPU in MIG mode those
    of all instances that we may see. Raises NVML's errors: an unavailable list is not an empty one."""
    return dict.fromkeys(memory_of(handle, is_instance=is_instance))


def memory_of(handle: Handle, *, is_instance: bool = False) -> dict[int, int | None]:
    """The processes of `using`, and the bytes of device memory that each holds; None where it is not reported."""
    untold = _UNTOLD_OF_INSTANCES if is_instance else _UNTOLD
    found: dict[int, int | None] = {}
    for kind, may_lack in (("Compute", frozenset[int]()), ("MPSCompute", untold), ("Graphics", untold)):
        # R470 knows only the second version.
        calls = (getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses_v{version}") for version in (3, 2))
        listed: Any = told_or(may_lack, (), older, *(partial(call, handle) for call in calls))
        for process in listed:  # one that computes and draws is listed twice, with all it holds
            found.setdefault(int(process.pid), None if process.usedGpuMemory is None else int(process.usedGpuMemory))
    return found


def holders(pids: Iterable[int], files: tuple[str, ...], processes: Processes) -> tuple[Holder, ...]:
    """These processes, and those that have one of the files open. Raises DeviceError when /proc cannot be read."""
    known = dict.fromkeys(pids)
    with listing():
        found = [_holder(pid, processes) for pid in known]
        if files:
            opened = processes.with_open(files)
            found += [
                Holder(pid, processes.pod_of(pid), processes.name_of(pid), "file") for pid in opened if pid not in known
            ]
    return tuple(found)


@contextmanager
def listing() -> Iterator[None]:
    """Raise failures to list processes as a DeviceError: it is retried, and never means an empty list."""
    try:
        yield
    except OSError as error:
        raise DeviceError(f"the processes of this node cannot be listed: {error}") from error


def is_node_server(pid: int, processes: Processes) -> bool:
    """Whether it is an MPS server of the node or of our pod. A tenant may use its name, but not leave its cgroup."""
    holder = _holder(pid, processes)
    return holder.kind == "mps" and holder.owner in {"", processes.own_pod()}


def _holder(pid: int, processes: Processes) -> Holder:
    name = processes.name_of(pid)
    told = str(known_or("", pynvml.nvmlSystemGetProcessName, pid)).rpartition("/")[2]
    # The kernel cuts this name, as it does for nvidia-cuda-mps-control, which has no context.
    server = MPS_SERVER in {name, told} or name == MPS_SERVER[:_COMM_LENGTH]
    kind: HolderKind = "mps" if server else "compute"
    return Holder(pid, processes.pod_of(pid), MPS_SERVER if server else name or told, kind)
