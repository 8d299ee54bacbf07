"""The device nodes of a real GPU and its instances, and the driver's part of a CDI file (`nvidia-ctk cdi generate`). A
MIG device is opened through its GPU's file and the capability files of its two instances;
/proc/driver/nvidia/capabilities has their minor numbers (NVIDIA MIG User Guide, "Device Nodes and Capabilities"). Of
the toolkit's file only the common edits are used, which are the same for all GPUs of a driver."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import msgspec

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.ids import GpuUuid
from sluice.contracts.reasons import shorten
from sluice_node_agent.device.processes import communicate

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
        inside = PurePosixPath(path)
        if self.seen == self.node or not inside.is_relative_to(self.seen):
            return path
        return str(self.node / inside.relative_to(self.seen))

    def edits(self, edits: Edits) -> dict[str, Any]:
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
    least = tuple(int(part) for part in at_least.removeprefix("v").split(".") if part.isdecimal())
    needed = [least, (0, 3, 0)]
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


def _lacks(entry: object, keys: Sequence[str]) -> bool:
    return not isinstance(entry, Mapping) or any(not isinstance(entry.get(key), str) or not entry[key] for key in keys)


FLOOR = (1, 19, 0)
"""The first version with `--device-id` and `--no-all-device` (NVIDIA/nvidia-container-toolkit)."""
FLOOR_TEXT = ".".join(map(str, FLOOR))
_GENERATE_S = 30.0
"""It looks for all libraries of the driver: a few seconds on a busy node."""
_ANSWER_S = 5.0
_BYTES_MAX = 4 * 1024 * 1024
"""A generated file has some 30 KiB."""
_WHY_MAX = 300
_VERSION = re.compile(r"\bversion v?(\d+)\.(\d+)\.(\d+)")


class ContainerToolkit:
    """NVIDIA's container toolkit on this node. Calls block and raise CdiError."""

    def __init__(self, program: Path | None, *, root: RootChange, hook: str = "") -> None:
        """`program` is `nvidia-ctk`, or None; `root` the driver's; `hook` the node's `nvidia-cdi-hook`, or empty."""
        self._program = program
        self._root = root
        self._hook = hook
        self._kept: tuple[str, CommonEdits] | None = None
        """With the driver's version."""

    def common(self, driver_version: str, any_gpu: Callable[[], GpuUuid | None]) -> CommonEdits:
        """The common edits of this driver, generated for one of its GPUs that answers."""
        if self._kept is None or self._kept[0] != driver_version:
            self.check()
            gpu = any_gpu()
            if gpu is None:
                raise CdiError("no GPU of this node answers, so the driver cannot be described")
            self._kept = driver_version, self._generate(gpu)
        return self._kept[1]

    def check(self) -> None:
        if self._program is None:
            raise CdiError(
                f"nvidia-ctk is not found; install the NVIDIA container toolkit, {FLOOR_TEXT} or later, or set "
                "SLUICE_NODE_AGENT_NVIDIA_CTK to its path"
            )
        said = self._run("--version", timeout_s=_ANSWER_S)
        found = _VERSION.search(said)
        if found is None:
            raise CdiError(f"{self._program} --version does not say its version, but {shorten(said, _WHY_MAX)!r}")
        if tuple(map(int, found.groups())) < FLOOR:
            raise CdiError(
                f"NVIDIA container toolkit {'.'.join(found.groups())} cannot describe single devices; install "
                f"{FLOOR_TEXT} or later"
            )

    def _generate(self, gpu: GpuUuid) -> CommonEdits:
        words = [
            *("cdi", "generate", "--format", "json", "--mode", "nvml"),
            *("--device-id", gpu, "--no-all-device", "--device-name-strategy", "uuid"),
        ]
        if self._root.seen != PurePosixPath("/"):
            words += ["--driver-root", str(self._root.seen)]
        if self._hook:
            words += ["--nvidia-cdi-hook-path", self._hook]
        said = self._run(*words, timeout_s=_GENERATE_S)
        try:
            spec: Any = msgspec.json.decode(said[said.find("{") : said.rfind("}") + 1])  # beside its log
        except NOT_READABLE as error:
            raise CdiError(f"nvidia-ctk cdi generate wrote no JSON: {shorten(said, _WHY_MAX)!r}") from error
        edits: Any = spec.get("containerEdits") if isinstance(spec, dict) else None
        if why := why_no_edits(edits):
            raise CdiError(f"nvidia-ctk cdi generate wrote something else than a CDI file: {why}")
        return CommonEdits(self._root.edits(edits), str(spec.get("cdiVersion", "")))

    def _run(self, *words: str, timeout_s: float) -> str:
        assert self._program is not None
        try:
            code, said = communicate((self._program, *words), b"", dict(os.environ), timeout_s, bytes_max=_BYTES_MAX)
        except TimeoutError:
            raise CdiError(f"{self._program} {words[0]} does not end within {timeout_s:g} s") from None
        except OSError as error:
            raise CdiError(f"{self._program} cannot be run: {error.strerror}") from error
        text = said.decode("utf-8", "replace")
        if code != 0:
            why = shorten(text.strip().rpartition("\n")[2], _WHY_MAX)
            raise CdiError(f"{self._program} {' '.join(words[:2])} failed ({code}): {why}")
        return text


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
        """`any_gpu`: one that answers, or None. `root` has the machine's proc and sys; `host` the same as the node's
        first process sees it: NVIDIA's runtime shows a container only the capabilities that existed when it was
        started."""
        self._files_of = files_of
        self._any_gpu = any_gpu
        self._driver_version = driver_version
        self._toolkit = toolkit
        self._root = root
        self._host = host

    def common(self) -> CommonEdits:
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
