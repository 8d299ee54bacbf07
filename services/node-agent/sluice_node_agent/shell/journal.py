"""
The journal of one node: what its agent must still know after a crash.

Append-only, one record per line, each with its checksum, on disk (fsync) before anybody is told. The last record of a
slice is the one that counts; the file is rewritten when most of it does not count any more. What a crash has torn off
at the end was never told to anybody and is dropped; anything else that does not read right means that the journal
cannot be trusted: it is set aside and a new one begun, for an older record taken for the last one could give a place
away twice.
"""

import fcntl
import os
import zlib
from pathlib import Path

import msgspec

from sluice.contracts.ids import NodeName
from sluice.runtime.errors import ServiceError
from sluice_node_agent.core.records import (
    Forgotten,
    HomeGone,
    HomeRecord,
    NodeRecord,
    Record,
    SliceRecord,
    Tombstone,
    Warm,
    WarmGone,
)

_COMPACT_ABOVE = 1000
"""Lines that do not count, before a rewrite."""

_encode = msgspec.json.Encoder().encode
_decode: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


class JournalError(ServiceError):
    """The journal cannot be used: another agent holds it, or it is of another node."""


class Journal:
    """An open, locked journal. For one thread at a time."""

    def __init__(self, directory: Path, node: NodeName) -> None:
        """
        Open or begin the journal in `directory`, and lock it until `close`.

        `problem` says why it could not be trusted, and is empty when all is well. `is_new` while no agent has written
        in it: there was none, or it was not trusted. Raises JournalError.
        """
        self.node = node
        self.is_new = False
        self.problem = ""
        self._directory = directory
        self._path = directory / "journal"
        self._lines: dict[str, bytes] = {}
        self._written = 0
        self._create_directory()
        self._lock = _lock(directory / "lock", node)
        self._file = -1
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def records(self) -> tuple[Record, ...]:
        """The last record of everything that is not forgotten, oldest first."""
        return tuple(_decode.decode(line) for line in self._lines.values())

    def append(self, records: list[Record]) -> None:
        """Put records on disk. Returns when they are there; raises OSError."""
        data = b""
        for record in records:
            line = _encode(record)
            data += _checked(line)
            self._remember(record, line)
        _write_all(self._file, data)
        os.fdatasync(self._file)
        self._written += len(records)
        if self._written - len(self._lines) > max(_COMPACT_ABOVE, 3 * len(self._lines)):
            self._rewrite()

    def close(self) -> None:
        """Let go of file and lock."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        os.close(self._lock)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _create_directory(self) -> None:
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise JournalError(f"{self._directory} cannot be made: {error.strerror}") from error

    def _open(self) -> None:
        if self._path.exists():
            self._read(self._path.read_bytes())
        begun = NodeRecord(node=self.node, boot_id="", generation_upto=0)
        if not self._lines:
            self._remember(begun, _encode(begun))
        self.is_new = list(self._lines.values()) == [_encode(begun)]
        self._rewrite()

    def _read(self, data: bytes) -> None:
        lines = data.split(b"\n")
        lines.pop()  # empty, or what a crash left of a record that nobody was told of
        if not lines:
            self._distrust("it holds no whole record")
            return
        for number, line in enumerate(lines, start=1):
            record = _unchecked(line)
            if record is None:
                self._distrust(f"line {number} does not match its checksum")
                return
            if isinstance(record, NodeRecord) and record.node != self.node:
                raise JournalError(f"{self._path} is the journal of node {record.node}, not of {self.node}")
            self._remember(record, _encode(record))

    def _distrust(self, why: str) -> None:
        aside = self._path.with_name("journal.distrusted")
        self._path.replace(aside)
        self._lines = {}
        self.problem = f"the journal cannot be trusted ({why}); it was set aside as {aside}"

    def _remember(self, record: Record, line: bytes) -> None:
        key = _key(record)
        self._lines.pop(key, None)
        if not isinstance(record, (Forgotten, HomeGone, WarmGone)):
            self._lines[key] = line

    def _rewrite(self) -> None:
        """Begin a file that holds only what counts."""
        draft = self._path.with_name("journal.new")
        new = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            _write_all(new, b"".join(_checked(line) for line in self._lines.values()))
            os.fsync(new)
            draft.replace(self._path)
            _sync_directory(self._directory)
        except OSError:
            os.close(new)
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file = new
        self._written = len(self._lines)


def _key(record: Record) -> str:
    """Records with equal keys replace one another: a tombstone its slice's."""
    match record:
        case NodeRecord():
            return ""
        case SliceRecord(booking=booking):
            return booking.allocation
        case Tombstone(allocation=allocation) | Forgotten(allocation=allocation):
            return allocation
        case HomeRecord(home=home) | HomeGone(home=home):
            return f"home {home}"
        case Warm(gpu=gpu, gi_id=gi_id) | WarmGone(gpu=gpu, gi_id=gi_id):
            return f"warm {gpu} {gi_id}"


def _checked(line: bytes) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(line), line)


def _unchecked(line: bytes) -> Record | None:
    checksum, _, body = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(body):
        return None
    try:
        return _decode.decode(body)
    except msgspec.DecodeError:
        return None


def _lock(path: Path, node: NodeName) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise JournalError(f"another agent of node {node} is running: it holds {path}") from None
    return descriptor


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
