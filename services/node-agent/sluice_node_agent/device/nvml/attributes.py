"""Reads what a GPU is from NVML, whose errors are raised unchanged. A fact that is not reported is returned as unknown;
a lost GPU is never mistaken for one that does not report it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml  # type: ignore[import-untyped]

from sluice.contracts.ids import GpuUuid
from sluice.contracts.messages import ProfileReport
from sluice.mig.catalog import find_model
from sluice_node_agent.device.gpu_health import HealthFacts
from sluice_node_agent.device.nvidia_nodes import GpuFiles
from sluice_node_agent.device.nvml.errors import MISSING, known_or, told_or
from sluice_node_agent.device.nvml.mig import Handle, Mode

MIB = 1024**2
PER_LINK = 100
"""The weight of one NVLink between two GPUs, in the unit of `GpuReport.links`."""
SYS = Path("/sys/bus/pci/devices")

CORES_PER_SM: Mapping[tuple[int, int], int] = {
    **dict.fromkeys(((7, 0), (7, 2), (7, 5), (8, 0)), 64),
    **dict.fromkeys(((8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 1), (10, 3), (11, 0), (12, 0), (12, 1)), 128),
}
"""CUDA cores per SM by compute capability (NVIDIA/cuda-samples, Common/helper_cuda.h)."""

_AFFINITY_WORDS = 4
"""64 NUMA nodes each; no machine with GPUs has more than a few dozen."""
_SWITCH = pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH

_UNTOLD = MISSING | {pynvml.NVML_ERROR_NOT_SUPPORTED}
"""NVML codes for a fact that this GPU or driver does not report."""
_CLIENTS_60_FROM = 13010
"""CUDA 13.1 in nvmlSystemGetCudaDriverVersion_v2's form (major * 1000 + minor * 10)."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """Where a GPU is: its PCI address (None: not reported), and the ends of its active NVLinks."""

    pci: tuple[int, int, int] | None
    mig: bool
    direct: Mapping[tuple[int, int, int], int] = field(default_factory=dict)
    switched: int = 0


def mps_clients_max() -> int:
    """The most clients of one MPS server on a whole GPU (NVIDIA MPS, "Limitations"): 60 from CUDA 13.1 on, else 48."""
    version = known_or(0, pynvml.nvmlSystemGetCudaDriverVersion_v2)
    return 60 if version >= _CLIENTS_60_FROM else 48


def memory_bytes(device: Handle) -> int:
    """The GPU's total memory, as nvidia-smi's memory.total; 0 where it has none of its own, as GB10. Any other error is
    raised: an unknown size would look like another model."""
    memory = told_or(_UNTOLD, None, pynvml.nvmlDeviceGetMemoryInfo, device)
    return int(memory.total) if memory is not None else 0


def multiprocessors(device: Handle, name: str, profiles: tuple[ProfileReport, ...]) -> int:
    """All SMs of a whole GPU; 0 when they cannot be determined: NVML has no call for it, and the largest profile can
    have fewer (98 of 108 on an A100). So the catalog's number; else CUDA cores over cores per SM; never below the
    largest profile's."""
    least = max((profile.multiprocessors for profile in profiles), default=0)
    model = find_model(name)
    if model is not None and model.multiprocessors >= least:
        return model.multiprocessors
    cores = known_or(0, pynvml.nvmlDeviceGetNumGpuCores, device)
    capability = known_or((0, 0), pynvml.nvmlDeviceGetCudaComputeCapability, device)
    per_sm = CORES_PER_SM.get((capability[0], capability[1]), 0)
    return max(cores // per_sm if per_sm and cores % per_sm == 0 else 0, least)


def health(device: Handle, mode: Mode) -> HealthFacts:
    return HealthFacts(
        mig_now=mode.now,
        mig_next=mode.after_reset,
        recovery=_recovery_action(device),
        uncorrected=known_or(
            0,
            pynvml.nvmlDeviceGetTotalEccErrors,
            device,
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC,
        ),
    )


def wiring(device: Handle, *, mig: bool) -> Wiring:
    """The GPU's address and links. A GPU in MIG mode has no peers: P2P is off (MIG user guide)."""
    found = told_or(_UNTOLD, None, pynvml.nvmlDeviceGetPciInfo_v3, device)
    pci = _place(found) if found is not None else None
    if mig:
        return Wiring(pci, mig)
    direct: Counter[tuple[int, int, int]] = Counter()
    switched = 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = known_or(None, pynvml.nvmlDeviceGetNvLinkState, device, link)
        if not state:  # off, or no such link
            continue
        if known_or(None, pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, device, link) == _SWITCH:
            switched += 1
        elif (remote := known_or(None, pynvml.nvmlDeviceGetNvLinkRemotePciInfo, device, link)) is not None:
            direct[_place(remote)] += 1
    return Wiring(pci, mig, dict(direct), switched)


def files(device: Handle) -> GpuFiles:
    """Where its device files are. A driver that does not report the address has no DRM nodes for us."""
    found = told_or(_UNTOLD, None, pynvml.nvmlDeviceGetPciInfo_v3, device)
    pci = _address(_place(found)) if found is not None else ""
    return GpuFiles(int(pynvml.nvmlDeviceGetMinorNumber(device)), pci)


def links(own: Wiring, others: Mapping[GpuUuid, Wiring]) -> dict[GpuUuid, int]:
    """The weight of each linked GPU, 100 per NVLink. Behind NVSwitches every GPU reaches every other one with all links
    that both have there (as `NV18` in `nvidia-smi topo -m`)."""
    found = {}
    for uuid, other in others.items():
        if own.mig or other.mig or own.pci is None or other.pci is None or other.pci == own.pci:
            continue
        count = own.direct.get(other.pci, 0) + min(own.switched, other.switched)
        if count:
            found[uuid] = PER_LINK * count
    return found


def numa_node(device: Handle, pci: tuple[int, int, int] | None) -> int | None:
    """The closest NUMA node, or None. Not nvmlDeviceGetNumaNodeId: on Grace that is the GPU's own memory."""
    words: Iterable[int] = known_or(
        (), pynvml.nvmlDeviceGetMemoryAffinity, device, _AFFINITY_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE
    )
    mask = sum(word << (64 * number) for number, word in enumerate(words))
    if mask.bit_count() == 1:
        return mask.bit_length() - 1
    if pci is None:
        return None
    try:
        node = int((SYS / _address(pci) / "numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _recovery_action(device: Handle) -> int | None:
    """The driver's recovery action, 0 for none; None on drivers without it (before R565)."""
    values = known_or(None, pynvml.nvmlDeviceGetFieldValues, device, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if not values or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal)


def _address(pci: tuple[int, int, int]) -> str:
    domain, bus, slot = pci
    return f"{domain:04x}:{bus:02x}:{slot:02x}.0"


def _place(pci: Any) -> tuple[int, int, int]:
    return int(pci.domain), int(pci.bus), int(pci.device)
