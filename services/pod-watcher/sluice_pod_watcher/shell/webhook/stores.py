"""
Where a webhook's certificates are kept, so that all its replicas show one, and a restart none that nobody trusts.

The port is small enough for a Secret: read all, and replace all if it is still what was read. In memory it serves one
process, in a file one machine.
"""

import asyncio
import fcntl
import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

FILE_BYTES_MAX = 1024 * 1024
"""A Secret's limit (https://kubernetes.io/docs/concepts/configuration/secret/), held by files too."""


class StoreUnavailableError(Exception):
    """The store cannot be read or written now. Its text is a sentence."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What a store holds, and its version: any text that differs once the content does."""

    text: str
    version: str


class CertificateStore(Protocol):
    """Keeps one text, which holds private keys."""

    async def load(self) -> Kept | None:
        """What is there; None when nothing is. Raises StoreUnavailableError."""

    async def save(self, text: str, *, replaces: str | None) -> bool:
        """
        Replace the version `replaces` (None: nothing). False when something else is there by now: read again.

        Raises StoreUnavailableError; then it may have happened all the same.
        """


@dataclass(slots=True)
class MemoryStore:
    """In this process."""

    kept: Kept | None = None
    _count: int = 0

    async def load(self) -> Kept | None:
        """What is there."""
        return self.kept

    async def save(self, text: str, *, replaces: str | None) -> bool:
        """Replace it."""
        if (self.kept.version if self.kept is not None else None) != replaces:
            return False
        self._count += 1
        self.kept = Kept(text, str(self._count))
        return True


@dataclass(frozen=True, slots=True)
class FileStore:
    """In a file that only its owner reads; several processes of a machine may use it."""

    path: Path
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def load(self) -> Kept | None:
        """What is there. Raises StoreUnavailableError."""
        return await asyncio.to_thread(self._load)

    async def save(self, text: str, *, replaces: str | None) -> bool:
        """Replace it. When this returns, it survives a crash of the machine. Raises StoreUnavailableError."""
        async with self._lock:
            return await asyncio.to_thread(self._save, text, replaces)

    def _load(self) -> Kept | None:
        try:
            with self.path.open("rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreUnavailableError(f"{self.path} cannot be read: {error.strerror or error}") from error
        if len(data) > FILE_BYTES_MAX:
            raise StoreUnavailableError(f"{self.path} is larger than {FILE_BYTES_MAX} bytes; move it away")
        return Kept(data.decode("utf-8", errors="replace"), hashlib.sha256(data).hexdigest())

    def _save(self, text: str, replaces: str | None) -> bool:
        try:
            lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnavailableError(f"{self.path} cannot be locked: {error.strerror or error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            kept = self._load()
            if (kept.version if kept is not None else None) != replaces:
                return False
            self._replace(text.encode())
        except BlockingIOError:
            return False  # another process is just replacing it
        except OSError as error:
            raise StoreUnavailableError(f"{self.path} cannot be written: {error.strerror or error}") from error
        finally:
            os.close(lock)
        return True

    def _replace(self, data: bytes) -> None:
        new = self.path.with_suffix(".new")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        new.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
