"""
One directory per pod, which is shown in the pod's volume: the agent makes tickets in it, the driver mounts it.

Two hands work here, perhaps of two processes, so every change is made under one file lock. A directory goes when
neither a ticket nor a mount needs it. Nothing here survives a reboot: a ticket of the boot before would let a container
start with a device that is gone, so if the file system kept anything it is removed before the driver is called.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from sluice_node_agent.csi import mounts
from sluice_node_agent.csi.kubelet_paths import Target, is_pod_uid
from sluice_node_agent.csi.mps_views import remove_views

DIRECTORY_MODE = 0o711
"""A container's user must get through; who does not know a name finds none."""
_ROOT_MODE = 0o700
_LOCK_S = 10.0
"""Who holds the lock makes or removes a few directories and mounts: some milliseconds."""
_LOOK_S = 0.005
_LOCK, _BOOT, _PUBLISHED, _SEALED, _ASIDE, _MARKS = ".lock", ".boot", ".published", ".sealed", ".aside", ".marks"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class PodDirectories:
    """The directories of all pods of one node. Calls block briefly and raise OSError."""

    def __init__(self, root: Path, *, boot_id: Path = _BOOT_ID) -> None:
        """Keep them in `root`; `boot_id` says which boot this is (proc(5), /proc/sys/kernel/random)."""
        self.root = root
        self._boot_id = boot_id

    def open(self) -> None:
        """Make the root, and remove what is left in it from before a reboot."""
        self.root.mkdir(mode=_ROOT_MODE, parents=True, exist_ok=True)
        self.root.chmod(_ROOT_MODE)
        with self.locked():
            boot, known = self._boot_id.read_text(encoding="ascii").strip(), self._known_boot()
            if known != boot:
                if not known and (strangers := [path.name for path in self.root.iterdir() if path.name[0] != "."]):
                    text = (
                        f"it holds {strangers[0]!r}, which is not ours; pods_dir must be a directory for Sluice alone"
                    )
                    raise OSError(errno.ENOTEMPTY, text, str(self.root))
                self._clear()
                draft = self.root / f"{_BOOT}.new"
                draft.write_text(f"{boot}\n", encoding="ascii")
                draft.replace(self.root / _BOOT)
            (self.root / _PUBLISHED).mkdir(mode=_ROOT_MODE, exist_ok=True)

    def prepare_mounts(self) -> bool:
        """
        Make the sealed view of the root of which volumes are parts. Whether the root was on a shared mount before.

        What is mounted in a pod's directory must appear in its volume. Where the root's mount is private (a container
        without mount propagation), it is shown upon itself and shared: that holds for this life of the container.
        """
        with self.locked():
            return self._show_sealed()

    def sealed(self, uid: str) -> Path:
        """The directory of a pod as its volume shall show it."""
        return self.root / _SEALED / uid

    @property
    def marks(self) -> Path:
        """For the agent's notes of what it makes on the GPUs: they end with the boot, as tickets do."""
        return self.root / _MARKS

    @property
    def aside(self) -> Path:
        """For mounts in the making."""
        return self.root / _ASIDE

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """
        Be the only one who changes anything. Raises OSError (ETIMEDOUT) when somebody else is for too long.

        What was here may have been removed since it was opened: a memory disk is emptied, or another mounted over it.
        """
        self.root.mkdir(mode=_ROOT_MODE, parents=True, exist_ok=True)
        descriptor = os.open(self.root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(descriptor, self.root / _LOCK)
            yield
        finally:
            os.close(descriptor)  # which also unlocks

    # -- under the lock -------------------------------------------------------------------------------------------

    def make(self, uid: str) -> Path:
        """The directory of a pod, made unless it is there."""
        if not is_pod_uid(uid):
            raise OSError(errno.EINVAL, f"{uid!r} is no pod's UID")
        place = self.root / uid
        with contextlib.suppress(FileExistsError):
            place.mkdir()
            place.chmod(DIRECTORY_MODE)  # whatever the umask says
        return place

    def all(self) -> list[Path]:
        """The directories of all pods."""
        if not self.root.is_dir():
            return []
        return sorted(path for path in self.root.iterdir() if is_pod_uid(path.name))

    def keep_sealed(self) -> None:
        """The sealed view is there, also where what it showed was removed or mounted over since."""
        self._show_sealed()

    def note_published(self, target: Target) -> None:
        """From now on a volume may show the pod's directory."""
        (self.root / _PUBLISHED).mkdir(mode=_ROOT_MODE, exist_ok=True)
        (self.root / _PUBLISHED / _note(target)).touch(mode=0o600)

    def note_unpublished(self, target: Target) -> None:
        """No volume shows it any more at this place."""
        (self.root / _PUBLISHED / _note(target)).unlink(missing_ok=True)

    def is_published(self, uid: str) -> bool:
        """Whether a volume may show the pod's directory. It must then stay: one made anew would not be seen there."""
        notes = self.root / _PUBLISHED
        return notes.is_dir() and any(note.name.startswith(f"{uid}.") for note in notes.iterdir())

    def release(self, uid: str) -> None:
        """Remove the directory of a pod, if nothing is in it and no volume shows it."""
        if self.is_published(uid):
            return
        try:
            (self.root / uid).rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise

    # -- inside ---------------------------------------------------------------------------------------------------

    def _show_sealed(self) -> bool:
        was_shared = mounts.is_shared(self.root)
        if not was_shared:
            mounts.bind(self.root, self.root)
            mounts.share(self.root)
        sealed = self.root / _SEALED
        sealed.mkdir(mode=_ROOT_MODE, exist_ok=True)
        if not mounts.is_mounted(sealed) or not sealed.samefile(self.root):
            mounts.detach_all(sealed)
            mounts.bind(self.root, sealed)
        mounts.seal(sealed)  # on a node it is as a container made it before it was sealed
        return was_shared

    def _known_boot(self) -> str:
        try:
            return (self.root / _BOOT).read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return ""

    def _clear(self) -> None:
        """Remove what is of another boot. No mount survived it; where one is there all the same nothing is removed."""
        for directory in self.all():
            remove_views(directory)
            if found := mounts.mounted_below(directory):
                raise OSError(errno.EBUSY, f"something is mounted at {found[0]}, so nothing was removed")
            shutil.rmtree(directory)  # unlinks links, and follows none
        if (self.root / _PUBLISHED).exists():
            shutil.rmtree(self.root / _PUBLISHED)


def _note(target: Target) -> str:
    """Neither part holds a dot."""
    return f"{target.uid}.{target.volume}"


def _lock(descriptor: int, path: Path) -> None:
    until = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > until:
                text = f"another process has held it for {_LOCK_S:g} s"
                raise OSError(errno.ETIMEDOUT, text, str(path)) from error
            time.sleep(_LOOK_S)
        else:
            return
