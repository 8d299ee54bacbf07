"""Pending writes under each guard, in order, with the one in flight. A queue exists only while one is wanted."""

from collections import OrderedDict
from typing import Literal

import msgspec

from sluice.contracts.bus.events import Stream
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import OperationId
from sluice.contracts.messages import AnyMessage

IN_FLIGHT_MAX = 256
"""Unanswered writes at a time; the rest wait here, where they can still be replaced."""
EXPECTED_MAX = 16
"""How many of the last guard values that writes expected are remembered per guard."""
EXPLAINED_BY_READING = -1


class QueuedWrite(msgspec.Struct, eq=False):
    """One write, from its request to its result."""

    operation: OperationId
    address: Address
    message: AnyMessage
    request: str
    ttl_s: int | None
    kind: Literal["commit", "keep"]
    expected: int = 0
    attempt: int = 0
    refused_at: int | None = None
    """The refusing sequence; EXPLAINED_BY_READING when reading on cannot explain the refusal."""
    refused_since: float = 0.0
    refused_first: float = 0.0
    """When it was first refused, however often the subject was read to explain that."""
    refused_in_reading: int = 0
    """A reading that began after this one explains the refusal."""


class GuardQueue(msgspec.Struct, eq=False):
    """Pending writes under one guard."""

    guard: str
    stream: Stream
    applied: int | None
    """The guard's value. None before it was read (direct reading only)."""
    in_flight: QueuedWrite | None = None
    commits: OrderedDict[OperationId, QueuedWrite] = msgspec.field(default_factory=OrderedDict)
    dirty: dict[str, None] = msgspec.field(default_factory=dict)
    reading: bool = False
    expected: OrderedDict[int, None] = msgspec.field(default_factory=OrderedDict)
    """Guard values that own writes expected lately (direct reading only), the latest last."""

    def expects(self, sequence: int) -> None:
        """A write that expects this is being sent. A copy of it may be in flight longer than its answer."""
        self.expected[sequence] = None
        self.expected.move_to_end(sequence)
        if len(self.expected) > EXPECTED_MAX:
            self.expected.popitem(last=False)

    @property
    def idle(self) -> bool:
        return self.in_flight is None and not self.commits and not self.dirty


class KeptValue(msgspec.Struct, frozen=True):
    """The last value that a subject should have."""

    address: Address
    message: AnyMessage
    request: str
    ttl_s: int | None
