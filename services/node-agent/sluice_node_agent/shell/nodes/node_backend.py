"""
A node at the start of a run: its opened GPUs, and the modes that it supports.

Only `simulated_node` and `real_node` know which kind it is; each is imported where it is needed, so that an agent on a
real node loads no simulator and a simulated one no driver.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sluice.contracts.ids import NodeName
from sluice.contracts.messages import Mode
from sluice.runtime.errors import ServiceError
from sluice_node_agent.device.cdi_edits import DeviceNodes
from sluice_node_agent.device.port import GpuBackend

if TYPE_CHECKING:  # imported where there is MPS
    from sluice_node_agent.device.mps.daemons import MpsDaemons

EXCLUSIVE: tuple[Mode, ...] = ("exclusive",)


class NodeBackendError(ServiceError):
    """A node cannot be served with these settings, or its devices cannot be used. One sentence with the remedy."""


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """How to watch for errors: a call waits `wait_s` in a thread for the driver, the next follows after `pause_s`."""

    wait_s: float
    pause_s: float


@dataclass(frozen=True, slots=True)
class OpenNode:
    """
    A node whose GPUs were opened.

    `no_shares` is empty, or says why shares are not supported here: earlier daemons are then still kept and ended
    through `mps`, but none is started.
    """

    backend: GpuBackend
    watch: WatchTimes
    mps: "MpsDaemons"
    device_nodes: DeviceNodes
    """Of its devices, for CDI files."""
    modes: tuple[Mode, ...] = EXCLUSIVE
    no_shares: str = ""
    toolkit_version: str = ""
    quota_library: Path | None = None
    """The client library of the time quota; without one no time is enforced."""
    instant: bool = False
    """Calls about its GPUs wait for no hardware: a thread for each would cost more than the call."""


class NodeBackend(Protocol):
    """A node that this process serves."""

    @property
    def name(self) -> NodeName:
        """Its name."""

    @property
    def gpus_max(self) -> int:
        """The most GPUs that it may have: the limit of parallel calls."""

    def open(self) -> OpenNode:
        """Open its GPUs; blocks. Raises ServiceError."""
