"""
A node as its agent finds it at the start of a life: its GPUs, opened, and how it can hand them out.

What kind of node it is, simulated or real, is known by `simulated_node` and `real_node` alone; each is imported only
where it is needed, so that an agent on a real node holds no simulator and a simulated one no driver.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sluice.contracts.ids import NodeName
from sluice.contracts.messages import Mode
from sluice.runtime.errors import ServiceError
from sluice_node_agent.device.port import GpuBackend

if TYPE_CHECKING:  # imported where there is MPS
    from sluice_node_agent.device.mps.daemons import MpsDaemons

EXCLUSIVE: tuple[Mode, ...] = ("exclusive",)


class NodeBackendError(ServiceError):
    """A node cannot be served with these settings, or its devices cannot be used. One sentence with the remedy."""


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """How to hear of troubles: one look waits `wait_s` in a thread for the driver's word, and then comes `pause_s`."""

    wait_s: float
    pause_s: float


@dataclass(frozen=True, slots=True)
class OpenNode:
    """
    A node whose GPUs were opened.

    `no_shares` is empty, or says why shares cannot be handed out here: daemons that run from before are then still
    looked after and ended through `mps`, but none is started.
    """

    backend: GpuBackend
    watch: WatchTimes
    mps: "MpsDaemons"
    modes: tuple[Mode, ...] = EXCLUSIVE
    no_shares: str = ""
    toolkit_version: str = ""
    quota_library: Path | None = None
    """The client library of the time quota; without one no time is enforced."""
    instant: bool = False
    """Calls about its GPUs wait for no hardware: a thread for each would cost more than they do."""


class NodeBackend(Protocol):
    """A node that this process shall serve."""

    @property
    def name(self) -> NodeName:
        """Of the node."""

    @property
    def gpus_max(self) -> int:
        """How many GPUs it has at most: so many calls may be under way at once."""

    def open(self) -> OpenNode:
        """Open its GPUs; blocks. Raises ServiceError."""
