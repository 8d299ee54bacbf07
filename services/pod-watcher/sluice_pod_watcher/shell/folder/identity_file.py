"""Keep the identities on disk: one JSON file, replaced as a whole, and a lock that one process holds. A file that
cannot be read is an error for a person to solve: new identities would rename every running pod."""

import fcntl
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.reasons import shorten
from sluice.runtime.errors import ServiceError
from sluice_pod_watcher.core.folder.events import IdentityRecord

FORMAT = 1
_BEGINS, _ENDS = b'{"format":%d,"identities":[\n' % FORMAT, b"\n]}\n"  # a record has a line of its own between these


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    identities: tuple[IdentityRecord, ...]


@dataclass(slots=True)
class IdentityFile:
    """`identities.json` in `folder`. Use as a context manager: it holds the lock while entered."""

    folder: Path
    _lock: int = -1
    _lines: dict[str, tuple[IdentityRecord, bytes]] = field(default_factory=dict)  # of the last save: few change

    @property
    def path(self) -> Path:
        return self.folder / "identities.json"

    def __enter__(self) -> Self:
        """Take the lock. Raises ServiceError when another process has it, or the folder cannot be created."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder / "identities.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ServiceError(f"{self.folder} cannot be used: {error.strerror or error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise ServiceError(f"another pod-watcher uses {self.folder}; give each its own data folder") from error
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def load(self) -> tuple[IdentityRecord, ...]:
        """The last save; empty if there was none. Raises ServiceError when it cannot be read."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise ServiceError(f"{self.path} cannot be read: {error.strerror or error}") from error
        try:
            document = msgspec.json.decode(data, type=_Document)
        except NOT_READABLE as error:
            raise ServiceError(f"{self.path} {_CURE}: {shorten(str(error), 300)}") from error
        if document.format != FORMAT or not all(record.asks for record in document.identities):
            why = f"its format is {document.format}, not {FORMAT}, or it is incomplete"
            raise ServiceError(f"{self.path} {_CURE}: {why}")
        return document.identities

    def save(self, records: tuple[IdentityRecord, ...]) -> None:
        """Replace the file. When this returns, it survives a crash of the machine. Raises OSError."""
        self._lines = {record.uid: self._line(record) for record in records}
        data = _BEGINS + b",\n".join([line for _, line in self._lines.values()]) + _ENDS
        new = self.folder / "identities.json.new"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        new.replace(self.path)
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _line(self, record: IdentityRecord) -> tuple[IdentityRecord, bytes]:
        known = self._lines.get(record.uid)
        return known if known is not None and known[0] is record else (record, msgspec.json.encode(record))


_CURE = "is damaged; restore a copy, or move it away to take the identities from the bus"
