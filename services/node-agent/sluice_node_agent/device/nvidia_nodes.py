"""
The device nodes of a real GPU and its instances, for CDI files.

A MIG device is opened through its GPU's file and two capability files, of its GPU instance and its compute instance;
their minor numbers are in /proc/driver/nvidia/capabilities (NVIDIA MIG User Guide, "Device Nodes and Capabilities").
They need not exist on the node. A whole GPU has its DRM nodes too.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sluice.contracts.ids import GpuUuid
from sluice_node_agent.device.cdi_edits import CdiError, CharDevice, CommonEdits
from sluice_node_agent.device.container_toolkit import ContainerToolkit

_MINOR = re.compile(r"^DeviceFileMinor:\s*(\d+)\s*$", re.MULTILINE)
_MAJOR = re.compile(r"^\s*(\d+)\s+(\S+)$", re.MULTILINE)
_FRONTEND = ("nvidia", "nvidia-frontend")
"""The driver's names in /proc/devices; the second up to R525."""
_DRM_MAJOR = 226
"""Documentation/admin-guide/devices.txt of the kernel."""
_DRM_NODE = re.compile(r"(?:card|renderD)(\d+)")


@dataclass(frozen=True, slots=True)
class GpuFiles:
    """Where a GPU is: the minor number of its device file, and its PCI address as in /sys/bus/pci/devices."""

    minor: int
    pci: str = ""


class NvidiaNodes:
    """The GPUs of this machine (a `DeviceNodes`)."""

    def __init__(
        self,
        files_of: Callable[[GpuUuid], GpuFiles],
        any_gpu: Callable[[], GpuUuid | None],
        driver_version: str,
        toolkit: ContainerToolkit,
        *,
        root: Path = Path("/"),
        host: Path = Path("/proc/1/root"),
    ) -> None:
        """
        `any_gpu`: one that answers, None for none. `root` has the machine's proc and sys.

        `host` is the same as the node's first process sees it: NVIDIA's runtime shows a container only the capabilities
        that existed when it was started.
        """
        self._files_of = files_of
        self._any_gpu = any_gpu
        self._driver_version = driver_version
        self._toolkit = toolkit
        self._root = root
        self._host = host

    def common(self) -> CommonEdits:
        """From NVIDIA's container toolkit."""
        return self._toolkit.common(self._driver_version, self._any_gpu)

    def of(self, gpu: GpuUuid, gi_id: int | None) -> tuple[CharDevice, ...]:
        """The GPU's file with the capability files of one instance; or with the DRM nodes of a whole GPU."""
        files = self._files_of(gpu)
        whole = CharDevice(f"/dev/nvidia{files.minor}", self._major(*_FRONTEND), files.minor)
        more = self._drm_nodes(files.pci) if gi_id is None else self._capabilities(files.minor, gi_id)
        return (whole, *more)

    def _capabilities(self, minor: int, gi_id: int) -> tuple[CharDevice, ...]:
        """An instance of ours is filled by one compute instance."""
        name = f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{gi_id}"
        places = (root / name for root in (self._root, self._host))
        folder = next((place for place in places if os.path.isdir(place)), self._root / name)  # noqa: PTH112 - never raises
        inside = sorted(folder.glob("ci*/access"))
        if len(inside) != 1:
            raise CdiError(
                f"{folder} has {len(inside)} compute instances, not one; the agent must see the host's processes "
                "(hostPID: true, privileged), or its /proc/driver/nvidia/capabilities"
            )
        major = self._major("nvidia-caps")
        minors = [self._minor_in(folder / "access"), self._minor_in(inside[0])]
        return tuple(CharDevice(f"/dev/nvidia-caps/nvidia-cap{each}", major, each) for each in minors)

    def _drm_nodes(self, pci: str) -> tuple[CharDevice, ...]:
        """None where the GPU draws nothing."""
        folder = self._root / "sys/bus/pci/devices" / pci / "drm"
        try:
            names = sorted(entry.name for entry in folder.iterdir()) if pci else []
        except OSError:
            return ()
        found = ((name, _DRM_NODE.fullmatch(name)) for name in names)
        return tuple(CharDevice(f"/dev/dri/{name}", _DRM_MAJOR, int(at[1])) for name, at in found if at is not None)

    def _major(self, *names: str) -> int:
        text = self._read(self._root / "proc/devices")
        majors = {name: int(number) for number, name in _MAJOR.findall(text)}
        for name in names:
            if name in majors:
                return majors[name]
        raise CdiError(f"/proc/devices names no {names[0]}; load the NVIDIA driver (modprobe nvidia)")

    def _minor_in(self, path: Path) -> int:
        found = _MINOR.search(self._read(path))
        if found is None:
            raise CdiError(f"{path} names no minor number (DeviceFileMinor)")
        return int(found[1])

    def _read(self, path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise CdiError(f"{path} cannot be read: {error.strerror}") from error
