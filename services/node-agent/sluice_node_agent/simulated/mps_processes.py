# ruff: noqa: PTH110, PTH123 - as in `mps_program`
"""
The MPS stand-in's processes in the simulated hardware: added when they serve, removed when they end.

It writes the same file as `simulated.hardware_file`, through `hardware_lines`, with only the standard library, since
the stand-in starts too often to import more. It reads no more than processes and devices.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sluice_node_agent.simulated import hardware_lines


class ProcessEntries:
    """The hardware file of one node, for one MPS daemon; does nothing without a file."""

    def __init__(self, path: str, device: str) -> None:
        """`device` is the daemon's visible device: the UUID of a GPU or of a MIG device."""
        self._path = path
        self._device = device

    def has_device(self) -> bool:
        """Whether a server could have a context on the device; True without a hardware file."""
        if not self._path:
            return True
        try:
            return _gpu_of(json.loads(hardware_lines.last_line(self._path)), self._device) is not None
        except (OSError, ValueError):
            return False

    def enter(self, pid: int, *, owner: str, name: str, kind: str) -> None:
        """A process is on the device from now on."""
        with self._changing() as hardware:
            gpu = _gpu_of(hardware, self._device)
            if gpu is not None:
                gpu["processes"] = [known for known in gpu["processes"] if known["pid"] != pid]
                gpu["processes"].append(
                    {"pid": pid, "owner": owner, "device": self._device, "name": name, "kind": kind, "real": True}
                    | {"started_at": _started_at(pid)}
                )

    def remove(self, pids: set[int]) -> None:
        """These processes are not on the device any more."""
        if not pids:
            return
        with self._changing() as hardware:
            for gpu in hardware["gpus"]:
                gpu["processes"] = [
                    known for known in gpu["processes"] if known["pid"] not in pids or known["device"] != self._device
                ]

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        """The hardware, to be changed. A file that is gone (its node was removed) stays gone."""
        if not self._path or not os.path.exists(self._path):
            yield {"gpus": []}
            return
        with hardware_lines.locked(self._path):
            hardware = json.loads(hardware_lines.last_line(self._path))
            yield hardware
            hardware_lines.add_line(self._path, json.dumps(hardware).encode())


def _gpu_of(hardware: dict[str, Any], device: str) -> dict[str, Any] | None:
    """The GPU that is this device, or contains it as a MIG device."""
    for gpu in hardware["gpus"]:
        uuids = {instance.get("uuid") for instance in gpu.get("instances", [])}
        if not gpu.get("lost") and device and (device == gpu["uuid"] or device in uuids):
            gpu.setdefault("processes", [])
            found: dict[str, Any] = gpu
            return found
    return None


def _started_at(pid: int) -> int:
    """Field 22 of /proc/<pid>/stat; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError):
        return 0
