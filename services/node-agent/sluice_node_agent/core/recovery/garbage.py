"""
Remove tickets, CDI files and home directories that no record names and no slice can claim.

A refusal (a full disk, a daemon that does not end) is retried with backoff. Nothing of this is in the journal: the next
run finds what is left. `discovered` and `reconcile` choose what is garbage.
"""

from dataclasses import dataclass, replace

from sluice_node_agent.core.config import AgentConfig
from sluice_node_agent.core.events import CdiRefused, FoundMpsHome, MpsRefused, Result, TicketRefused
from sluice_node_agent.core.instructions import RemoveCdi, RemoveTicket, StopMps
from sluice_node_agent.core.state.backoff import back_off
from sluice_node_agent.core.state.in_flight import InFlight
from sluice_node_agent.core.state.tasks import Task


@dataclass(slots=True)
class Garbage(Task):
    """One ticket, home or CDI file to remove, by its file name or claim."""

    name: str
    order: StopMps | RemoveTicket | RemoveCdi
    """With any token."""


class GarbageCollector:
    """All garbage of one node."""

    def __init__(self, config: AgentConfig, in_flight: InFlight) -> None:
        """Start empty."""
        self._config = config
        self._in_flight = in_flight
        self._left: dict[str, Garbage] = {}
        """What is not removed yet, by name: names of homes, tickets and claims are unique."""

    def home(self, found: FoundMpsHome) -> None:
        """Remove a home without a record: its daemon, if there is one, and its directory."""
        self._clear(found.home, StopMps(0, found.home, found.pid, found.started_at))

    def ticket(self, ticket: str) -> None:
        """Remove a ticket that no slice has."""
        self._clear(ticket, RemoveTicket(0, ticket))

    def cdi_file(self, claim: str) -> None:
        """Remove the CDI file of a claim that no slice has."""
        self._clear(claim, RemoveCdi(0, claim))

    def take_result(self, garbage: Garbage, result: Result, now: float) -> None:
        """It is removed, or retried later."""
        if isinstance(result, (MpsRefused, TicketRefused, CdiRefused)):
            back_off(garbage, result.message, self._config, now)
        else:
            self._left.pop(garbage.name, None)

    def tick(self, now: float) -> None:
        """Retry what is due."""
        for garbage in self._left.values():
            if garbage.retry_at is not None and garbage.retry_at <= now:
                garbage.retry_at = None
                self._send(garbage)

    def _clear(self, name: str, order: StopMps | RemoveTicket | RemoveCdi) -> None:
        if name not in self._left:
            self._left[name] = Garbage(name=name, order=order)
            self._send(self._left[name])

    def _send(self, garbage: Garbage) -> None:
        self._in_flight.send(replace(garbage.order, token=self._in_flight.next_token), garbage)
