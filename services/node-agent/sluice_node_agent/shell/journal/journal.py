"""The journal of one node: what its agent needs after a crash. Append-only, one record per line; the last one of a
slice counts, and the file is rewritten when most of it is obsolete. A record is in the file before the step that it
announces, and synced before what must survive the node's own crash is published (ADR 0042). A torn end was never
published and is dropped; with any other damage (`lines`) the journal is set aside and a new one begun: an older record
mistaken for the last one could give a place away twice. After a failed write nothing more is written, and the agent
ends."""

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from sluice.contracts.ids import NodeName
from sluice.runtime.errors import ServiceError
from sluice_node_agent.core.journal_records import NodeRecord, Record
from sluice_node_agent.device.opened_files import sync_directory
from sluice_node_agent.shell.journal.lines import DamagedError, JournalWatermark, Lines, pack, read_lines, read_note

BYTES_MAX = 64 * 1024 * 1024
"""The largest that is read. It is rewritten long before: 10,000 slices with whole bookings fill a third of it."""
_COMPACT_ABOVE = 1000
_NAME, _TOLD, _LOCK = "journal", "journal.told", "lock"


class JournalError(ServiceError):
    """The journal cannot be used: another agent holds it, it is another node's, or a write failed."""


class Journal:
    """An open, locked journal. For one thread at a time, except `write` beside `sync`."""

    def __init__(self, directory: Path, node: NodeName) -> None:
        """Open or create the journal in `directory`, and lock it until `close`. `problem` says why it could not be
        trusted; `is_new` while no agent has written to it. Raises JournalError."""
        self.node = node
        self.is_new = False
        self.problem = ""
        self._path = directory / _NAME
        self._lines = Lines()
        self._written = 0
        self._size = 0
        self._inode = 0
        self._broken = ""
        self._file = -1
        with ExitStack() as opened, _in_words(f"the journal of node {node} cannot be kept in {directory}"):
            _make_private(directory)
            opened.callback(os.close, _lock(directory / _LOCK, node))
            self._told = JournalWatermark(directory / _TOLD)
            opened.callback(self._told.close)
            opened.callback(self._close_file)
            self._open()
            self._opened = opened.pop_all()

    def records(self) -> tuple[Record, ...]:
        """The last record of everything that is not forgotten, oldest first."""
        return self._lines.records()

    def write(self, records: Sequence[Record]) -> None:
        """Write records, all or none, without waiting for the disk: they survive the agent, but maybe not the node. Not
        while `rewrite` runs in another thread. Raises JournalError when the disk refuses, and then always."""
        self._check()
        packed = [(record, pack(record)) for record in records]
        with self._refusals():
            try:
                self._size += _write_all(self._file, b"".join(self._lines.next(line) for _, line in packed))
            except OSError:
                with suppress(OSError):  # half a line is never read
                    os.ftruncate(self._file, self._size)
                raise
        for record, line in packed:
            self._lines.keep(record, line)
        self._written += len(records)

    def sync(self) -> None:
        """Sync what was written before this call, maybe in another thread, and note it. Raises JournalError."""
        self._check()
        size = self._size
        with self._refusals():
            os.fdatasync(self._file)
            self._told.say(self._inode, size)

    @property
    def is_long(self) -> bool:
        """Whether most of the file is obsolete, so that it is time to `rewrite` it."""
        return self._written - len(self._lines.kept) > max(_COMPACT_ABOVE, len(self._lines.kept))

    def rewrite(self) -> None:
        """Start a new file with the current records, synced. Raises JournalError as `write` does."""
        self._check()
        with self._refusals():
            self._rewrite()

    def close(self) -> None:
        self._opened.close()

    def _check(self) -> None:
        if self._broken:
            raise JournalError(self._broken)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """After the first failed write all others fail: the file's content is unknown."""
        try:
            yield
        except OSError as error:
            self._broken = f"{self._path} cannot be written ({error.strerror}), and nothing is done without it"
            raise JournalError(self._broken) from error

    def _open(self) -> None:
        if self._path.exists():
            self._read()
        elif self._told.is_something:
            self.problem = f"the journal {self._path} is missing, although one was kept there"
        begun = NodeRecord(node=self.node, boot_id="", generation_upto=0)
        if not self._lines.kept:
            self._lines.keep(begun, pack(begun))
        self.is_new = self.records() == (begun,)
        self._rewrite()

    def _read(self) -> None:
        told = self._told.bytes_of(self._path.stat().st_ino)
        try:
            with self._path.open("rb") as file:
                self._lines = read_lines(_whole(file), told=told)
        except DamagedError as error:
            aside = self._path.with_name("journal.distrusted")
            self._path.replace(aside)
            self.problem = f"the journal cannot be trusted ({error}); it was set aside as {aside}"
            return
        _refuse_others(self._path, self._lines.records(), self.node)

    def _rewrite(self) -> None:
        draft = self._path.with_name("journal.new")
        new = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = _write_all(new, self._lines.rewritten())
            os.fsync(new)
            self._told.forget()
            draft.replace(self._path)
            sync_directory(self._path.parent)
        except OSError:
            os.close(new)
            raise
        self._close_file()
        self._file, self._inode = new, os.fstat(new).st_ino
        self._size, self._written = size, len(self._lines.kept)
        self._told.say(self._inode, size)

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read_journal(directory: Path, node: NodeName) -> tuple[Record, ...]:
    """Read a journal beside its agent: locks and changes nothing. Empty when there is none. Raises JournalError."""
    path = directory / _NAME
    try:
        with path.open("rb") as file:
            # the watermark first: the journal only grows meanwhile, or is another file
            note = (directory / _TOLD).read_bytes() if (directory / _TOLD).exists() else b""
            told = read_note(note, os.fstat(file.fileno()).st_ino)
            lines = read_lines(_whole(file), told=told)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise JournalError(f"{path} cannot be read: {error.strerror}") from error
    except DamagedError as error:
        raise JournalError(f"{path} cannot be trusted: {error}") from error
    records = lines.records()
    _refuse_others(path, records, node)
    return records


def _whole(file: BinaryIO) -> bytes:
    data = file.read(BYTES_MAX + 1)
    if len(data) > BYTES_MAX:
        raise DamagedError(f"it has more than {BYTES_MAX} bytes, as no journal of ours has")
    return data


def _refuse_others(path: Path, records: Sequence[Record], node: NodeName) -> None:
    for record in records:
        if isinstance(record, NodeRecord) and record.node != node:
            raise JournalError(f"{path} is the journal of node {record.node}, not of {node}")


@contextmanager
def _in_words(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = f" at {error.filename}" if error.filename else ""
        raise JournalError(f"{what}: {error.strerror}{where}") from error


def _make_private(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if directory.stat().st_mode & 0o077:
        directory.chmod(0o700)


def _lock(path: Path, node: NodeName) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise JournalError(f"another agent of node {node} is running: it holds {path}") from None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _write_all(descriptor: int, data: bytes) -> int:
    view = memoryview(data)
    while view:
        written = os.write(descriptor, view)
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        view = view[written:]
    return len(data)
