"""Facts that a control daemon only logs: which clients wait, and which servers became ready or ended; as releases
535.261 and 550.163 write them (NVIDIA MPS, "Logging"). Every command adds lines, so a long log is truncated."""

import os
import re
from contextlib import suppress
from pathlib import Path

from sluice_node_agent.device.processes import Processes

READ_MAX_BYTES = 256 * 1024
"""Bytes per read; of a log that grew by more only its end is read."""
LOG_MAX_BYTES = 4 * 1024 * 1024
"""A longer log is truncated once it was read: half a day of commands, mostly their echo."""
_WAITING_MAX = 256
"""Waiting clients remembered per daemon; no daemon has as many."""
_LINE = re.compile(
    r"NEW CLIENT (?P<client>[0-9]{1,10}) from user (?P<user>[0-9]{1,10}): Server is not ready"
    r"|NEW SERVER (?P<ready>[0-9]{1,10}): Ready"
    r"|Starting new server (?P<starting>[0-9]{1,10}) for user (?P<owner>[0-9]{1,10})"
    r"|Server (?P<ended>[0-9]{1,10}) exited with status (?P<status>-?[0-9]{1,10})"
)


class ControlLog:
    """The control log of one daemon. Used by one thread at a time."""

    def __init__(self, directory: Path, processes: Processes) -> None:
        """Read the logs in `directory`, starting near their current end."""
        self._path = directory / "control.log"
        self._server_log = directory / "server.log"
        self._processes = processes
        self._position: int | None = None
        self._rest = b""
        self._waiting: dict[int, tuple[int, int]] = {}
        self._owners: dict[int, int] = {}
        self._ready: set[int] = set()

    def read(self) -> None:
        """Read what was written since the last time. A missing log is empty."""
        try:
            with self._path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                position = self._position
                if position is None or position > size or size - position > READ_MAX_BYTES:
                    start = 0 if position is not None and position > size else max(position or 0, size - READ_MAX_BYTES)
                    position, self._rest = start, b""
                file.seek(position)
                data = file.read(READ_MAX_BYTES)
        except OSError:
            return
        self._position = position + len(data)
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-READ_MAX_BYTES:]  # a line has some hundred bytes; longer ones are dropped
        for line in lines:
            self._take(line.decode("utf-8", "replace"))
        self._cut(size)

    def waiting_for_another(self, uid: int) -> tuple[int, ...]:
        """Users other than `uid` with a waiting client that still lives; sorted."""
        for pid, (_, started_at) in list(self._waiting.items()):
            if self._processes.started_at(pid) != started_at:
                del self._waiting[pid]
        return tuple(sorted({user for user, _ in self._waiting.values() if user != uid}))

    def is_ready(self, server: int) -> bool:
        return server in self._ready

    def owner_of(self, server: int) -> int | None:
        return self._owners.get(server)

    def served(self, clients: tuple[int, ...]) -> None:
        for pid in clients:
            self._waiting.pop(pid, None)

    def _take(self, line: str) -> None:
        found = _LINE.search(line)
        if found is None:
            return
        if found["client"]:
            # Pid 0 is a client in a process namespace that the daemon cannot see: whether it lives is unknown.
            started_at = self._processes.started_at(int(found["client"]))
            if started_at and len(self._waiting) < _WAITING_MAX:
                self._waiting[int(found["client"])] = (int(found["user"]), started_at)
        elif found["starting"]:
            self._owners[int(found["starting"])] = int(found["owner"])
            self._ready.discard(int(found["starting"]))
        elif found["ready"]:
            self._ready.add(int(found["ready"]))
        else:
            self._ready.discard(int(found["ended"]))
            self._owners.pop(int(found["ended"]), None)

    def _cut(self, size: int) -> None:
        """Truncate logs that are too long: the daemon appends (O_APPEND). At worst a line is lost."""
        with suppress(OSError):  # it is being removed, or is another user's; it is read as before
            if size > LOG_MAX_BYTES and self._position == size:
                os.truncate(self._path, 0)
                self._position = 0
            if self._server_log.exists() and self._server_log.stat().st_size > LOG_MAX_BYTES:
                os.truncate(self._server_log, 0)
