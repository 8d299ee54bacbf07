"""
What is to be written under each guard, in order, and what is unanswered: one write at a time per guard.

A lane is there only while something is wanted under its guard, so that memory grows with the work and not with what
was ever written. It must not know what the bus holds.
"""

from collections import OrderedDict
from typing import Literal

import msgspec

from sluice.contracts.bus.events import Stream
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import Incarnation, OperationId
from sluice.contracts.messages import AnyMessage

IN_FLIGHT_MAX = 256
"""Writes without an answer at any moment; the rest wait here, where they can still be replaced."""
EXPECTED_MAX = 16
"""So many of the last numbers that writes under a guard have expected are remembered."""
EXPLAINED_BY_READING = -1


class QueuedWrite(msgspec.Struct, eq=False):
    """One write, from its wish to its result."""

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
    """When it was refused, however often it was read anew to explain that."""
    refused_in_life: Incarnation = Incarnation("")
    refused_in_reading: int = 0
    """A reading that began after this one explains the refusal, if it has come as far."""


class GuardQueue(msgspec.Struct, eq=False):
    """What is wanted under one guard."""

    guard: str
    stream: Stream
    applied: int | None
    """The guard's value. None when it was not read yet (direct reading only)."""
    in_flight: QueuedWrite | None = None
    commits: OrderedDict[OperationId, QueuedWrite] = msgspec.field(default_factory=OrderedDict)
    dirty: dict[str, None] = msgspec.field(default_factory=dict)
    """Kept subjects to write, in order."""
    reading: bool = False
    expected: OrderedDict[int, None] = msgspec.field(default_factory=OrderedDict)
    """What own writes have expected of the guard lately (direct reading only), the latest last."""

    def expects(self, sequence: int) -> None:
        """A write that expects this is being sent. A copy of it may be under way for longer than its answer."""
        self.expected[sequence] = None
        self.expected.move_to_end(sequence)
        if len(self.expected) > EXPECTED_MAX:
            self.expected.popitem(last=False)

    @property
    def idle(self) -> bool:
        """Whether nothing is wanted or unanswered."""
        return self.in_flight is None and not self.commits and not self.dirty


class KeptValue(msgspec.Struct, frozen=True):
    """The last value that a subject shall have."""

    address: Address
    message: AnyMessage
    request: str
    ttl_s: int | None


class ReadyGuards:
    """
    The guards under which something may be sent now, in the order in which that became so.

    An ordered dict, for taking the first of a plain one walks over all that were taken before.
    """

    def __init__(self) -> None:
        """Nothing is to be sent."""
        self.guards: OrderedDict[str, None] = OrderedDict()

    def add(self, guard: str) -> None:
        """Something may be sent under a guard."""
        self.guards[guard] = None

    def take(self) -> str:
        """The first guard, which is not in the pump any more."""
        return self.guards.popitem(last=False)[0]
