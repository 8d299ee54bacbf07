"""Simulated nodes of a fleet file: a hardware file each, and real processes of the MPS stand-in as daemons."""

from dataclasses import dataclass
from pathlib import Path

from sluice.contracts.fleet_file.fleet_spec import FleetSpecError, NodeSpec, parse_fleet
from sluice.contracts.ids import NodeName
from sluice.contracts.toml_tables import TOML_BYTES_MAX
from sluice.runtime.text_files import read_named_text
from sluice_node_agent.device.mps.daemons import MpsDaemons
from sluice_node_agent.device.processes import Processes
from sluice_node_agent.settings import MPS_OFF, NodeAgentSettings
from sluice_node_agent.shell import paths
from sluice_node_agent.shell.nodes.node_backend import (
    EXCLUSIVE,
    NodeBackendError,
    OpenNode,
    WatchTimes,
    find_program,
    quota_library,
)
from sluice_node_agent.simulated import mps_program
from sluice_node_agent.simulated.backend import SimulatedBackend, SimulatedNodes
from sluice_node_agent.simulated.hardware_file import HardwareFile

_WATCH = WatchTimes(wait_s=0.0, pause_s=2.0)
"""Reading a file needs no waiting thread, however many nodes a process has."""


class FleetFileError(NodeBackendError):
    """The fleet file is missing, invalid, or lacks a node of the settings."""


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """One node of the fleet (a `NodeBackend`)."""

    fleet_node: NodeSpec
    settings: NodeAgentSettings

    @property
    def name(self) -> NodeName:
        """Its name."""
        return self.fleet_node.name

    @property
    def gpus_max(self) -> int:
        """As the fleet says."""
        return sum(kind.count for kind in self.fleet_node.gpus)

    def open(self) -> OpenNode:
        """Create the hardware if needed. Raises HardwareFileError, NodeBackendError."""
        node = self.fleet_node
        path = paths.hardware_path(self.settings.data_dir, node.name)
        hardware = HardwareFile(path)
        hardware.make(node)
        backend = SimulatedBackend(hardware, create_ms=node.create_ms, destroy_ms=node.destroy_ms)
        root = paths.mps_root(self.settings.data_dir, self.settings.mps_dir, node.name)
        control, no_shares = self._control()
        no_shares = no_shares or paths.why_no_homes(root)
        environment = {"SLUICE_SIMULATED_HARDWARE": str(path.absolute())}
        mps = MpsDaemons(root, control, Processes(), environment=environment)
        modes = tuple(mode for mode in node.modes if mode in EXCLUSIVE) if no_shares else node.modes
        library = None if no_shares else quota_library(self.settings.quota_library)
        instant = not (node.create_ms or node.destroy_ms)
        nodes = SimulatedNodes(hardware)
        return OpenNode(backend, _WATCH, mps, nodes, modes, no_shares, quota_library=library, instant=instant)

    def _control(self) -> tuple[Path, str]:
        """The MPS control program, and why no new daemon can be started."""
        wanted = self.settings.mps_control
        if wanted and wanted != MPS_OFF:
            return find_program(wanted, "mps_control"), ""
        stand_in = mps_program.install(self.settings.data_dir.absolute() / "hardware" / "bin")
        return stand_in, "mps_control is off" if wanted else ""


def simulated_nodes(settings: NodeAgentSettings, path: Path) -> tuple[SimulatedNode, ...]:
    """The nodes of the fleet file that this process serves. Raises FleetFileError."""
    try:
        fleet = parse_fleet(read_named_text(path, TOML_BYTES_MAX), origin=str(path))
    except OSError as error:
        raise FleetFileError(f"the fleet file {path} cannot be read: {error}") from error
    except FleetSpecError as error:
        raise FleetFileError(str(error)) from error
    names = dict.fromkeys(settings.nodes) or {node.name: None for node in fleet.nodes}
    unknown = [name for name in names if fleet.node(name) is None]
    if unknown:
        raise FleetFileError(f"{path} has no node {unknown[0]!r}")
    found = (fleet.node(name) for name in names)
    return tuple(SimulatedNode(node, settings) for node in found if node is not None)
