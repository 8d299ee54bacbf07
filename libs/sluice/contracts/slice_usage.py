"""Usage of slices, as an agent answers it. Not on the bus: nothing is decided from it (ADR 0041).

What slices count against quotas is `sluice.contracts.quotas.usage`."""

import msgspec

from sluice.contracts.ids import AllocationId, GpuUuid, NodeName, RequestId
from sluice.contracts.messages import Mode


class SliceUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One device of one ready slice. None is unknown to the driver, never zero."""

    allocation: AllocationId
    request: RequestId
    namespace: str
    name: str
    containers: tuple[str, ...]
    gpu: GpuUuid
    device: str
    """UUID of the MIG device, or of the GPU."""
    profile: str | None
    mode: Mode
    memory_mib: int
    memory_used_mib: int | None = None
    busy_percent: float | None = None
    """Of the time in which one of its kernels ran."""
    sm_percent: float | None = None
    memory_busy_percent: float | None = None
    """Of the time (or of the bandwidth, with GPM) in which its memory was read or written."""
    processes: int = 0
    watched_s: float = 0.0
    age_s: float | None = None
    """Of these numbers; None before the first measurement."""
    idle_s: float | None = None
    """For how long it has been idle; None when it is used, or when that is unknown."""


class NodeUsage(msgspec.Struct, frozen=True, kw_only=True):
    """All ready slices of one node, and how often they are measured (0: never)."""

    node: NodeName
    every_s: float
    slices: tuple[SliceUsage, ...]
