"""
Where a kubelet wants a volume, read from the path that it names. Pure.

A path that is not exactly of this shape is never touched: what is mounted and removed here is done by root.
"""

import re
from dataclasses import dataclass
from pathlib import PurePath

from sluice.contracts.kube.names import CSI_DRIVER

_UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")
"""A UUID, or the hash that a kubelet gives a static pod (kubernetes/kubernetes, pkg/kubelet/config/common.go)."""
_VOLUME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
"""A DNS label, as every volume's name."""
_SHOWN = 300
"""Characters of a wrong path that are told."""
VOLUMES = ("volumes", "kubernetes.io~csi")
"""Between a pod's directory and the volume's (a '/' in a plugin's name becomes '~')."""
MOUNT = "mount"
"""What the driver makes in the volume's directory."""


@dataclass(frozen=True, slots=True)
class Target:
    """`<kubelet root>/pods/<uid>/volumes/kubernetes.io~csi/<volume>/mount`."""

    uid: str
    """Of the pod."""
    volume: str

    @property
    def parents(self) -> tuple[str, ...]:
        """The directories below the kubelet's root down to the volume's own, which the kubelet makes."""
        return ("pods", self.uid, *VOLUMES, self.volume)


@dataclass(frozen=True, slots=True)
class NoTarget:
    """A path that is no place of a volume. `why` is one sentence."""

    why: str


def is_pod_uid(text: str) -> bool:
    """Whether `text` has the shape of a pod's UID, so that it may name a directory."""
    return _UID.fullmatch(text) is not None


def target_of(path: str, kubelet_root: PurePath, *, uid: str = "") -> Target | NoTarget:
    """
    The place that `path` names below the kubelet's root.

    `uid` is the pod's as the kubelet says it beside the path, empty when it did not.
    """
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
    """Where the driver is called."""
    return kubelet_root / "plugins" / CSI_DRIVER / "csi.sock"


def registration_path(kubelet_root: PurePath) -> PurePath:
    """Where the kubelet finds that there is a driver."""
    return kubelet_root / "plugins_registry" / f"{CSI_DRIVER}-reg.sock"
