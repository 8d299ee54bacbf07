"""
What a device is used for at the moment, as far as its driver tells: the words of `GpuBackend.uses`.

Plain facts of one look. None means that the driver does not tell, never zero: who shows them must keep the two apart.
What it means for a slice (whose it is, whether it idles) is `sluice_node_agent.core.usage`'s.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """One process with a context on a device. `owner` is the UID of its pod, empty when it belongs to none."""

    pid: int
    owner: str
    memory_mib: int | None
    busy_percent: float | None
    """Of the time in which a kernel of it ran (`nvmlDeviceGetProcessUtilization`, smUtil)."""


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A whole GPU without MIG, or a MIG device."""

    uuid: str
    memory_mib: int | None
    """What its processes hold of it."""
    busy_percent: float | None
    """Of the time in which any kernel ran on it."""
    sm_percent: float | None
    """Of its SMs that were busy, on average; only where the driver has GPM (Hopper and newer)."""
    memory_busy_percent: float | None
    """Of the time (or of the bandwidth, with GPM) in which its memory was read or written."""
    processes: tuple[ProcessUse, ...]
    """The node's MPS servers are left out: what they do is their clients' doing."""
