"""
Builds the CDI file of a claim. Pure.

Each request of the claim is a device of its own. Its edits are the driver's common ones, its device nodes, and for a
share the way to its daemon: what a ticket and its variables are where devices are not handed over by claims.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.contracts.dra.names import CDI_KIND, cdi_device
from sluice.contracts.kube.names import (
    ENV_ACTIVE_THREAD_PERCENTAGE,
    ENV_MPS_PIPE_DIRECTORY,
    ENV_PINNED_MEMORY_LIMIT,
    ENV_PRELOAD,
    ENV_QUOTA_SOCKET,
    ENV_VISIBLE_DEVICES,
    MOUNT_PATH,
    NO_DEVICES,
)
from sluice.contracts.messages import ContainerDevices
from sluice.contracts.ticket_paths import pipe_directory_in, quota_library_in, quota_socket_in
from sluice_node_agent.device.cdi_edits import CharDevice, CommonEdits, version_of

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


def cdi_spec(claim: str, devices: Sequence[HandedOver], common: CommonEdits, mark: str = "") -> dict[str, Any]:
    """
    The CDI file of the claim with this UID, as JSON.

    `mark` is its own path where several pods use the claim: mounted into each container, it shows whose processes are
    there (`Processes.with_mounted`).
    """
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
    environment = _environment(device.container)
    if environment:
        edits["env"] = [f"{name}={value}" for name, value in environment.items()]
    mounts = list(_mounts(device))
    if mounts:
        edits["mounts"] = mounts
    return edits


def _environment(container: ContainerDevices) -> Mapping[str, str]:
    """As the variables of a ticket's container; only what its mode uses."""
    if not container.mps_pipe_directory:
        return {}
    told = {
        ENV_MPS_PIPE_DIRECTORY: pipe_directory_in(container),
        ENV_ACTIVE_THREAD_PERCENTAGE: str(container.active_thread_percentage or ""),
        ENV_PINNED_MEMORY_LIMIT: container.pinned_memory_limit,
        ENV_QUOTA_SOCKET: quota_socket_in(container),
        ENV_PRELOAD: quota_library_in(container),
    }
    return {name: value for name, value in told.items() if value}


def _mounts(device: HandedOver) -> Iterable[dict[str, Any]]:
    """The daemon's home as a whole: a daemon that starts again makes a new pipe directory."""
    pipe = device.container.mps_pipe_directory
    if pipe:
        yield _mount(pipe.rpartition("/")[0], MOUNT_PATH, _OWN_MOUNT)
    if pipe and device.shared_memory:
        yield _mount(device.shared_memory, SHM, _SHARED_MEMORY)


def _mount(source: str, place: str, options: Sequence[str]) -> dict[str, Any]:
    return {"hostPath": source, "containerPath": place, "options": list(options)}


def _with_void(environment: Iterable[str]) -> list[str]:
    """NVIDIA's runtime, where it is the default, adds nothing to what is described here."""
    others = [each for each in environment if each.partition("=")[0] != ENV_VISIBLE_DEVICES]
    return [f"{ENV_VISIBLE_DEVICES}={NO_DEVICES}", *others]
