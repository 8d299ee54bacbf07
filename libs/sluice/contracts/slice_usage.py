"""
What slices are used for, as an agent tells who asks it.

It is not on the bus: it changes with every look, nothing is decided from it, and whoever wants it asks the agent (ADR
0041). Not to be taken for `sluice.contracts.quotas.usage`, which is what slices count against quotas.
"""

import msgspec

from sluice.contracts.ids import AllocationId, GpuUuid, NodeName, RequestId
from sluice.contracts.messages import Mode


class SliceUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One device of one slice that is ready. None is what the driver does not tell, never zero."""

    allocation: AllocationId
    request: RequestId
    namespace: str
    name: str
    containers: tuple[str, ...]
    gpu: GpuUuid
    device: str
    """UUID of the MIG device, or of the GPU."""
    profile: str | None
    """None for a whole GPU."""
    mode: Mode
    memory_mib: int
    """That it may use."""
    memory_used_mib: int | None = None
    busy_percent: float | None = None
    """Of the time in which a kernel of it ran."""
    sm_percent: float | None = None
    """Of the device's SMs that were busy, on average."""
    memory_busy_percent: float | None = None
    """Of the time (or of the bandwidth, with GPM) in which its memory was read or written."""
    processes: int = 0
    watched_s: float = 0.0
    """For how long this agent has looked at it."""
    age_s: float | None = None
    """Of these numbers; None when it was not looked at yet."""
    idle_s: float | None = None
    """For how long nothing was seen of it; None when it is used, or nobody can tell."""


class NodeUsage(msgspec.Struct, frozen=True, kw_only=True):
    """All slices of one node that are ready, and how often they are looked at (0: never)."""

    node: NodeName
    every_s: float
    slices: tuple[SliceUsage, ...]
