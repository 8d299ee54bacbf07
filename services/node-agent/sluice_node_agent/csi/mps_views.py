"""
An MPS daemon's home as a container sees it: `pipe` and `log`, read-only. The home is mounted, not its parts: a
restarted daemon creates its `pipe` again. Removal never descends, so nothing behind a mount can be lost.
"""

import contextlib
import errno
from pathlib import Path

from sluice.contracts.messages import ContainerDevices
from sluice.contracts.ticket_paths import LOG, PIPE, SHARE_PREFIX
from sluice.runtime import logs
from sluice_node_agent.csi import mounts

_MODE = 0o711
_MAY_NOT = {errno.EPERM, errno.EACCES}


def make_view(place: Path, container: ContainerDevices, *, aside: Path) -> None:
    """
    Show a container's home at `place`, which must not exist yet. Raises OSError. `aside` is for a temporary mount.
    Without the right to mount, links are created: they work on the node, but not in a container.
    """
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
    """Whether the links at `place` lead to the container's home."""
    wanted = {PIPE: container.mps_pipe_directory, LOG: container.mps_log_directory}
    try:
        return all(str((place / name).readlink()) == target for name, target in wanted.items())
    except OSError:
        return False


def remove_view(place: Path) -> None:
    """Unmount `place`, and remove the empty directory. Succeeds when it is gone. Raises OSError."""
    try:
        mounts.detach_all(place)
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
    """
    Bind by way of `aside`, where the mount is sealed: a volume must never show it open. Programs in it may run: a
    container preloads the time quota's library from there, and a loader maps no code from a `noexec` mount.
    """
    aside.mkdir(mode=0o700, exist_ok=True)
    mounts.detach_all(aside)  # left by a killed process
    mounts.bind(home, aside, deep=False)
    try:
        mounts.seal(aside, may_run=True)
        mounts.bind(aside, place, deep=False)
    finally:
        mounts.detach_all(aside)
