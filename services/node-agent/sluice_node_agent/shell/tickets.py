"""
Tickets: directories with names that are never used twice, there only while their slice is ready.

A container that mounts its ticket cannot start before the slice is ready, nor after the slice was made anew: the old
directory is not there any more. What is written inside is for people.
"""

import shutil
from pathlib import Path

import msgspec

from sluice_node_agent.core.events import MakeTicket


class Tickets:
    """The tickets of one node. Calls block briefly and raise OSError."""

    def __init__(self, directory: Path) -> None:
        """Keep tickets in `directory`."""
        self._directory = directory

    def names(self) -> tuple[str, ...]:
        """All tickets that are there, sorted."""
        if not self._directory.is_dir():
            return ()
        return tuple(sorted(path.name for path in self._directory.iterdir() if not path.name.startswith(".")))

    def make(self, order: MakeTicket) -> None:
        """Make a ticket, whole or not at all. One that is there already stays as it is."""
        place = self._place(order.ticket)
        if place.is_dir():
            return
        draft = self._directory / f".{order.ticket}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        said = {"allocation": order.allocation, "owner": order.owner, "containers": order.containers}
        (draft / "slice.json").write_bytes(msgspec.json.encode(said) + b"\n")
        draft.rename(place)

    def remove(self, ticket: str) -> None:
        """Remove a ticket. First its name goes: nobody can start with half of one."""
        place = self._place(ticket)
        draft = self._directory / f".{ticket}"
        if place.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
            place.rename(draft)
        shutil.rmtree(draft, ignore_errors=True)

    def _place(self, ticket: str) -> Path:
        if not ticket or ticket.startswith(".") or "/" in ticket:
            raise OSError(f"{ticket!r} is no ticket's name")
        return self._directory / ticket
