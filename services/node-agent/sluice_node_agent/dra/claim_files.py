"""Carries out the core's instructions about CDI files: what it decides, with this node's device nodes and driver."""

from pathlib import Path
from typing import Any

from sluice_node_agent.core.events import CdiCompared, CdiRefused, CdiRemoved, CdiWritten
from sluice_node_agent.core.instructions import CdiDevice, CdiInstruction, CompareCdi, RemoveCdi, WriteCdi
from sluice_node_agent.device.cdi_edits import CdiError, DeviceNodes
from sluice_node_agent.device.port import DeviceError
from sluice_node_agent.dra.cdi_files import CdiFiles
from sluice_node_agent.dra.cdi_spec import HandedOver, cdi_spec

_SHARED_MEMORY = "shm"
"""In a home of shares: the shared memory of its daemon, where it has one of its own."""


class ClaimFiles:
    """The CDI files of one node's claims. Calls block."""

    def __init__(self, files: CdiFiles, nodes: DeviceNodes) -> None:
        """Write `files` of the devices that `nodes` describes."""
        self._files = files
        self._nodes = nodes

    def claims(self) -> tuple[str, ...]:
        """The UIDs of all claims with a file. Raises OSError."""
        return self._files.claims()

    def why_not(self) -> str:
        """Why no CDI file can be written here; empty when it can."""
        try:
            self._files.prepare()
            self._nodes.common()
        except (OSError, CdiError, DeviceError) as error:
            return str(error)
        return ""

    def carry_out(self, order: CdiInstruction) -> CdiWritten | CdiRemoved | CdiCompared | CdiRefused:
        """Write, remove or compare."""
        try:
            match order:
                case WriteCdi():
                    self._files.write(order.claim, self._spec(order))
                    return CdiWritten(order.token)
                case RemoveCdi():
                    self._files.remove(order.claim)
                    return CdiRemoved(order.token)
                case CompareCdi():
                    wrong = (each.claim for each in order.files if not self._files.has(each.claim, self._spec(each)))
                    return CdiCompared(order.token, tuple(wrong))
        except (OSError, CdiError, DeviceError) as error:
            return CdiRefused(order.token, str(error))

    def _spec(self, order: WriteCdi) -> dict[str, Any]:
        devices = [self._handed_over(device) for device in order.devices]
        is_shared = any(device.shared for device in order.devices)
        mark = str(self._files.path_of(order.claim)) if is_shared else ""
        return cdi_spec(order.claim, devices, self._nodes.common(), mark)

    def _handed_over(self, device: CdiDevice) -> HandedOver:
        nodes = tuple(node for part in device.parts for node in self._nodes.of(part.gpu, part.gi_id))
        pipe = device.container.mps_pipe_directory
        shared = Path(pipe).parent / _SHARED_MEMORY if pipe else None
        is_there = shared is not None and shared.is_dir()
        return HandedOver(device.name, device.container, nodes, str(shared) if is_there else "")
