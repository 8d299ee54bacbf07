"""
What a CDI file does to a container (tags.cncf.io/container-device-interface): the driver's `CommonEdits`, and the
device nodes of a node's `DeviceNodes`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Protocol

from sluice.contracts.ids import GpuUuid

Edits = Mapping[str, Any]


class CdiError(Exception):
    """A device cannot be described, or the driver's part cannot be had. One sentence with the remedy."""


@dataclass(frozen=True, slots=True)
class CharDevice:
    """A character device; it need not exist on the node."""

    path: str
    major: int
    minor: int

    @property
    def node(self) -> dict[str, Any]:
        """As an entry of `deviceNodes`."""
        return {"path": self.path, "type": "c", "major": self.major, "minor": self.minor, "permissions": "rw"}


@dataclass(frozen=True, slots=True)
class CommonEdits:
    """A driver's part, and the version of the CDI specification that it was written for; empty for the lowest."""

    edits: Edits = field(default_factory=dict)
    version: str = ""


class DeviceNodes(Protocol):
    """Describes the devices of one node. Calls block and raise CdiError, DeviceError."""

    def common(self) -> CommonEdits:
        """The driver's part, kept while its version is the same."""

    def of(self, gpu: GpuUuid, gi_id: int | None) -> tuple[CharDevice, ...]:
        """The device nodes of a GPU instance, or of a whole GPU."""


@dataclass(frozen=True, slots=True)
class RootChange:
    """Where a driver's files are: `seen` is their root here, `node` the same directory for the container runtime."""

    seen: PurePosixPath
    node: PurePosixPath

    def path(self, path: str) -> str:
        """A path on the node."""
        inside = PurePosixPath(path)
        if self.seen == self.node or not inside.is_relative_to(self.seen):
            return path
        return str(self.node / inside.relative_to(self.seen))

    def edits(self, edits: Edits) -> dict[str, Any]:
        """The same with the paths of the node."""
        changed = dict(edits)
        if "mounts" in edits:
            changed["mounts"] = [{**mount, "hostPath": self.path(mount["hostPath"])} for mount in edits["mounts"]]
        if "hooks" in edits:
            changed["hooks"] = [{**hook, "path": self.path(hook["path"])} for hook in edits["hooks"]]
        if "deviceNodes" in edits:
            changed["deviceNodes"] = [self._node(node) for node in edits["deviceNodes"]]
        return changed

    def _node(self, node: Mapping[str, Any]) -> dict[str, Any]:
        here = str(node.get("hostPath") or node["path"])
        there = self.path(here)
        return {**node, "hostPath": there} if there != here or "hostPath" in node else dict(node)


def why_no_edits(edits: object) -> str:
    """Why this is no `containerEdits` object; empty when it is one."""
    if not isinstance(edits, Mapping):
        return "containerEdits is no object"
    wanted: dict[str, Sequence[str]] = {
        "mounts": ("hostPath", "containerPath"),
        "hooks": ("hookName", "path"),
        "deviceNodes": ("path",),
    }
    for name, keys in wanted.items():
        entries = edits.get(name, [])
        if not isinstance(entries, list) or any(_lacks(entry, keys) for entry in entries):
            return f"containerEdits.{name} is no list of objects with {' and '.join(keys)}"
    env = edits.get("env", [])
    if not isinstance(env, list) or any(not isinstance(each, str) or each.find("=") < 1 for each in env):
        return "containerEdits.env is no list of NAME=VALUE"
    return ""


def version_of(parts: Sequence[Edits], *, kind: str, names: Sequence[str], at_least: str = "") -> str:
    """The lowest `cdiVersion` with all that a file uses (specs-go, version.go)."""
    needed = [_as_numbers(at_least), (0, 3, 0)]
    needed += [(0, 6, 0)] if "." in kind.partition("/")[2] else []
    needed += [(0, 5, 0)] if any(name[:1].isdecimal() for name in names) else []
    needed += [number for part in parts for number in _needed_by(part)]
    return ".".join(map(str, max(needed)))


def _needed_by(edits: Edits) -> Iterator[tuple[int, ...]]:
    rdt = edits.get("intelRdt") or {}
    if edits.get("netDevices") or "schemata" in rdt or rdt.get("enableMonitoring"):
        yield 1, 1, 0
    if rdt or edits.get("additionalGids"):
        yield 0, 7, 0
    if any("hostPath" in node for node in edits.get("deviceNodes", ())):
        yield 0, 5, 0
    if any("type" in mount for mount in edits.get("mounts", ())):
        yield 0, 4, 0


def _as_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.removeprefix("v").split(".") if part.isdecimal())


def _lacks(entry: object, keys: Sequence[str]) -> bool:
    return not isinstance(entry, Mapping) or any(not isinstance(entry.get(key), str) or not entry[key] for key in keys)
