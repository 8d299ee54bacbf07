"""Bus messages between being read and being handled by a core, for the spans of their delivery."""

import time
from dataclasses import dataclass

from sluice.contracts.bus.events import Entry
from sluice.runtime.bounded_dict import BoundedDict


@dataclass(frozen=True, slots=True)
class InboundMessage:
    """One message for the core. Times are Unix, ns."""

    request: str
    traceparent: str
    stored_ns: int
    """When the broker stored it, by its clock; 0 when unknown."""
    arrived_ns: int


class InboundMessages:
    """Messages read and not handled yet, and the spans in which relevant ones were handled."""

    def __init__(self) -> None:
        self._waiting: BoundedDict[tuple[str, int], InboundMessage] = BoundedDict(20_000)
        self._taken: BoundedDict[tuple[str, int], str] = BoundedDict(10_000)

    def put(self, subject: str, sequence: int, request: str, traceparent: str, stored_ns: int) -> None:
        self._waiting.put((subject, sequence), InboundMessage(request, traceparent, stored_ns, time.time_ns()))

    def take(self, entry: Entry) -> InboundMessage | None:
        return self._waiting.pop((entry.subject, entry.sequence), None)

    def before(self, entry: Entry) -> str:
        """The span in which the same message was handled before, if it was: a redelivery."""
        return self._taken.get((entry.subject, entry.sequence), "")

    def taken(self, entry: Entry, traceparent: str) -> None:
        self._taken.put((entry.subject, entry.sequence), traceparent)
