"""One directory per pod, shown in the pod's volume: the agent creates tickets in it, the driver mounts it. Both change
it, so every change takes one file lock. A directory is removed when neither a ticket nor a mount needs it. Nothing
survives a reboot: an old ticket would let a container start with a device that is gone."""

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from sluice_node_agent.csi.kubelet_paths import Target, is_pod_uid
from sluice_node_agent.device import mounts
from sluice_node_agent.device.mounts import remove_views
from sluice_node_agent.device.opened_files import opened

DIRECTORY_MODE = 0o711
"""A container's user can pass, and finds no name that it does not know."""
_ROOT_MODE = 0o700
_LOCK_S = 10.0
"""The longest wait for the lock: its holder creates or removes a few directories and mounts, in milliseconds."""
_LOOK_S = 0.005
_LOCK, _BOOT, _PUBLISHED, _SEALED, _ASIDE, _MARKS = ".lock", ".boot", ".published", ".sealed", ".aside", ".marks"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class PodDirectories:
    """The directories of all pods of one node. Calls block briefly and raise OSError."""

    def __init__(self, root: Path, *, boot_id: Path = _BOOT_ID) -> None:
        """Keep them in `root`; `boot_id` is the file with the boot's id (proc(5), /proc/sys/kernel/random)."""
        self.root = root
        self._boot_id = boot_id
        self._is_prepared = False
        self.was_shared = True
        self.problem = ""
        """Why volumes cannot be served now; empty when they can."""

    def prepare(self) -> None:
        """Open the root and create its sealed view, once. Raises OSError, with `problem`; call it again then."""
        if self._is_prepared:
            return
        try:
            self.open()
            with self.locked():
                self.was_shared = self.show_sealed()
        except OSError as error:
            self.problem = f"the pods' directories cannot be kept in {self.root}: {error}; see docs/csi.md"
            raise
        self._is_prepared = True
        self.problem = ""

    def open(self) -> None:
        """Create the root, and remove what a reboot left in it."""
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

    def sealed(self, uid: str) -> Path:
        return self.view / uid

    @property
    def view(self) -> Path:
        """The sealed view of the root, a mount."""
        return self.root / _SEALED

    @property
    def marks(self) -> Path:
        """For the agent's ownership marks: they end with the boot, as tickets do."""
        return self.root / _MARKS

    @property
    def aside(self) -> Path:
        return self.root / _ASIDE

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of all changes; makes a removed root again. Raises OSError (ETIMEDOUT) when it stays taken."""
        self.root.mkdir(mode=_ROOT_MODE, parents=True, exist_ok=True)
        with opened(self.root / _LOCK, os.O_RDWR | os.O_CREAT) as descriptor:  # closing it also unlocks
            _lock(descriptor, self.root / _LOCK)
            yield

    def make(self, uid: str) -> Path:
        if not is_pod_uid(uid):
            raise OSError(errno.EINVAL, f"{uid!r} is no pod's UID")
        place = self.root / uid
        with contextlib.suppress(FileExistsError):
            place.mkdir()
            place.chmod(DIRECTORY_MODE)  # regardless of the umask
        return place

    def all(self) -> list[Path]:
        if not self.root.is_dir():
            return []
        return sorted(path for path in self.root.iterdir() if is_pod_uid(path.name))

    def note_published(self, target: Target) -> None:
        """A volume may show the pod's directory from now on."""
        (self.root / _PUBLISHED).mkdir(mode=_ROOT_MODE, exist_ok=True)
        (self.root / _PUBLISHED / _note(target)).touch(mode=0o600)

    def note_unpublished(self, target: Target) -> None:
        """This volume no longer shows it."""
        (self.root / _PUBLISHED / _note(target)).unlink(missing_ok=True)

    def is_published(self, uid: str) -> bool:
        """Whether a volume may show the pod's directory. It must then stay: a new one would not appear there."""
        notes = self.root / _PUBLISHED
        return notes.is_dir() and any(note.name.startswith(f"{uid}.") for note in notes.iterdir())

    def release(self, uid: str) -> None:
        """Remove a pod's directory, if it is empty and no volume shows it."""
        if self.is_published(uid):
            return
        try:
            (self.root / uid).rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise

    def show_sealed(self) -> bool:
        """Create or restore the sealed view of the root that volumes are parts of. Returns whether the root was on a
        shared mount: a mount in a pod's directory must appear in its volume, so a private root is bound onto itself."""
        was_shared = mounts.is_shared(self.root)
        if not was_shared:
            mounts.bind(self.root, self.root)
            mounts.share(self.root)
        sealed = self.view
        sealed.mkdir(mode=_ROOT_MODE, exist_ok=True)
        if not mounts.is_mounted(sealed) or not sealed.samefile(self.root):
            mounts.detach_all(sealed)
            mounts.bind(self.root, sealed)
        mounts.seal(sealed)  # on the node it still has the flags from before
        return was_shared

    def _known_boot(self) -> str:
        try:
            return (self.root / _BOOT).read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return ""

    def _clear(self) -> None:
        """Remove files of another boot. No mount survives a reboot; if there is one, nothing is removed."""
        for directory in self.all():
            remove_views(directory)
            if found := mounts.mounted_below(directory):
                raise OSError(errno.EBUSY, f"something is mounted at {found[0]}, so nothing was removed")
            shutil.rmtree(directory)  # unlinks links, and follows none
        if (self.root / _PUBLISHED).exists():
            shutil.rmtree(self.root / _PUBLISHED)


def _note(target: Target) -> str:
    """The note's name; neither part contains a dot."""
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
