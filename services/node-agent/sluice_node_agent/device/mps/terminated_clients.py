"""
Which processes a home's servers were told to let go of, on disk before they are told: nobody is named twice.

Asked again for a client that it has let go of, the daemon of release 580.159 answers neither that nor anything else for
as long as the process lives (seen on an H200, docs/hardware): its neighbours could be watched and changed no more. So
this outlives the agent. It talks to no daemon, and ends nothing.
"""

from pathlib import Path

import msgspec

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.reasons import shorten
from sluice_node_agent.device.mps.home_directory import MpsError
from sluice_node_agent.device.processes import Processes

_FILE = "terminated.json"
_MAX_BYTES = 64 * 1024
"""A server has at most some dozens of clients, and who has ended is forgotten."""


class TerminatedClients:
    """Who was told to go in one home, by process id and start time. Every method raises MpsError."""

    def __init__(self, home: Path, processes: Processes) -> None:
        """Read it from the home's directory; a file that is not there names nobody."""
        self._path = home / _FILE
        self._processes = processes
        try:
            with self._path.open("rb") as file:
                self._told = msgspec.json.decode(file.read(_MAX_BYTES), type=dict[int, int])
        except FileNotFoundError:
            self._told = {}
        except (OSError, *NOT_READABLE) as error:
            why = shorten(str(error), 300)
            raise MpsError(f"{self._path} cannot be read: {why}; remove it once its clients have ended") from error

    def add(self, pid: int) -> bool:
        """Note a process that lives and was not told yet; False when there is nothing to tell it."""
        started_at = self._processes.started_at(pid)
        if not started_at or self._told.get(pid) == started_at:
            return False
        self._told[pid] = started_at
        self._write()
        return True

    def forget(self, pid: int) -> None:
        """The daemon said that it did not take this one: it may be told again."""
        del self._told[pid]
        self._write()

    def _write(self) -> None:
        left = {pid: since for pid, since in self._told.items() if self._processes.started_at(pid) == since}
        draft = self._path.with_suffix(".new")
        try:
            draft.write_bytes(msgspec.json.encode(left))
            draft.replace(self._path)
        except OSError as error:
            raise MpsError(f"{self._path} cannot be written: {error.strerror}") from error
        self._told = left
