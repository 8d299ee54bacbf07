"""Pending resizes and their outcomes. Losing it costs an answer, never a slice: the caller asks again."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

import msgspec

from sluice.contracts.ids import AllocationId, RequestId
from sluice.contracts.messages import Booking, Grant
from sluice_allocator.core.preemption.eviction_backoff import PreemptionContext

ASKED_MAX = 64  # most resizes without an answer; further callers have to retry
TRIES_MAX = 5  # most times that one is decided again because another write to its node's ledger was first

Field = Literal["memory_mib", "sm_partition", "quota_request_permille", "quota_limit_permille"]
FIELDS: tuple[Field, ...] = ("memory_mib", "sm_partition", "quota_request_permille", "quota_limit_permille")
"""Of a share: MiB, percent of the GPU's SMs, thousandths of each time window."""

Effect = Literal["unchanged", "now", "next process start"]


class Change(msgspec.Struct, frozen=True):
    """The wanted shares of one container; a field that is not named stays. No container: the only one."""

    request: RequestId
    container: str
    values: dict[Field, int]


class AdjustReason(StrEnum):
    """Why shares are not changed."""

    INVALID_VALUE = "InvalidValue"
    NOT_FOUND = "NotFound"
    NOT_BOUND = "NotBound"
    NOT_A_SHARE = "NotAShare"
    UNCHANGED = "Unchanged"
    CAPACITY_EXCEEDED = "CapacityExceeded"
    QUOTA_EXCEEDED = "QuotaExceeded"
    NOT_NOW = "NotNow"


class AdjustRefused(msgspec.Struct, frozen=True):
    """They stay as they are, with the reason in a sentence. `most`: per growing field, the most that it could be now
    with the others unchanged. `under_way`: they are booked so already, and the node agent has not carried it out yet.
    """

    reason: AdjustReason
    message: str
    field: str = ""
    most: tuple[tuple[Field, int], ...] = ()
    under_way: bool = False


class FieldChange(msgspec.Struct, frozen=True):
    """One field: its old and new value, and when that takes effect. `before` is the largest of several devices'."""

    field: Field
    before: int
    after: int
    effect: Effect


class Adjusted(msgspec.Struct, frozen=True):
    """The new shares. `counted` is booked until the node agent has carried them out."""

    booking: Booking
    counted: Booking
    container: str
    revision: int
    fields: tuple[FieldChange, ...]


Outcome = Adjusted | AdjustRefused


@dataclass(slots=True)
class Asked:
    """One resize without an answer. `number` is the shell's."""

    number: int
    change: Change
    tries: int = 0


@dataclass(slots=True)
class Adjustments:
    """Resizes without an answer, and the answers that are due."""

    on_their_way: dict[AllocationId, tuple[Asked, Adjusted]] = field(default_factory=dict)  # being written
    again: list[Asked] = field(default_factory=list)  # to be decided again: another write was first
    answers: list[tuple[int, Outcome]] = field(default_factory=list)

    def undo(self, allocation: AllocationId) -> None:
        """A pending resize did not get into the ledger."""
        undone = self.on_their_way.pop(allocation, None)
        if undone is not None:
            self.again.append(undone[0])

    def refuse(self, number: int, message: str) -> None:
        self.answers.append((number, AdjustRefused(AdjustReason.NOT_NOW, f"{message}; retry")))


@dataclass(eq=False)
class ResizeContext(PreemptionContext):
    """With resizes that are not answered."""

    adjustments: Adjustments = field(default_factory=Adjustments)

    def roll_back(self, message: Grant) -> None:
        """A resize that did not get into the ledger is decided again."""
        super().roll_back(message)
        self.adjustments.undo(message.booking.allocation)
