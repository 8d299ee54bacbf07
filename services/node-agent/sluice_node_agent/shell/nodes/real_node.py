"""The machine that this process runs on: GPUs through NVML, and the MPS control program of the driver."""

from pathlib import Path, PurePosixPath

from sluice.contracts.ids import GpuUuid, NodeName
from sluice.contracts.messages import Mode
from sluice_node_agent.device.mps.daemons import MpsDaemons
from sluice_node_agent.device.mps.home_directory import MpsError
from sluice_node_agent.device.nvidia_nodes import ContainerToolkit, NvidiaNodes, RootChange
from sluice_node_agent.device.nvml.backend import NvmlBackend
from sluice_node_agent.device.port import BackendError, parse_selector
from sluice_node_agent.device.processes import Processes
from sluice_node_agent.settings import MPS_OFF, NodeAgentSettings
from sluice_node_agent.shell import paths
from sluice_node_agent.shell.nodes import node_backend

_MPS_CONTROL = "nvidia-cuda-mps-control"
_SHARED: tuple[Mode, ...] = ("exclusive", "mps", "fractional")
_GPUS_MAX = 32
"""Threads start as needed; no node has more GPUs."""
_WATCH = node_backend.WatchTimes(wait_s=1.0, pause_s=0.0)
"""The wait is in the driver and costs nothing. It is also how long an agent may take to stop."""


def real_node(settings: NodeAgentSettings) -> node_backend.NodeBackend:
    """This machine under its name in the settings. Raises NodeBackendError."""
    if len(settings.nodes) != 1:
        raise node_backend.NodeBackendError(
            "SLUICE_NODE_AGENT_NODES must name this node, and no other, to serve the GPUs of this machine "
            f"(it names {len(settings.nodes)}); for simulated nodes set SLUICE_NODE_AGENT_FLEET_FILE"
        )
    name = NodeName(settings.nodes[0])
    return node_backend.NodeBackend(name, _GPUS_MAX, lambda: _opened(name, settings))


def _opened(name: NodeName, settings: NodeAgentSettings) -> node_backend.OpenNode:
    root = paths.mps_root(settings.data_dir, settings.mps_dir, name)
    control, no_shares = _control(settings.mps_control, root)
    processes = Processes()
    try:
        mps = MpsDaemons(root, control, processes)
        backend = NvmlBackend(processes, fixed=parse_selector(settings.fixed_layout, name))
    except (BackendError, MpsError) as error:
        raise node_backend.NodeBackendError(str(error)) from error

    def any_gpu() -> GpuUuid | None:
        return next((report.uuid for report in backend.read() if not report.lost), None)

    return node_backend.OpenNode(
        backend,
        _WATCH,
        mps,
        NvidiaNodes(backend.files_of, any_gpu, backend.driver_version(), container_toolkit(settings)),
        modes=node_backend.EXCLUSIVE if no_shares else _SHARED,
        no_shares=no_shares,
        toolkit_version=node_backend.toolkit_version(settings.nvidia_ctk or node_backend.TOOLKIT),
        quota_library=None if no_shares else node_backend.quota_library(settings.quota_library),
    )


def _control(wanted: str, root: Path) -> tuple[Path, str]:
    """The MPS control program, and why no daemon can be started."""
    too_long = paths.why_no_homes(root)
    if wanted and wanted != MPS_OFF:
        if too_long:
            raise node_backend.NodeBackendError(too_long)
        return node_backend.find_program(wanted, "mps_control"), ""
    found = node_backend.on_path(_MPS_CONTROL)
    if wanted == MPS_OFF:
        return found or Path(_MPS_CONTROL), "mps_control is off"
    if found is None:
        return Path(_MPS_CONTROL), f"{_MPS_CONTROL} is not on PATH (it comes with the driver's compute utilities)"
    return found, too_long


def container_toolkit(settings: NodeAgentSettings) -> ContainerToolkit:
    seen = PurePosixPath(settings.driver_root)
    change = RootChange(seen, PurePosixPath(settings.driver_root_on_node or settings.driver_root))
    program = node_backend.on_path(settings.nvidia_ctk or node_backend.TOOLKIT)
    return ContainerToolkit(program, root=change, hook=settings.nvidia_cdi_hook)
