"""
How a device is used at the moment, as `GpuBackend.uses` reports it.

Plain facts of one sample. None means that the driver does not report the value, which is not zero.
`sluice_node_agent.core.usage` attributes them to slices.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """One process with a context on a device. `owner` is the UID of its pod, empty outside pods."""

    pid: int
    owner: str
    memory_mib: int | None
    busy_percent: float | None
    """Share of the time in which one of its kernels ran (`nvmlDeviceGetProcessUtilization`, smUtil)."""


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A whole GPU without MIG, or a MIG device."""

    uuid: str
    memory_mib: int | None
    """Memory that its processes hold."""
    busy_percent: float | None
    """Share of the time in which any kernel ran on it."""
    sm_percent: float | None
    """Share of its SMs that were busy, on average; only where the driver has GPM (Hopper and newer)."""
    memory_busy_percent: float | None
    """Share of the time (with GPM: of the bandwidth) in which its memory was read or written."""
    processes: tuple[ProcessUse, ...]
    """Without the node's MPS servers: what they do is their clients' work."""
