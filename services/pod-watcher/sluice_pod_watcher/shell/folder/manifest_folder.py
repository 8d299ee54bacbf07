"""
The folder of manifests on disk: what is in it now, and a hint when that changes. Reads only, and decides nothing.

A listing is all or nothing. What cannot be listed, or is more than a limit allows, is reported as such: a listing with
something left out would end the pods that are left out.
"""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import watchfiles

from sluice.contracts.manifests import is_leased
from sluice.runtime import logs
from sluice.runtime.clock import Clock
from sluice.runtime.errors import ServiceError
from sluice.runtime.text_files import NotTextError, TooLargeError, open_to_read, read_text
from sluice_pod_watcher.core.folder.events import FolderListed, FolderUnlistable, ManifestFile

SUFFIXES = (".yaml", ".yml", ".json")
FILES_MAX = 10_000
"""More files are not listed at all. A thousand pods in a thousand files is a large folder."""
TOTAL_BYTES_MAX = 64 * 1024 * 1024
"""All texts together; they stay in memory."""
SETTLED_S = 2.0
"""A file that was written longer ago than this and looks the same is the same: file times are only that exact."""
STEP_MS = 5
DEBOUNCE_MS = 50
"""Changes closer together than STEP_MS are one hint, given after DEBOUNCE_MS at the latest."""

Signature = tuple[int, int, int, int, int]


def is_manifest(name: str) -> bool:
    """Whether a file is read: by its ending, and not hidden (editors and `ConfigMap` mounts keep hidden files)."""
    return name.endswith(SUFFIXES) and not name.startswith(".")


def is_locked(descriptor: int) -> bool:
    """
    Whether somebody else holds the lock (flock) of an open file. Raises OSError where a file cannot be locked.

    The kernel lets go of it when the last process that holds it has ended, even if it was killed (flock(2)).
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def _signature(found: os.stat_result) -> Signature:
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _signature_at(path: str) -> Signature | None:
    """Of whatever is there now; None where that cannot be told, which opening it says in words."""
    try:
        return _signature(os.stat(path))  # noqa: PTH116  # see where it is called
    except OSError:
        return None


@dataclass(slots=True)
class ManifestFolder:
    """One folder. `bytes_max` is the limit of one file. Methods may be called from one task at a time."""

    path: Path
    clock: Clock
    bytes_max: int
    _known: dict[str, tuple[Signature, ManifestFile]] = field(default_factory=dict)
    _held: tuple[str, ...] = ()
    """The leased manifests that were held when the folder was listed last."""

    def check(self) -> None:
        """Raises ServiceError when there is no such folder, or it cannot be listed."""
        listed = self._list()
        if isinstance(listed, FolderUnlistable):
            raise ServiceError(f"{listed.why} (SLUICE_POD_WATCHER_PODS_DIR names the folder of Pod manifests)")

    async def list(self) -> FolderListed | FolderUnlistable:
        """Everything in the folder now."""
        return await asyncio.to_thread(self._list)

    async def changes(self) -> AsyncIterator[None]:
        """
        Yields after something has changed. A hint: some changes are not told on some file systems.

        Goes on for ever, also while the folder is away, and when it comes back as another one.
        """
        log = logs.get("folder", folder=str(self.path))
        warned = False
        while True:
            watched, fresh = self._identity(), True
            try:
                if watched is not None:
                    async for changed in watchfiles.awatch(
                        self.path,
                        watch_filter=lambda _change, path: is_manifest(os.path.basename(path)),  # noqa: PTH119
                        debounce=DEBOUNCE_MS,
                        step=STEP_MS,
                        rust_timeout=1000,
                        yield_on_timeout=True,
                        recursive=False,
                    ):
                        # Something may have changed just before the watch began; a lock that is let go is no change.
                        if changed or fresh or (self._held and await asyncio.to_thread(self._is_let_go)):
                            yield
                        fresh = False
                        if self._identity() != watched:
                            break
            except (OSError, RuntimeError) as error:  # no inotify, or no watches left: the timer still lists
                if not warned:
                    log.warning("changes are found by listing only", why=str(error))
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
        """Whether somebody has let go of a manifest since the last listing. Costs what is leased, no more."""
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
        """One file, or None when it has gone meanwhile. What will be the same next time is put into `known`."""
        before = self._known.get(name)
        path = f"{self.path}/{name}"  # a Path would cost as much as the look at the file
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
                return None  # whoever asked by it has ended
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
