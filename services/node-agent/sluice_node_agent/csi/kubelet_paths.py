"""Parses and builds a kubelet's volume paths. No other path is ever touched: root mounts and removes there."""

import re
from dataclasses import dataclass
from pathlib import PurePath

from sluice.contracts.kube.names import CSI_DRIVER
from sluice_node_agent.kubelet.sockets import plugin_path, registration_socket

_UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")
"""A UUID, or a kubelet's hash for a static pod (kubernetes/kubernetes, pkg/kubelet/config/common.go)."""
_VOLUME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
"""A DNS label, as every volume's name."""
_SHOWN = 300
VOLUMES = ("volumes", "kubernetes.io~csi")
"""Between a pod's directory and the volume's (a '/' in a plugin's name becomes '~')."""
MOUNT = "mount"
"""The mount point in the volume's directory."""


@dataclass(frozen=True, slots=True)
class Target:
    """`<kubelet root>/pods/<uid>/volumes/kubernetes.io~csi/<volume>/mount`."""

    uid: str
    volume: str

    @property
    def parents(self) -> tuple[str, ...]:
        """The directories from the kubelet's root down to the volume's own, which the kubelet creates."""
        return ("pods", self.uid, *VOLUMES, self.volume)


@dataclass(frozen=True, slots=True)
class NoTarget:
    """A path that is not a volume's. `why` is one sentence."""

    why: str


def is_pod_uid(text: str) -> bool:
    """Whether `text` has the form of a pod's UID, so that it may name a directory."""
    return _UID.fullmatch(text) is not None


def target_of(path: str, kubelet_root: PurePath, *, uid: str = "") -> Target | NoTarget:
    """Parse a target path below the kubelet's root. `uid` is the pod's from the request, or empty."""
    wanted = f"{kubelet_root}/pods/<uid>/{'/'.join(VOLUMES)}/<volume>/{MOUNT}"
    parts = path.removeprefix(f"{kubelet_root}/").split("/") if path.startswith(f"{kubelet_root}/") else []
    if len(parts) != 6 or (parts[0], *parts[2:4], parts[5]) != ("pods", *VOLUMES, MOUNT):
        return NoTarget(f"target_path is {path[:_SHOWN]!r}; it must be {wanted}")
    target = Target(parts[1], parts[4])
    if not is_pod_uid(target.uid):
        return NoTarget(f"target_path names the pod {target.uid[:_SHOWN]!r}, which is no pod's UID")
    if not _VOLUME.fullmatch(target.volume):
        return NoTarget(f"target_path names the volume {target.volume[:_SHOWN]!r}, which is no volume's name")
    if uid and uid != target.uid:
        return NoTarget(f"target_path is of pod {target.uid}, but the volume is said to be of pod {uid[:_SHOWN]!r}")
    return target


def socket_path(kubelet_root: PurePath) -> PurePath:
    """The driver's socket."""
    return plugin_path(kubelet_root, CSI_DRIVER) / "csi.sock"


def registration_path(kubelet_root: PurePath) -> PurePath:
    """The registration socket, where the kubelet finds the driver."""
    return registration_socket(kubelet_root, CSI_DRIVER)
