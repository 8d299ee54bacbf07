"""Mounts, as in mount(2), and the views of MPS homes in pods' volumes: a home as a container sees it, read-only. The
home is mounted, not its parts: a restarted daemon creates its `pipe` again. Removal never descends, so nothing behind a
mount can be lost. Pass a path that others could change through an open directory (`/proc/self/fd/<n>`)."""

import contextlib
import ctypes
import errno
import os
import re
from pathlib import Path

from sluice.contracts.messages import ContainerDevices
from sluice.contracts.ticket_paths import LOG, PIPE, SHARE_PREFIX
from sluice.runtime import logs
from sluice_node_agent.device.opened_files import opened

_RDONLY, _NOSUID, _NODEV, _NOEXEC = 1, 2, 4, 8
_REMOUNT, _BIND, _REC, _SHARED = 32, 4096, 16384, 1 << 20
_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_SEALED = _RDONLY | _NOSUID | _NODEV | _NOEXEC
_NEWNS = 0x20000
_MOUNTINFO = Path("/proc/self/mountinfo")
_POINT = 4
"""The index of the mount point in a line of mountinfo (proc(5))."""
_ESCAPED = re.compile(r"\\([0-7]{3})")

_STACKED_MAX = 16
"""Stacked mounts at one place. We never create two; a process killed between two steps may have."""

_libc = ctypes.CDLL(None, use_errno=True)


def bind(source: str | Path, place: str | Path, *, deep: bool = True) -> None:
    """Show `source` at `place`; if `deep`, with all mounts in it; sealed if `source` is. Raises OSError."""
    _mount(source, place, _BIND | (_REC if deep else 0))


def seal(place: str | Path, *, may_run: bool = False) -> None:
    """Forbid writing, programs and setuid below the mount at `place`; with `may_run`, allow programs, even where the
    file system forbids them (`/run` is `noexec` on many nodes). Raises OSError. Flags do not propagate (mount(2),
    MS_REMOUNT with MS_BIND): bind from a mount that is sealed already."""
    _mount("none", place, _REMOUNT | _BIND | (_SEALED & ~_NOEXEC if may_run else _SEALED))


def share(place: str | Path) -> None:
    _mount("none", place, _SHARED)


def detach(place: str | Path) -> None:
    """Unmount `place`; processes in it keep it. Follows no link. Raises OSError."""
    if _libc.umount2(os.fsencode(place), _DETACH | _UMOUNT_NOFOLLOW) != 0:
        raise _error(place)


def enter_namespace_of(process: int) -> None:
    """See this process's mounts from now on (setns(2)); only without other threads. Raises OSError."""
    with opened(f"/proc/{process}/ns/mnt", os.O_RDONLY) as descriptor:
        if _libc.setns(descriptor, _NEWNS) != 0:
            raise _error(f"/proc/{process}/ns/mnt")


def mount_id(descriptor: int) -> int:
    """The mount id of an open file (proc(5), /proc/<pid>/fdinfo). A mount point's differs from its parent's."""
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("mnt_id:"))


def is_sealed(descriptor: int) -> bool:
    return os.fstatvfs(descriptor).f_flag & _SEALED == _SEALED


def detach_all(place: Path) -> None:
    for _ in range(_STACKED_MAX):
        if not is_mounted(place):
            return
        detach(place)
    raise OSError(errno.EBUSY, "more is mounted there than can be taken away", str(place))


def is_mounted(place: Path) -> bool:
    """Whether `place` is a mount point. Raises OSError, also when it is a link or no directory."""
    with (
        opened(place.parent, os.O_PATH | os.O_DIRECTORY) as parent,
        opened(place.name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent) as here,
    ):
        return mount_id(here) != mount_id(parent)


def is_shared(place: Path) -> bool:
    """Whether mounts below `place` propagate (`shared:` in proc(5), mountinfo)."""
    with opened(place, os.O_PATH | os.O_DIRECTORY) as here:
        wanted = str(mount_id(here))
    lines = (line.split(" ") for line in _MOUNTINFO.read_text("utf-8", "surrogateescape").splitlines())
    fields = next((fields for fields in lines if fields[0] == wanted), [])
    return any(field.startswith("shared:") for field in fields[6:])


def mounted_below(place: Path, mounts: Path = _MOUNTINFO) -> list[str]:
    """Mount points below `place`, without `place` itself. Raises OSError."""
    below = f"{place.resolve()}/"
    lines = [line.split(" ") for line in mounts.read_text("utf-8", "surrogateescape").splitlines()]
    if any(len(fields) <= _POINT for fields in lines):  # an unknown line may be a mount
        raise OSError(errno.EIO, "it is no list of mounts", str(mounts))
    points = (_ESCAPED.sub(lambda code: chr(int(code[1], 8)), fields[_POINT]) for fields in lines)
    return [point for point in points if point.startswith(below)]


def _mount(source: str | Path, place: str | Path, flags: int) -> None:
    if _libc.mount(os.fsencode(source), os.fsencode(place), None, ctypes.c_ulong(flags), None) != 0:
        raise _error(place)


def _error(place: str | Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), str(place))


_MODE = 0o711
_MAY_NOT = {errno.EPERM, errno.EACCES}


def make_view(place: Path, container: ContainerDevices, *, aside: Path) -> None:
    """Show a container's home at `place`, which must not exist yet. Raises OSError. `aside` is for a temporary mount.
    Without the right to mount, links are created: they work on the node, but not in a container."""
    pipe, log = Path(container.mps_pipe_directory), Path(container.mps_log_directory)
    if (pipe.name, log) != (PIPE, pipe.parent / LOG):
        text = f"the MPS directories {pipe} and {log} of container {container.container!r} are not of one home"
        raise OSError(errno.EINVAL, text)
    place.mkdir()
    place.chmod(_MODE)  # regardless of the umask
    try:
        _bind_sealed(pipe.parent, place, aside)
    except OSError as error:
        if error.errno not in _MAY_NOT:
            remove_view(place)
            raise
        logs.get("tickets").warning("no mount for a share, so its container will not find it", why=str(error))
        for target in (pipe, log):
            (place / target.name).symlink_to(target, target_is_directory=True)


def shows_home(place: Path, container: ContainerDevices) -> bool:
    """Whether `place` shows the home that exists now, or links to it."""
    home = Path(container.mps_pipe_directory).parent
    try:
        return place.samefile(home) or leads_home(place, container)
    except FileNotFoundError:
        return False


def leads_home(place: Path, container: ContainerDevices) -> bool:
    wanted = {PIPE: container.mps_pipe_directory, LOG: container.mps_log_directory}
    try:
        return all(str((place / name).readlink()) == target for name, target in wanted.items())
    except OSError:
        return False


def remove_view(place: Path) -> None:
    """Unmount `place`, and remove the empty directory. Succeeds when it is gone. Raises OSError."""
    try:
        detach_all(place)
    except FileNotFoundError:
        return
    for name in (PIPE, LOG):
        with contextlib.suppress(FileNotFoundError):
            if (place / name).is_symlink():
                (place / name).unlink()
    place.rmdir()


def remove_views(directory: Path, ticket: str = "") -> None:
    """Remove a pod directory's views of homes: of one ticket, or all. Raises OSError."""
    begins = f"{SHARE_PREFIX}{ticket}-" if ticket else SHARE_PREFIX
    for place in sorted(directory.iterdir()):
        if place.name.startswith(begins):
            remove_view(place)


def _bind_sealed(home: Path, place: Path, aside: Path) -> None:
    """Bind by way of `aside`, where the mount is sealed: a volume must never show it open. Programs in it may run: a
    container preloads the time quota's library from there, and a loader maps no code from a `noexec` mount."""
    aside.mkdir(mode=0o700, exist_ok=True)
    detach_all(aside)  # left by a killed process
    bind(home, aside, deep=False)
    try:
        seal(aside, may_run=True)
        bind(aside, place, deep=False)
    finally:
        detach_all(aside)
