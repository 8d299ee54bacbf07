"""Words of the bus between their reading and their turn in a core, for the spans of their delivery."""

import time
from dataclasses import dataclass

from sluice.contracts.bus.events import Entry
from sluice.runtime.tracing.bounded_dict import BoundedDict

ARRIVED_MAX = 20_000
"""Words that wait for their turn: as many as an inbox holds."""
TAKEN_MAX = 10_000


@dataclass(frozen=True, slots=True)
class InboundMessage:
    """One word on its way to the core. Times are Unix, ns."""

    request: str
    traceparent: str
    stored_ns: int
    """When the broker stored it, by its clock; 0 when that is not known."""
    arrived_ns: int


class InboundMessages:
    """Words that have been read and wait for their turn; and in which span those that mattered were taken in."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._waiting: BoundedDict[tuple[str, int], InboundMessage] = BoundedDict(ARRIVED_MAX)
        self._taken: BoundedDict[tuple[str, int], str] = BoundedDict(TAKEN_MAX)

    def put(self, subject: str, sequence: int, request: str, traceparent: str, stored_ns: int) -> None:
        """A word was read just now."""
        self._waiting.put((subject, sequence), InboundMessage(request, traceparent, stored_ns, time.time_ns()))

    def take(self, entry: Entry) -> InboundMessage | None:
        """The word whose turn it is."""
        return self._waiting.pop((entry.subject, entry.sequence), None)

    def before(self, entry: Entry) -> str:
        """The span in which the same word was taken in before, when it was: it was delivered again."""
        return self._taken.get((entry.subject, entry.sequence), "")

    def taken(self, entry: Entry, traceparent: str) -> None:
        """It was taken in within this span."""
        self._taken.put((entry.subject, entry.sequence), traceparent)
