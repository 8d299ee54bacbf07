"""
Mounts, as mount(2) has them. No decisions, and nothing is ever removed here.

Where a path could be changed by somebody meanwhile, give one through an open directory (`/proc/self/fd/<n>`).
"""

import ctypes
import errno
import os
import re
from pathlib import Path

_RDONLY, _NOSUID, _NODEV, _NOEXEC = 1, 2, 4, 8
_REMOUNT, _BIND, _REC, _SHARED = 32, 4096, 16384, 1 << 20
_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_SEALED = _RDONLY | _NOSUID | _NODEV | _NOEXEC
_MOUNTINFO = Path("/proc/self/mountinfo")
_POINT = 4
"""Which field of a line of mountinfo is the mount point, counted from 0 (proc(5))."""
_ESCAPED = re.compile(r"\\([0-7]{3})")

_STACKED_MAX = 16
"""Mounts upon one another at one place. We never make two; a process that was killed between two steps may have."""

_libc = ctypes.CDLL(None, use_errno=True)


def bind(source: str | Path, place: str | Path, *, deep: bool = True) -> None:
    """
    Show `source` at `place` as well; if `deep`, with all that is mounted in it. Raises OSError.

    What is seen at `place`, here and wherever it is passed on to, is as sealed as `source` is here.
    """
    _mount(source, place, _BIND | (_REC if deep else 0))


def seal(place: str | Path, *, may_run: bool = False) -> None:
    """
    Let nobody write, run or gain rights through what is mounted at `place`; if `may_run`, run. Raises OSError.

    Also what a file system forbids as a whole (`/run` is `noexec` on many nodes) is then allowed here: the flags of one
    mount are its own (mount(2), MS_REMOUNT with MS_BIND).

    That is not passed on: where `place` was passed on to before (from a container to its node), it stays as it was.
    So what others shall find sealed is bound from a mount that is sealed already.
    """
    _mount("none", place, _REMOUNT | _BIND | (_SEALED & ~_NOEXEC if may_run else _SEALED))


def share(place: str | Path) -> None:
    """Let what is mounted below `place` from now on be seen wherever `place` is shown. Raises OSError."""
    _mount("none", place, _SHARED)


def detach(place: str | Path) -> None:
    """Take away what is mounted at `place`; who is in it keeps it. Follows no link. Raises OSError."""
    if _libc.umount2(os.fsencode(place), _DETACH | _UMOUNT_NOFOLLOW) != 0:
        raise _error(place)


def mount_id(descriptor: int) -> int:
    """Of the mount that an open file is in (proc(5), /proc/<pid>/fdinfo). A mount point's differs from its parent's."""
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("mnt_id:"))


def is_sealed(descriptor: int) -> bool:
    """Whether an open directory is in a mount that was sealed."""
    return os.fstatvfs(descriptor).f_flag & _SEALED == _SEALED


def detach_all(place: Path) -> None:
    """Take away all that is mounted at `place`, a directory. Raises OSError."""
    for _ in range(_STACKED_MAX):
        if not is_mounted(place):
            return
        detach(place)
    raise OSError(errno.EBUSY, "more is mounted there than can be taken away", str(place))


def is_mounted(place: Path) -> bool:
    """Whether something is mounted at `place`. Raises OSError, also when it is a link or no directory."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
    parent = os.open(place.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        here = os.open(place.name, flags, dir_fd=parent)
        try:
            return mount_id(here) != mount_id(parent)
        finally:
            os.close(here)
    finally:
        os.close(parent)


def is_shared(place: Path) -> bool:
    """Whether mounts below `place` are passed on to where it is shown (`shared:` in proc(5), mountinfo)."""
    here = os.open(place, os.O_PATH | os.O_DIRECTORY)
    try:
        wanted = str(mount_id(here))
    finally:
        os.close(here)
    lines = (line.split(" ") for line in _MOUNTINFO.read_text("utf-8", "surrogateescape").splitlines())
    fields = next((fields for fields in lines if fields[0] == wanted), [])
    return any(field.startswith("shared:") for field in fields[6:])


def mounted_below(place: Path, mounts: Path = _MOUNTINFO) -> list[str]:
    """Where something is mounted below `place`; what is at `place` itself is left out. Raises OSError."""
    below = f"{place.resolve()}/"
    lines = [line.split(" ") for line in mounts.read_text("utf-8", "surrogateescape").splitlines()]
    if any(len(fields) <= _POINT for fields in lines):  # what is not understood may be a mount that must be spared
        raise OSError(errno.EIO, "it is no list of mounts", str(mounts))
    points = (_ESCAPED.sub(lambda code: chr(int(code[1], 8)), fields[_POINT]) for fields in lines)
    return [point for point in points if point.startswith(below)]


def _mount(source: str | Path, place: str | Path, flags: int) -> None:
    if _libc.mount(os.fsencode(source), os.fsencode(place), None, ctypes.c_ulong(flags), None) != 0:
        raise _error(place)


def _error(place: str | Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), str(place))
