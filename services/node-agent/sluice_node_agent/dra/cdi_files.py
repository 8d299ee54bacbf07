"""The CDI files of a node's claims, one each, renamed into place and not synced: it is a memory disk."""

import os
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from sluice.contracts.dra.names import CDI_KIND, cdi_device
from sluice.contracts.kube import names as kube_names
from sluice.contracts.messages import ContainerDevices
from sluice.contracts.ticket_paths import pipe_directory_in, quota_library_in, quota_socket_in, ticket_of
from sluice_node_agent.core.events import CdiCompared, CdiRefused, CdiRemoved, CdiWritten
from sluice_node_agent.core.instructions import CdiDevice, CdiInstruction, CompareCdi, RemoveCdi, WriteCdi
from sluice_node_agent.device.nvidia_nodes import CdiError, CharDevice, CommonEdits, DeviceNodes, version_of
from sluice_node_agent.device.port import DeviceError

_OWN_MOUNT = ("ro", "nosuid", "nodev", "bind")
"""Programs in it may run: the time quota's library is loaded from there."""
CLAIMS_PATH = "/run/sluice/claims"
SHM = "/dev/shm"  # noqa: S108 - where programs have their shared memory
_SHARED_MEMORY = ("rw", "nosuid", "nodev", "noexec", "bind")


@dataclass(frozen=True, slots=True)
class HandedOver:
    """One device of a CDI file. `shared_memory` is the daemon's on the node; empty for none."""

    name: str
    container: ContainerDevices
    nodes: tuple[CharDevice, ...]
    shared_memory: str = ""
    ticket: str = ""


def cdi_spec(claim: str, devices: Sequence[HandedOver], common: CommonEdits, mark: str = "") -> dict[str, Any]:
    """The CDI file of the claim with this UID, as JSON. `mark` is its own path where several pods use the claim:
    mounted into each container, it shows whose processes are there (`Processes.with_mounted`)."""
    prefix = f"{CDI_KIND}="
    names = [cdi_device(claim, device.name).removeprefix(prefix) for device in devices]
    own = [_edits(device) for device in devices]
    shared = {**common.edits, "env": _with_void(common.edits.get("env", ()))}
    if mark:
        mount = _mount(mark, f"{CLAIMS_PATH}/{claim}.json", ("ro", "nosuid", "nodev", "noexec", "bind"))
        shared["mounts"] = [*common.edits.get("mounts", ()), mount]
    return {
        "cdiVersion": version_of((shared, *own), kind=CDI_KIND, names=names, at_least=common.version),
        "kind": CDI_KIND,
        "devices": [{"name": name, "containerEdits": edits} for name, edits in zip(names, own, strict=True)],
        "containerEdits": shared,
    }


def _edits(device: HandedOver) -> dict[str, Any]:
    edits: dict[str, Any] = {"deviceNodes": [node.node for node in dict.fromkeys(device.nodes)]}
    environment = _environment(device.container, device.ticket)
    if environment:
        edits["env"] = [f"{name}={value}" for name, value in environment.items()]
    mounts = list(_mounts(device))
    if mounts:
        edits["mounts"] = mounts
    return edits


def _environment(container: ContainerDevices, ticket: str) -> Mapping[str, str]:
    if not container.mps_pipe_directory:
        return {}
    told = {
        kube_names.ENV_MPS_PIPE_DIRECTORY: pipe_directory_in(container),
        kube_names.ENV_ACTIVE_THREAD_PERCENTAGE: str(container.active_thread_percentage or ""),
        kube_names.ENV_PINNED_MEMORY_LIMIT: container.pinned_memory_limit,
        kube_names.ENV_QUOTA_SOCKET: quota_socket_in(container),
        kube_names.ENV_PRELOAD: quota_library_in(container),
        kube_names.ENV_TICKET: ticket and ticket_of(ticket, container),
    }
    return {name: value for name, value in told.items() if value}


def _mounts(device: HandedOver) -> Iterable[dict[str, Any]]:
    """The daemon's home as a whole: a daemon that starts again makes a new pipe directory."""
    pipe = device.container.mps_pipe_directory
    if pipe:
        yield _mount(pipe.rpartition("/")[0], kube_names.MOUNT_PATH, _OWN_MOUNT)
    if pipe and device.shared_memory:
        yield _mount(device.shared_memory, SHM, _SHARED_MEMORY)


def _mount(source: str, place: str, options: Sequence[str]) -> dict[str, Any]:
    return {"hostPath": source, "containerPath": place, "options": list(options)}


def _with_void(environment: Iterable[str]) -> list[str]:
    """NVIDIA's runtime, where it is the default, adds nothing to what is described here."""
    others = [each for each in environment if each.partition("=")[0] != kube_names.ENV_VISIBLE_DEVICES]
    return [f"{kube_names.ENV_VISIBLE_DEVICES}={kube_names.NO_DEVICES}", *others]


_CLAIM = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9-]{0,62}")
"""The UID of an object, which becomes a part of the file's name."""
_PREFIX = f"{CDI_KIND.replace('/', '-')}_"
_SUFFIX = ".json"
_DRAFT_SUFFIX = ".draft"
_FILE_MODE = 0o644


def file_name(claim: str) -> str:
    return f"{_PREFIX}{claim}{_SUFFIX}"


class CdiFiles:
    """The CDI files of one node. Calls block briefly and raise OSError."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._drafting = threading.Lock()
        """Held while a draft of ours is there: threads write other claims' files meanwhile."""

    def prepare(self) -> None:
        """Make the directory, prove that files can be made there, and remove drafts of an agent that was killed."""
        self._make_directory()
        with self._drafting:
            for left in self._directory.glob(f"{_PREFIX}*{_DRAFT_SUFFIX}"):
                left.unlink(missing_ok=True)
        probe = self._directory / f"{_PREFIX}probe{_DRAFT_SUFFIX}"
        probe.write_bytes(b"")
        probe.unlink()

    def claims(self) -> tuple[str, ...]:
        names = (path.name for path in self._directory.glob(f"{_PREFIX}*{_SUFFIX}"))
        return tuple(sorted(name.removeprefix(_PREFIX).removesuffix(_SUFFIX) for name in names))

    def write(self, claim: str, spec: dict[str, Any]) -> None:
        """Put a claim's file in place, unless it is there as it should be."""
        if self.has(claim, spec):
            return
        place, content = self.path_of(claim), _pack(spec)
        self._make_directory()  # it may have been removed since
        draft = place.with_suffix(_DRAFT_SUFFIX)
        with self._drafting:
            draft.write_bytes(content)
            draft.chmod(_FILE_MODE)
            draft.rename(place)

    def has(self, claim: str, spec: dict[str, Any]) -> bool:
        return _read(self.path_of(claim)) == _pack(spec)

    def remove(self, claim: str) -> None:
        self.path_of(claim).unlink(missing_ok=True)

    def path_of(self, claim: str) -> Path:
        if not _CLAIM.fullmatch(claim):
            raise OSError(f"{claim[:80]!r} is no UID of a ResourceClaim")
        return self._directory / file_name(claim)

    def _make_directory(self) -> None:
        self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)


def _pack(spec: dict[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(spec), indent=1)


def _read(place: Path) -> bytes:
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


_SHM_FOLDER = "shm"
"""In a home of shares: the shared memory of its daemon, where it has one of its own."""


class ClaimFiles:
    """The CDI files of one node's claims. Calls block."""

    def __init__(self, files: CdiFiles, nodes: DeviceNodes) -> None:
        self._files = files
        self._nodes = nodes

    def claims(self) -> tuple[str, ...]:
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
        shared = Path(pipe).parent / _SHM_FOLDER if pipe else None
        is_there = shared is not None and shared.is_dir()
        return HandedOver(device.name, device.container, nodes, str(shared) if is_there else "", device.ticket)
