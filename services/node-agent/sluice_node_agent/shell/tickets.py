"""
Tickets: directories with names that are never used twice, there only while their slice is ready.

A container that mounts its ticket cannot start before the slice is ready, nor after the slice was made anew: the old
directory is not there any more. `slice.json` inside is for people. A container with a share finds below its own name
links to its daemon's pipe and log directory: `<ticket>/<container>/pipe` and `.../log`.

Removing a ticket removes what is in it and nothing else: it follows no link, and goes into nothing that is mounted
there. Behind both may be the sockets of a daemon that others live on.
"""

import errno
import os
import re
import shutil
from pathlib import Path

import msgspec

from sluice.contracts.messages import ContainerDevices
from sluice_node_agent.core.events import MakeTicket

_DIRECTORY_MODE = 0o711
"""A container's user must get through; who does not know a name finds none."""
_FILE_MODE = 0o600
_ESCAPED = re.compile(r"\\([0-7]{3})")


class Tickets:
    """The tickets of one node. Calls block briefly and raise OSError."""

    def __init__(self, directory: Path, *, mounts: Path = Path("/proc/self/mountinfo")) -> None:
        """Keep tickets in `directory`; `mounts` says what is mounted on this machine (proc(5), mountinfo)."""
        self._directory = directory
        self._mounts = mounts

    def names(self) -> tuple[str, ...]:
        """All tickets that are there, sorted, those included that were being made or removed when an agent ended."""
        if not self._directory.is_dir():
            return ()
        return tuple(sorted({path.name.removeprefix(".") for path in self._directory.iterdir()}))

    def make(self, order: MakeTicket) -> None:
        """Make a ticket, whole or not at all. One that is there already stays as it is."""
        place, draft = self._places(order.ticket)
        if place.is_dir():
            return
        self._clear(draft)
        self._directory.mkdir(parents=True, exist_ok=True)
        _make_directory(draft)
        said = {"allocation": order.allocation, "owner": order.owner, "containers": order.containers}
        document = draft / "slice.json"
        document.write_bytes(msgspec.json.encode(said) + b"\n")
        document.chmod(_FILE_MODE)
        for container in order.containers:
            _link(draft, container)
        draft.rename(place)

    def remove(self, ticket: str) -> None:
        """Remove a ticket. First its name goes: nobody can start with half of one."""
        place, draft = self._places(ticket)
        if place.is_dir():
            self._clear(draft)
            place.rename(draft)
        self._clear(draft)

    def _places(self, ticket: str) -> tuple[Path, Path]:
        if not ticket or ticket.startswith(".") or "/" in ticket:
            raise OSError(errno.EINVAL, f"{ticket!r} is no ticket's name")
        return self._directory / ticket, self._directory / f".{ticket}"

    def _clear(self, draft: Path) -> None:
        """Remove a directory that is no ticket (any more), unless something is mounted in it."""
        if not os.path.lexists(draft):
            return
        inside = f"{draft.resolve()}/"
        for mounted in self._mounted():
            if mounted.startswith(inside):
                raise OSError(errno.EBUSY, f"something is mounted at {mounted}, so the ticket was left alone")
        shutil.rmtree(draft)  # unlinks links, and follows none

    def _mounted(self) -> list[str]:
        """Where something is mounted. Field 5 of each line; blanks and backslashes are octal there (proc(5))."""
        lines = self._mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        return [_ESCAPED.sub(lambda code: chr(int(code[1], 8)), line.split(" ")[4]) for line in lines]


def _link(ticket: Path, container: ContainerDevices) -> None:
    """Let a container with a share find its daemon."""
    links = {"pipe": container.mps_pipe_directory, "log": container.mps_log_directory}
    wanted = {name: target for name, target in links.items() if target}
    if not wanted:
        return
    if not container.container or container.container.startswith(".") or "/" in container.container:
        raise OSError(errno.EINVAL, f"{container.container!r} is no container's name")
    place = ticket / container.container
    _make_directory(place)
    for name, target in wanted.items():
        (place / name).symlink_to(target, target_is_directory=True)


def _make_directory(directory: Path) -> None:
    directory.mkdir()
    directory.chmod(_DIRECTORY_MODE)  # whatever the umask says
