"""Mounts a pod's directory at its kubelet's target path. No link is followed, only our own empty directory removed."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from sluice.contracts.kube.names import VOLUME
from sluice_node_agent.csi.kubelet_paths import MOUNT, VOLUMES, Target, target_of
from sluice_node_agent.csi.pod_directories import PodDirectories
from sluice_node_agent.device import mounts
from sluice_node_agent.device.mounts import remove_views
from sluice_node_agent.device.opened_files import opened

_OPEN = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_INSIDE = _OPEN | os.O_NOFOLLOW


class Volumes:
    """The volumes of one node. Calls block briefly and raise OSError."""

    def __init__(self, kubelet_root: Path, sources: PodDirectories) -> None:
        self._root = kubelet_root
        self._sources = sources

    def publish(self, target: Target) -> bool:
        """Show the pod's directory at its target, sealed. Returns whether anything was done."""
        self._sources.prepare()
        with self._sources.locked(), self._parent(target) as parent:
            self._sources.note_published(target)
            source = self._sources.make(target.uid)
            with contextlib.suppress(FileExistsError):
                os.mkdir(MOUNT, mode=0o750, dir_fd=parent)
            if self._shows(parent, source):
                return False
            self._show(parent, target)
            return True

    def renew(self) -> tuple[Target, ...]:
        """Show the directory again in volumes whose source is gone, as a kubelet asks only once. Returns them."""
        self._sources.prepare()
        renewed = []
        for place in sorted(self._root.glob(f"pods/*/{'/'.join(VOLUMES)}/{VOLUME}/{MOUNT}")):
            target = target_of(str(place), self._root)
            if isinstance(target, Target) and self._renewed(target):
                renewed.append(target)
        return tuple(renewed)

    def unpublish(self, target: Target) -> bool:
        """Remove a volume. No process of the pod may be left. Returns whether there was one."""
        self._sources.prepare()
        with self._sources.locked():
            source = self._sources.root / target.uid
            if source.is_dir():
                remove_views(source)
            did = False
            with contextlib.suppress(FileNotFoundError), self._parent(target) as parent:
                mounts.detach_all(_target_in(parent))
                os.rmdir(MOUNT, dir_fd=parent)
                did = True
            self._sources.note_unpublished(target)
            self._sources.release(target.uid)
            return did

    @contextlib.contextmanager
    def _parent(self, target: Target) -> Iterator[int]:
        opened = os.open(self._root, _OPEN)
        try:
            for name in target.parents:
                deeper = os.open(name, _INSIDE, dir_fd=opened)
                os.close(opened)
                opened = deeper
            yield opened
        finally:
            os.close(opened)

    def _renewed(self, target: Target) -> bool:
        source = self._sources.root / target.uid
        with (
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            self._sources.locked(),
            self._parent(target) as parent,
        ):
            if not source.is_dir() or not mounts.is_mounted(_target_in(parent)) or self._shows(parent, source):
                return False
            self._sources.note_published(target)
            self._show(parent, target)
            return True
        return False

    def _show(self, parent: int, target: Target) -> None:
        mounts.detach_all(_target_in(parent))  # ours, or what is left of a directory that is gone
        self._sources.show_sealed()
        with opened(MOUNT, _INSIDE, dir_fd=parent) as here:
            mounts.bind(self._sources.sealed(target.uid), f"/proc/self/fd/{here}")

    def _shows(self, parent: int, source: Path) -> bool:
        if not mounts.is_mounted(_target_in(parent)):
            return False
        with opened(MOUNT, _INSIDE, dir_fd=parent) as here:
            return os.path.samestat(os.fstat(here), source.stat()) and mounts.is_sealed(here)


def _target_in(parent: int) -> Path:
    return Path(f"/proc/self/fd/{parent}/{MOUNT}")
