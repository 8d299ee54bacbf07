"""Simulated nodes of a fleet file: a hardware file each, and real processes of the MPS stand-in as daemons."""

from pathlib import Path

from sluice.contracts.fleet_file.fleet_spec import FleetSpecError, NodeSpec, parse_fleet
from sluice.contracts.toml_tables import TOML_BYTES_MAX
from sluice.runtime.text_files import read_named_text
from sluice_node_agent.device.mps.daemons import MpsDaemons
from sluice_node_agent.device.processes import Processes
from sluice_node_agent.settings import MPS_OFF, NodeAgentSettings
from sluice_node_agent.shell import paths
from sluice_node_agent.shell.nodes import node_backend
from sluice_node_agent.simulated import mps_program
from sluice_node_agent.simulated.backend import SimulatedBackend, SimulatedNodes
from sluice_node_agent.simulated.hardware_file import HardwareFile

_WATCH = node_backend.WatchTimes(wait_s=0.0, pause_s=2.0)
"""Reading a file needs no waiting thread, however many nodes a process has."""


def simulated_node(node: NodeSpec, settings: NodeAgentSettings) -> node_backend.NodeBackend:
    """One node of the fleet."""
    gpus = sum(kind.count for kind in node.gpus)
    return node_backend.NodeBackend(node.name, gpus, lambda: _opened(node, settings))


def _opened(node: NodeSpec, settings: NodeAgentSettings) -> node_backend.OpenNode:
    """Create the hardware if needed. Raises HardwareFileError, NodeBackendError."""
    path = paths.hardware_path(settings.data_dir, node.name)
    hardware = HardwareFile(path)
    hardware.make(node)
    root = paths.mps_root(settings.data_dir, settings.mps_dir, node.name)
    wanted, no_shares = settings.mps_control, ""
    if wanted and wanted != MPS_OFF:
        control = node_backend.find_program(wanted, "mps_control")
    else:
        control = mps_program.install(settings.data_dir.absolute() / "hardware" / "bin")
        no_shares = "mps_control is off" if wanted else ""
    no_shares = no_shares or paths.why_no_homes(root)
    return node_backend.OpenNode(
        SimulatedBackend(hardware, create_ms=node.create_ms, destroy_ms=node.destroy_ms),
        _WATCH,
        MpsDaemons(root, control, Processes(), environment={"SLUICE_SIMULATED_HARDWARE": str(path.absolute())}),
        SimulatedNodes(hardware),
        modes=tuple(mode for mode in node.modes if mode in node_backend.EXCLUSIVE) if no_shares else node.modes,
        no_shares=no_shares,
        quota_library=None if no_shares else node_backend.quota_library(settings.quota_library),
        instant=not (node.create_ms or node.destroy_ms),
    )


def fleet_nodes(settings: NodeAgentSettings, path: Path) -> list[NodeSpec]:
    """The nodes of the fleet file that this process serves. Raises NodeBackendError."""
    try:
        fleet = parse_fleet(read_named_text(path, TOML_BYTES_MAX), origin=str(path))
    except OSError as error:
        raise node_backend.NodeBackendError(f"the fleet file {path} cannot be read: {error}") from error
    except FleetSpecError as error:
        raise node_backend.NodeBackendError(str(error)) from error
    names = dict.fromkeys(settings.nodes) or {node.name: None for node in fleet.nodes}
    unknown = [name for name in names if fleet.node(name) is None]
    if unknown:
        raise node_backend.NodeBackendError(f"{path} has no node {unknown[0]!r}")
    return [node for name in names if (node := fleet.node(name)) is not None]
