"""
The clients that a home's servers were asked to disconnect, on disk before the request: each is named once.

Asked again for a disconnected client, the daemon of release 580.159 answers no request while that process lives (seen
on an H200, docs/hardware): its neighbours could no longer be polled or changed. So this list outlives the agent.
"""

from pathlib import Path

import msgspec

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.reasons import shorten
from sluice_node_agent.device.mps.home_directory import MpsError
from sluice_node_agent.device.processes import Processes

_FILE = "terminated.json"
_MAX_BYTES = 64 * 1024
"""A server has at most some dozens of clients, and ended ones are dropped."""


class TerminatedClients:
    """Disconnected clients of one home, by process id and start time. Every method raises MpsError."""

    def __init__(self, home: Path, processes: Processes) -> None:
        """Read it from the home's directory; a missing file is empty."""
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
        """Note a living process that is not listed; False when it is, or has ended."""
        started_at = self._processes.started_at(pid)
        if not started_at or self._told.get(pid) == started_at:
            return False
        self._told[pid] = started_at
        self._write()
        return True

    def forget(self, pid: int) -> None:
        """The daemon reported that it did not take this one: it may be asked again."""
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
