"""
How much of the journal was told: a note beside it, by which a journal that lost its end is known for it.

What others are told is on disk. The note is written after that and is not synced itself, so it costs no disk
access: after a crash of the agent it is exact, after a crash of the node it may be older, and then says less. It never
says more than what was on disk, so a journal that is shorter than its note has lost something.
"""

import os
import struct
from pathlib import Path

_NOTE = struct.Struct("<QQ")
"""The journal's inode, and the bytes of it that were told."""


class JournalWatermark:
    """The note of one journal. Calls raise OSError."""

    def __init__(self, path: Path) -> None:
        """Open the note, and begin one if there is none."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def bytes_of(self, inode: int) -> int:
        """How many bytes of the journal with this inode were told; 0 when the note is about another file."""
        return read_note(os.pread(self._file, _NOTE.size, 0), inode)

    @property
    def is_something(self) -> bool:
        """Whether anything was told in a journal beside this note."""
        data = os.pread(self._file, _NOTE.size, 0)
        return len(data) == _NOTE.size and any(data)

    def say(self, inode: int, size: int) -> None:
        """So many bytes of it are on disk and may be told."""
        os.pwrite(self._file, _NOTE.pack(inode, size), 0)

    def forget(self) -> None:
        """The journal is about to be replaced. Synced: a note about the old file must not speak of the new one."""
        os.pwrite(self._file, _NOTE.pack(0, 0), 0)
        os.fdatasync(self._file)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


def read_note(data: bytes, inode: int) -> int:
    """What a note says of the journal with this inode, in bytes; 0 when it is about another file, or torn."""
    if len(data) != _NOTE.size:
        return 0
    about, size = _NOTE.unpack(data)
    return int(size) if about == inode else 0
