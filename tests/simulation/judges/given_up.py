"""The rule that a write without an answer is not over (PROTOCOL §2, W3): place and request count as taken until it is.

A process that says `Released` of a request, or orders another slice for it, has given its earlier order up: that one
may not land any more. Only a process's own orders are judged: what another one had under way, it cannot know. Nor is
it another order when a process changes the size of what another one has granted. And a `Released` holds as long as it
stands: when it has run out, and its pod is still there, that asks like any other.
"""

from math import inf
from typing import TypeGuard

from sluice.contracts.bus.events import Write
from sluice.contracts.ids import AllocationId, OperationId, RequestId, RunId
from sluice.contracts.messages import AnyMessage, Grant, Released

Decider = tuple[RunId, RequestId]


class GivenUp:
    """Which process decided what about a request last."""

    def __init__(self) -> None:
        """Start without decisions."""
        self._run_of: dict[OperationId, RunId] = {}
        self._ordered: dict[Decider, AllocationId] = {}
        self._released: dict[Decider, float] = {}
        """Until when that is said."""
        self._life_of: dict[OperationId, str] = {}
        self._over: set[str] = set()

    def sent(self, run: RunId, write: Write, life: str) -> None:
        """A process writes something, for the first time or again, in what it takes for this incarnation of the bus."""
        message = write.message
        if isinstance(message, Released):
            self._life_of.setdefault(write.operation, life)
        if isinstance(message, (Grant, Released)):
            self._run_of[write.operation] = run
        if _is_order(message):
            self._ordered[run, message.booking.request] = message.booking.allocation

    def landed(self, write: Write, now: float) -> str:
        """A write is on the bus now. Returns what is wrong with that; empty is good."""
        message, run = write.message, self._run_of.get(write.operation)
        if run is None:
            return ""
        if isinstance(message, Released) and self._life_of[write.operation] not in self._over:
            # one of before a wipe says nothing of what was ordered since
            self._released[run, message.request] = now + write.ttl_s if write.ttl_s is not None else inf
        if not isinstance(message, Grant) or message.adopted:
            return ""
        request, allocation = message.booking.request, message.booking.allocation
        if now < self._released.get((run, request), -inf):
            return f"{allocation} lands after {run} said that {request} is released"
        later = self._ordered[run, request] if _is_order(message) else allocation
        return f"{allocation} lands after {run} ordered {later} instead" if later != allocation else ""

    def wiped(self, life: str) -> None:
        """A subject is empty in a new incarnation of the bus: a released request may ask again."""
        self._over.add(life)
        self._released.clear()

    def forgot(self, ended: set[RequestId]) -> None:
        """A broker has forgotten its latest messages, and these ends are lost: other ended requests may ask again."""
        self._released = {decider: until for decider, until in self._released.items() if decider[1] in ended}


def _is_order(message: AnyMessage) -> TypeGuard[Grant]:
    """Whether it chooses a slice, and does not only change one or take it over as it is."""
    return isinstance(message, Grant) and not message.adopted and message.revision == 1
