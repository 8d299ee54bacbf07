"""
Harmless device nodes in the place of a simulated GPU's: `/dev/null` (char 1:3) under the names of a real one.

So a CDI file of a simulated node has the form of a real one, and a container sees what it would see there; only the
driver's libraries and hooks are missing.
"""

from sluice.contracts.ids import GpuUuid
from sluice_node_agent.device.cdi_edits import CharDevice, CommonEdits
from sluice_node_agent.simulated.hardware_file import HardwareFile
from sluice_node_agent.simulated.reports import find_gpu

_MAJOR, _MINOR = 1, 3
"""/dev/null (Documentation/admin-guide/devices.txt of the kernel)."""
_CONTROL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_PER_GPU, _PER_INSTANCE, _FIRST = 135, 9, 3
"""Minor numbers of capabilities: kernel-open/nvidia/nv-caps.c of NVIDIA/open-gpu-kernel-modules."""
_RENDER = 128
"""The first minor number of render nodes."""


class SimulatedNodes:
    """The GPUs of a simulated node (a `DeviceNodes`)."""

    def __init__(self, file: HardwareFile) -> None:
        """Of the hardware in this file."""
        self._file = file

    def common(self) -> CommonEdits:
        """The control devices, and the variable that keeps NVIDIA's runtime from adding others."""
        nodes = [_harmless(f"/dev/{name}").node for name in _CONTROL]
        return CommonEdits({"env": ["NVIDIA_VISIBLE_DEVICES=void"], "deviceNodes": nodes})

    def of(self, gpu: GpuUuid, gi_id: int | None) -> tuple[CharDevice, ...]:
        """Under the names of a real one with this index."""
        index = find_gpu(self._file.read(), gpu).index
        if gi_id is None:
            more: tuple[str, ...] = (f"/dev/dri/card{index}", f"/dev/dri/renderD{_RENDER + index}")
        else:
            capability = _FIRST + _PER_GPU * index + _PER_INSTANCE * gi_id
            more = tuple(f"/dev/nvidia-caps/nvidia-cap{each}" for each in (capability, capability + 1))
        return tuple(_harmless(path) for path in (f"/dev/nvidia{index}", *more))


def _harmless(path: str) -> CharDevice:
    return CharDevice(path, _MAJOR, _MINOR)
