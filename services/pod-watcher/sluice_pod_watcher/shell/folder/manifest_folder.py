"""List the folder of manifests on disk, and hint when it changes. Read-only. A listing is all or nothing. A folder that
cannot be listed, or is over a limit, is reported as an error: a partial listing would end the pods that it lacks."""

import asyncio
import ctypes
import fcntl
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from sluice.contracts.manifests import is_leased
from sluice.runtime import errors, logs
from sluice.runtime.clock import Clock
from sluice.runtime.text_files import NotTextError, TooLargeError, open_to_read, read_text
from sluice_pod_watcher.core.folder.events import FolderListed, FolderUnlistable, ManifestFile

SUFFIXES = (".yaml", ".yml", ".json")
FILES_MAX = 10_000  # A folder with more files is not listed. A thousand pods in a thousand files is a large folder.
TOTAL_BYTES_MAX = 64 * 1024 * 1024  # of all texts together; they stay in memory
SETTLED_S = 2.0
"""A file that was written longer ago than this and looks the same is unchanged: file times are not more exact."""
LOOK_S = 1.0  # how often it is looked for what the kernel does not tell: a released lock, another folder at this path
_CHANGES = 0x3CE  # IN_MODIFY, IN_ATTRIB, IN_CLOSE_WRITE, IN_MOVE, IN_CREATE, IN_DELETE
STEP_S, DEBOUNCE_S = 0.005, 0.05  # changes closer together than STEP_S are one hint, after DEBOUNCE_S at the latest

Signature = tuple[int, int, int, int, int]


def is_manifest(name: str) -> bool:
    """Whether a file is read: by its extension, and not hidden (editors and `ConfigMap` mounts keep hidden files)."""
    return name.endswith(SUFFIXES) and not name.startswith(".")


def is_locked(descriptor: int) -> bool:
    """Whether another process holds the lock (flock) of an open file. Raises OSError where a file cannot be locked. The
    kernel releases it when the last process that holds it ends, even if killed (flock(2))."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def _signature(found: os.stat_result) -> Signature:
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _signature_at(path: str) -> Signature | None:
    try:
        return _signature(os.stat(path))  # noqa: PTH116  # see where it is called
    except OSError:
        return None


@contextmanager
def _changes_of(folder: Path) -> Iterator[asyncio.Event]:
    """Set when something in the folder changes, as the kernel says (inotify(7)). Raises OSError where it does not."""
    libc, loop, changed = ctypes.CDLL(None, use_errno=True), asyncio.get_running_loop(), asyncio.Event()

    def hear() -> None:
        os.read(descriptor, 65_536)
        changed.set()

    descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "no inotify")
    try:
        if libc.inotify_add_watch(descriptor, os.fsencode(folder), _CHANGES) < 0:
            raise OSError(ctypes.get_errno(), "no inotify watch")
        loop.add_reader(descriptor, hear)
        yield changed
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def _has_settled(changed: asyncio.Event) -> bool:
    """Whether something changed within LOOK_S; changes that follow closely are waited for."""
    with suppress(TimeoutError):
        await asyncio.wait_for(changed.wait(), LOOK_S)
    happened, until = changed.is_set(), time.monotonic() + DEBOUNCE_S
    while changed.is_set() and time.monotonic() < until:
        changed.clear()
        await asyncio.sleep(STEP_S)
    return happened


@dataclass(slots=True)
class ManifestFolder:
    """One folder. `bytes_max` is the limit of one file. Call its methods from one task at a time."""

    path: Path
    clock: Clock
    bytes_max: int
    _known: dict[str, tuple[Signature, ManifestFile]] = field(default_factory=dict)
    _held: tuple[str, ...] = ()  # the leased manifests that were locked at the last listing

    def check(self) -> None:
        """Raises ServiceError when the folder does not exist, or cannot be listed."""
        listed = self._list()
        if isinstance(listed, FolderUnlistable):
            raise errors.ServiceError(f"{listed.why} (SLUICE_POD_WATCHER_PODS_DIR names the folder of Pod manifests)")

    async def list(self) -> FolderListed | FolderUnlistable:
        return await asyncio.to_thread(self._list)

    async def changes(self) -> AsyncIterator[None]:
        """Yields after a change, if the file system reports it. Never ends, even while the folder is gone."""
        log = logs.get("folder", folder=str(self.path))
        warned = False
        while True:
            watched = self._identity()
            try:
                if watched is not None:
                    with _changes_of(self.path) as changed:
                        yield  # it may have changed just before
                        while self._identity() == watched:
                            if await _has_settled(changed) or (self._held and await asyncio.to_thread(self._is_let_go)):
                                yield
            except OSError as error:  # no inotify, or no watches left: the timer still lists
                if not warned:
                    log.warning("file system events are unavailable: changes are found by listing only", why=str(error))
                    warned = True
            await self.clock.sleep(1.0)
            yield

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return (found.st_dev, found.st_ino)

    def _is_let_go(self) -> bool:
        return any(not self._is_held(name) for name in self._held)

    def _is_held(self, name: str) -> bool:
        try:
            descriptor = open_to_read(self.path / name)
        except OSError:
            return False
        try:
            return is_locked(descriptor)
        finally:
            os.close(descriptor)

    def _list(self) -> FolderListed | FolderUnlistable:
        try:
            names = sorted(name for name in os.listdir(self.path) if is_manifest(name))  # noqa: PTH208  # names alone
        except OSError as error:
            return FolderUnlistable(f"the folder {self.path} cannot be listed: {error.strerror or error}")
        if len(names) > FILES_MAX:
            return FolderUnlistable(f"the folder {self.path} holds {len(names)} manifests, the limit is {FILES_MAX}")
        known: dict[str, tuple[Signature, ManifestFile]] = {}
        files: list[ManifestFile] = []
        total_bytes = 0
        for name in names:
            file = self._file(name, known)
            if file is not None:
                files.append(file)
                total_bytes += len(file.text)
            if total_bytes > TOTAL_BYTES_MAX:
                return FolderUnlistable(f"the manifests in {self.path} are together over {TOTAL_BYTES_MAX} bytes")
        self._known = known
        self._held = tuple(file.name for file in files if is_leased(file.name))
        return FolderListed(tuple(files))

    def _file(self, name: str, known: dict[str, tuple[Signature, ManifestFile]]) -> ManifestFile | None:
        before = self._known.get(name)
        path = f"{self.path}/{name}"  # a Path would cost as much as the stat
        if before is not None and not is_leased(name) and _signature_at(path) == before[0]:
            known[name] = before  # not opened: that costs four times as much, and a folder may hold thousands
            return before[1]
        shown = os.fsencode(name).decode("utf-8", "backslashreplace")
        try:
            descriptor = open_to_read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            return ManifestFile(shown, error=error.strerror or str(error))
        try:
            if is_leased(name) and not is_locked(descriptor):
                return None  # its process has ended
            found = os.fstat(descriptor)
            signature = _signature(found)
            if before is not None and before[0] == signature:
                known[name] = before
                return before[1]
            file = self._read(shown, descriptor, found.st_mode)
        except OSError as error:
            return ManifestFile(shown, error=error.strerror or str(error))
        finally:
            os.close(descriptor)
        if self.clock.utc().timestamp() - max(found.st_mtime, found.st_ctime) > SETTLED_S:
            known[name] = (signature, file)
        return file

    def _read(self, name: str, descriptor: int, mode: int) -> ManifestFile:
        try:
            return ManifestFile(name, read_text(descriptor, mode, self.bytes_max))
        except TooLargeError:
            return ManifestFile(name, too_large=True)
        except NotTextError as error:
            return ManifestFile(name, error=str(error))
