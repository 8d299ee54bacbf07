"""
The file of ownership marks: a line for each one added or removed, after the boot that all belong to.

A line costs one write; a file per mark would wait for the journals that are synced on the same disk. Nothing is synced
here.

The file also covers places without a mark: whether none of them can be ours (it is whole, from the boot's first
instance on), and which of them may be ours all the same (doubts).
"""

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from sluice.contracts.ids import GpuUuid
from sluice_node_agent.core.events import OwnershipMark

LINES_MAX = 4096
"""Lines before the file is replaced by one with the current marks: some 200 KiB."""
_PUT, _TAKEN, _DOUBTED, _SETTLED = b"+", b"-", b"?", b"!"
_WHOLE = b"whole"
_PARTS = 4
_MODE = 0o700


@dataclass(slots=True)
class _Content:
    there: set[OwnershipMark] = field(default_factory=set)
    doubted: set[OwnershipMark] = field(default_factory=set)
    whole: bool = False


class OwnershipFile:
    """The marks of one node and boot, and their file, which no other process writes. Thread-safe."""

    def __init__(self, path: Path, boot_id: str) -> None:
        """Read the file, and keep what is of this boot. Raises OSError."""
        self._path = path
        self._boot_id = boot_id
        self._lock = Lock()
        self._lines = 0
        self._is, self.was_missing = _read(path, boot_id)
        self._begin_anew()

    def marks(self) -> list[OwnershipMark]:
        """All marks, by GPU and place."""
        with self._lock:
            return _in_order(self._is.there)

    def doubts(self) -> list[OwnershipMark]:
        """Places where an instance of ours may be without a mark, by GPU and place."""
        with self._lock:
            return _in_order(self._is.doubted)

    @property
    def is_whole(self) -> bool:
        """Whether every instance of ours has a mark or a doubt."""
        return self._is.whole

    def begin_whole(self) -> None:
        """Every instance of ours has a mark, and every later one will. Raises OSError."""
        with self._lock:
            self._is.whole = True
            self._begin_anew()

    def put(self, mark: OwnershipMark) -> bool:
        """Add a mark. False if it exists already. Raises OSError; then it was not added."""
        with self._lock:
            if mark in self._is.there:
                return False
            self._add(_PUT, mark)
            self._is.there.add(mark)
            return True

    def take_away(self, mark: OwnershipMark) -> None:
        """Remove a mark. Raises OSError; then it is still there."""
        with self._lock:
            if mark in self._is.there:
                self._add(_TAKEN, mark)
                self._is.there.discard(mark)

    def doubt(self, mark: OwnershipMark) -> None:
        """An instance of ours may be here, but a mark would claim too much. Raises OSError."""
        with self._lock:
            if mark not in self._is.doubted:
                self._add(_DOUBTED, mark)
                self._is.doubted.add(mark)

    def settle(self, mark: OwnershipMark) -> None:
        """The doubt is settled: there is a mark, or no instance. Raises OSError; then the doubt stays."""
        with self._lock:
            if mark in self._is.doubted:
                self._add(_SETTLED, mark)
                self._is.doubted.discard(mark)

    def _add(self, sign: bytes, mark: OwnershipMark) -> None:
        if self._lines >= LINES_MAX or not self._path.exists():
            self._begin_anew()
        line = _line(sign, mark)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            if os.write(descriptor, line) < len(line):  # the disk is full
                os.ftruncate(descriptor, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        finally:
            os.close(descriptor)
        self._lines += 1

    def _begin_anew(self) -> None:
        """Replace the file by a short one, without what a killed writer left half written."""
        if not self._path.parent.exists():  # its disk was emptied
            self._path.parent.mkdir(mode=_MODE, parents=True)
        draft = self._path.with_name(f"{self._path.name}.new")
        head = [f"{self._boot_id}\n".encode(), *([_WHOLE + b"\n"] if self._is.whole else [])]
        lines = [_line(_PUT, mark) for mark in _in_order(self._is.there)]
        lines += [_line(_DOUBTED, mark) for mark in _in_order(self._is.doubted)]
        draft.touch(mode=0o600)
        draft.write_bytes(b"".join(head + lines))
        draft.replace(self._path)
        self._lines = len(lines)


def _in_order(marks: Iterable[OwnershipMark]) -> list[OwnershipMark]:
    return sorted(marks, key=lambda mark: (mark.gpu, mark.start, mark.size))


def _read(path: Path, boot_id: str) -> tuple[_Content, bool]:
    """
    Read a file's marks of this boot, and whether it was missing. An invalid line is no mark.

    A file of another boot means that no instance exists, and every later one gets a mark.
    """
    content = _Content()
    try:
        first, *lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return content, True
    if first != boot_id.encode():
        content.whole = bool(first)
        return content, False
    for line in lines[:-1]:  # after the last line end is a killed writer's rest
        sign, mark = _parsed(line)
        if line == _WHOLE:
            content.whole = True
        elif mark is not None and sign in {_PUT, _TAKEN}:
            (content.there.add if sign == _PUT else content.there.discard)(mark)
        elif mark is not None and sign in {_DOUBTED, _SETTLED}:
            (content.doubted.add if sign == _DOUBTED else content.doubted.discard)(mark)
    return content, False


def _line(sign: bytes, mark: OwnershipMark) -> bytes:
    return b"%b %b %d %d\n" % (sign, mark.gpu.encode(), mark.start, mark.size)


def _parsed(line: bytes) -> tuple[bytes, OwnershipMark | None]:
    parts = line.split(b" ")
    if len(parts) != _PARTS or not (parts[2].isdigit() and parts[3].isdigit()):
        return b"", None
    return parts[0], OwnershipMark(GpuUuid(parts[1].decode(errors="replace")), int(parts[2]), int(parts[3]))
