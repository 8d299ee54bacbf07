"""Removes what agent and CSI driver keep on a node outside their data directory, after both have ended for good. What
may still be in use stays, and is named."""

import errno
import os
import shutil
import socket
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from sluice.contracts.dra.names import DRIVER
from sluice.contracts.kube.names import CSI_DRIVER
from sluice_node_agent.csi.pod_directories import PodDirectories
from sluice_node_agent.device import mounts
from sluice_node_agent.kubelet.sockets import claims_socket, registration_socket, volumes_socket

_OWN_FOLDER = "sluice"
"""The folder that holds only ours (`/run/sluice`) goes too; any other parent is the administrator's."""


def clean_node(pods_dir: Path, mps_dir: Path, kubelet_root: Path, claims: Collection[str] = ()) -> list[str]:
    """Remove directories, mounts and sockets. Returns one sentence per thing that stays. `claims`: UIDs of the
    ResourceClaims with a CDI file. Blocks; raises OSError where something could not be removed."""
    registry, own = registration_socket(kubelet_root, CSI_DRIVER), volumes_socket(kubelet_root)
    kept = [*_sockets(registry, own), *_claims(kubelet_root, claims), *_pods(pods_dir), *_mps(mps_dir)]
    if not kept and pods_dir.parent.name == _OWN_FOLDER:
        _remove_empty(pods_dir.parent)
    return kept


def _claims(kubelet_root: Path, claims: Collection[str]) -> Iterator[str]:
    if claims:
        yield (
            f"pods on this node have {len(claims)} ResourceClaims of Sluice, such as the one with UID {min(claims)}: "
            "they cannot end without the agent; delete them first"
        )
        return
    yield from _sockets(registration_socket(kubelet_root, DRIVER), claims_socket(kubelet_root))


def _sockets(registry: Path, own: Path) -> Iterator[str]:
    """Remove the sockets of a driver: its registration, and its own."""
    for path in (registry, own):  # a kubelet that finds the registration calls the driver
        if _listens(path):
            yield f"a driver still answers at {path}: stop it, and clean the node again"
            return
    drafts = [*registry.parent.glob(f".{registry.name}.*"), *own.parent.glob(f".{own.name}.*")]
    for path in (registry, own, *drafts):
        if _is_socket(path):
            path.unlink(missing_ok=True)
    if not _remove_empty(own.parent):
        yield f"{own.parent} holds files that are not Sluice's"


def _pods(root: Path) -> Iterator[str]:
    if not root.is_dir():
        return
    directories = PodDirectories(root)
    with directories.locked():
        if found := directories.all():
            yield f"{root} holds the slices of {len(found)} pods, such as {found[0].name}"
            return
        for place in (directories.view, directories.aside):
            if place.is_dir():
                mounts.detach_all(place)
        if mounts.is_mounted(root):  # a driver outside a container made it one
            mounts.detach_all(root)
        if found_mounts := mounts.mounted_below(root):
            yield f"something is mounted at {found_mounts[0]}"
            return
        shutil.rmtree(root)  # follows no links


def _mps(directory: Path) -> Iterator[str]:
    """Remove the folder of each node's homes, where no home is left in it."""
    for of_node in directory.iterdir() if directory.is_dir() else ():
        if of_node.is_dir():
            _remove_empty(of_node)
    if not _remove_empty(directory):
        yield f"{directory} holds the files of MPS daemons, which may run"


def _remove_empty(directory: Path) -> bool:
    """Whether it is gone now."""
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        return False
    return True


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _listens(path: Path) -> bool:
    if not _is_socket(path):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        return client.connect_ex(os.fspath(path)) == 0
