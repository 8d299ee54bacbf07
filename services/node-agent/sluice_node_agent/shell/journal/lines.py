"""The lines of a journal, and the records that they add up to: a checksum (8 hex digits), a space and a record as JSON.
The checksum continues that of the line before: a missing, doubled or moved line is as wrong as a flipped bit. A
watermark beside it notes how much was synced."""

import os
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.reasons import shorten
from sluice_node_agent.core import journal_records

pack = msgspec.json.Encoder().encode
_decode: msgspec.json.Decoder[journal_records.Record] = msgspec.json.Decoder(journal_records.Record)
unpack = _decode.decode


class DamagedError(Exception):
    """The journal is damaged. The text says where."""


@dataclass(slots=True)
class Lines:
    """The current records of a journal: the last one of everything not forgotten, packed, oldest first."""

    kept: dict[str, bytes] = field(default_factory=dict)
    chain: int = 0

    def records(self) -> tuple[journal_records.Record, ...]:
        return tuple(unpack(line) for line in self.kept.values())

    def keep(self, record: journal_records.Record, line: bytes) -> None:
        key = _key(record)
        self.kept.pop(key, None)
        if not isinstance(record, journal_records.Gone):
            self.kept[key] = line

    def rewritten(self) -> bytes:
        """A file with the current records only. The chain continues from its end."""
        self.chain = 0
        return b"".join(self.next(line) for line in self.kept.values())

    def next(self, line: bytes) -> bytes:
        """The line of a packed record, after those before it."""
        self.chain = zlib.crc32(line, self.chain)
        return b"%08x %s\n" % (self.chain, line)


def read_lines(data: bytes, *, told: int = 0) -> Lines:
    """Read a journal with at least `told` published bytes; a torn write may follow. Raises DamagedError."""
    parts = data.split(b"\n")
    torn = parts.pop()
    if len(data) - len(torn) < told:
        raise DamagedError(f"its end is lost: {told} bytes were written, {len(data) - len(torn)} are left")
    if not parts:
        raise DamagedError("it holds no whole record")
    lines = Lines()
    for number, part in enumerate(parts, start=1):
        checksum, _, body = part.partition(b" ")
        lines.chain = zlib.crc32(body, lines.chain)
        if checksum != b"%08x" % lines.chain:
            raise DamagedError(f"line {number} does not match its checksum")
        try:
            record = unpack(body)
        except NOT_READABLE as error:
            why = shorten(str(error), 300)
            raise DamagedError(f"line {number} is no record that this version knows: {why}") from error
        lines.keep(record, body)
    return lines


def _key(record: journal_records.Record) -> str:
    """Records with equal keys replace one another: a tombstone replaces its slice's record."""
    match record:
        case journal_records.NodeRecord():
            return ""
        case journal_records.SliceRecord(booking=booking):
            return booking.allocation
        case (
            journal_records.Tombstone(allocation=allocation) | journal_records.ForgottenTombstone(allocation=allocation)
        ):
            return allocation
        case journal_records.SharedDeviceRecord(home=home) | journal_records.SharedDeviceGone(home=home):
            return f"home {home}"
        case journal_records.WarmRecord(gpu=gpu, gi_id=gi_id) | journal_records.WarmGone(gpu=gpu, gi_id=gi_id):
            return f"warm {gpu} {gi_id}"


_NOTE = struct.Struct("<QQ")
"""The journal's inode, and its published bytes."""


class JournalWatermark:
    """The watermark of one journal. Calls raise OSError."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def bytes_of(self, inode: int) -> int:
        """The published bytes of the journal with this inode; 0 when the note is about another file."""
        return read_note(os.pread(self._file, _NOTE.size, 0), inode)

    @property
    def is_something(self) -> bool:
        data = os.pread(self._file, _NOTE.size, 0)
        return len(data) == _NOTE.size and any(data)

    def say(self, inode: int, size: int) -> None:
        """This many bytes are synced and may be published."""
        os.pwrite(self._file, _NOTE.pack(inode, size), 0)

    def forget(self) -> None:
        """The journal is about to be replaced. Synced: a note must not apply to the new file."""
        os.pwrite(self._file, _NOTE.pack(0, 0), 0)
        os.fdatasync(self._file)

    def close(self) -> None:
        os.close(self._file)


def read_note(data: bytes, inode: int) -> int:
    """The bytes in a note about the journal with this inode; 0 when it is about another file, or torn."""
    if len(data) != _NOTE.size:
        return 0
    about, size = _NOTE.unpack(data)
    return int(size) if about == inode else 0
