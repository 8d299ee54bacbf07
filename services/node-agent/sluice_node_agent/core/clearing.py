"""
What nobody's record names and nobody may have any more: tickets and directories of homes that are cleared away.

A refusal (a full disk, a daemon that does not end) is tried again, ever more slowly; the next life of the agent finds
anew what is left, so nothing of this is in the journal. It must not decide what is useless (`found`, `taking` do).
"""

from dataclasses import dataclass, replace

from sluice_node_agent.core.backing_off import back_off
from sluice_node_agent.core.events import FoundHome, MpsRefused, Result, TicketRefused
from sluice_node_agent.core.instructions import RemoveTicket, StopMps
from sluice_node_agent.core.rules import Rules
from sluice_node_agent.core.sending import Sender
from sluice_node_agent.core.work import Job


@dataclass(slots=True)
class Rubbish(Job):
    """One ticket or home, by what clears it away."""

    name: str
    order: StopMps | RemoveTicket
    """With any token."""


class Clearing:
    """All of one node."""

    def __init__(self, rules: Rules, sender: Sender) -> None:
        """Begin with nothing."""
        self._rules = rules
        self._sender = sender
        self._left: dict[str, Rubbish] = {}
        """What is not gone yet, by its name: homes and tickets are never called alike, nor like one before."""

    def home(self, found: FoundHome) -> None:
        """Clear a home away that has no record: its daemon, if there is one, and its directory."""
        self._clear(found.home, StopMps(0, found.home, found.pid, found.started_at))

    def ticket(self, ticket: str) -> None:
        """Remove a ticket that no slice has any more."""
        self._clear(ticket, RemoveTicket(0, ticket))

    def take_result(self, rubbish: Rubbish, result: Result, now: float) -> None:
        """It is gone, or is tried again later."""
        if isinstance(result, (MpsRefused, TicketRefused)):
            back_off(rubbish, result.message, self._rules, now)
        else:
            self._left.pop(rubbish.name, None)

    def tick(self, now: float) -> None:
        """Time has passed: try again what may be tried."""
        for rubbish in self._left.values():
            if rubbish.retry_at is not None and rubbish.retry_at <= now:
                rubbish.retry_at = None
                self._send(rubbish)

    def _clear(self, name: str, order: StopMps | RemoveTicket) -> None:
        if name not in self._left:
            self._left[name] = Rubbish(name=name, order=order)
            self._send(self._left[name])

    def _send(self, rubbish: Rubbish) -> None:
        self._sender.send(replace(rubbish.order, token=self._sender.next_token), rubbish)
