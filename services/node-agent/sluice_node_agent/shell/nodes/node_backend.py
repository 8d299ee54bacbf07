"""A node at the start of a run: its opened GPUs, its modes, and the programs that it runs. `simulated_node` and
`real_node` are imported only where needed: a real node loads no simulator."""

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sluice.contracts.ids import NodeName
from sluice.contracts.messages import Mode
from sluice.runtime.errors import ServiceError
from sluice_node_agent.device.mps.daemons import MpsDaemons
from sluice_node_agent.device.nvidia_nodes import DeviceNodes
from sluice_node_agent.device.port import GpuBackend
from sluice_node_agent.device.processes import communicate
from sluice_node_agent.settings import QUOTA_OFF

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
    """A node whose GPUs were opened. `no_shares`: why no daemon is started here; `mps` ends earlier ones."""

    backend: GpuBackend
    watch: WatchTimes
    mps: MpsDaemons
    device_nodes: DeviceNodes
    modes: tuple[Mode, ...] = EXCLUSIVE
    no_shares: str = ""
    toolkit_version: str = ""
    quota_library: Path | None = None
    instant: bool = False
    """Calls about its GPUs wait for no hardware: a thread for each would cost more than the call."""


@dataclass(frozen=True, slots=True)
class NodeBackend:
    """A node that this process serves, with at most `gpus_max` GPUs. `open` blocks, and raises ServiceError."""

    name: NodeName
    gpus_max: int
    open: Callable[[], OpenNode]


QUOTA_IN_IMAGE = Path("/opt/sluice/lib/libsluice-quota.so")
"""The time quota's library in our image, if it was built with it (deploy/docker/Dockerfile)."""
TOOLKIT = "nvidia-ctk"
_ANSWER_S, _ANSWER_MAX_BYTES = 5.0, 64 * 1024
_VERSION = re.compile(r"\bversion v?(\d[\w.+~-]*)")
"""In `NVIDIA Container Toolkit CLI version 1.17.4`, the first line of `nvidia-ctk --version`."""


def on_path(name: str) -> Path | None:
    """The absolute path of a program, by its name or path; None when there is none that can be run."""
    found = shutil.which(name)
    return Path(found).absolute() if found else None


def find_program(name: str, setting: str) -> Path:
    """As `on_path`, for a program that a setting names. Raises NodeBackendError, naming the setting."""
    found = on_path(name)
    if found is None:
        raise NodeBackendError(
            f"{setting} is {name!r}, which is no program that can be run; install it or set {setting} to off"
        )
    return found


def quota_library(wanted: str) -> Path | None:
    """The time quota's client library: the settings', or the image's; None for none. Raises NodeBackendError."""
    if wanted == QUOTA_OFF:
        return None
    if not wanted:
        return QUOTA_IN_IMAGE if QUOTA_IN_IMAGE.is_file() else None
    if not Path(wanted).is_file():
        raise NodeBackendError(
            f"quota_library is {wanted!r}, which is no file; build it (make quota) or say {QUOTA_OFF}"
        )
    return Path(wanted)


def toolkit_version(program: str = TOOLKIT) -> str:
    """The version of NVIDIA's container toolkit; empty when it is missing, or does not answer within 5 s."""
    found = on_path(program)
    if found is None:
        return ""
    try:
        _, said = communicate((found, "--version"), b"", dict(os.environ), _ANSWER_S, bytes_max=_ANSWER_MAX_BYTES)
    except OSError:
        return ""
    match = _VERSION.search(said.decode(errors="replace"))
    return match[1] if match else ""
