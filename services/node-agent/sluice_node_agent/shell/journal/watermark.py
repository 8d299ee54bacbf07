"""
How many bytes of the journal were published: a note beside it that reveals a lost end.

Only synced records are published. The note is written after that and is not synced itself, so it costs no disk access:
after a crash of the agent it is exact, after a crash of the node it may be too low. It is never above what was synced,
so a journal that is shorter than its note has lost records.
"""

import os
import struct
from pathlib import Path

_NOTE = struct.Struct("<QQ")
"""The journal's inode, and its published bytes."""


class JournalWatermark:
    """The watermark of one journal. Calls raise OSError."""

    def __init__(self, path: Path) -> None:
        """Open the note, and create it if needed."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def bytes_of(self, inode: int) -> int:
        """The published bytes of the journal with this inode; 0 when the note is about another file."""
        return read_note(os.pread(self._file, _NOTE.size, 0), inode)

    @property
    def is_something(self) -> bool:
        """Whether a journal beside this note had published records."""
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
        """Close the file."""
        os.close(self._file)


def read_note(data: bytes, inode: int) -> int:
    """The bytes in a note about the journal with this inode; 0 when it is about another file, or torn."""
    if len(data) != _NOTE.size:
        return 0
    about, size = _NOTE.unpack(data)
    return int(size) if about == inode else 0
