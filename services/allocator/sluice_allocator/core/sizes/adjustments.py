"""
Adjustments that were asked for: what each says, what it comes to, and which are not answered yet.

It remembers who asked and what is on its way; it must not decide (`adjusting`). Losing it costs an answer, never a
slice: whoever got none asks again, and gets what then holds.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.contracts.messages import Booking

ASKED_MAX = 64
"""So many adjustments may be without an answer at a time; whoever comes then is told to ask again."""
TRIES_MAX = 5
"""So often one is decided anew because somebody else wrote to the ledger of its node first."""

Field = Literal["memory_mib", "sm_partition", "quota_request_permille", "quota_limit_permille"]
FIELDS: tuple[Field, ...] = ("memory_mib", "sm_partition", "quota_request_permille", "quota_limit_permille")
"""Of a share: MiB, percent of the GPU's SMs, thousandths of each time window."""

Effect = Literal["unchanged", "now", "next process start"]


@dataclass(frozen=True, slots=True)
class Change:
    """What the shares of one container shall be, each; a field that is not named stays. No container: the only one."""

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


@dataclass(frozen=True, slots=True)
class AdjustRefused:
    """
    They stay as they are, and why in a sentence.

    `most`: per field that was to grow, the most that it could be now while the others stay as they are. `under_way`:
    they are booked so already, and the node agent has not carried it out yet.
    """

    reason: AdjustReason
    message: str
    field: str = ""
    most: tuple[tuple[Field, int], ...] = ()
    under_way: bool = False


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field: what it is, what it becomes, and when that is felt. `before` is the largest of several devices'."""

    field: Field
    before: int
    after: int
    effect: Effect


@dataclass(frozen=True, slots=True)
class Adjusted:
    """The shares as they become. `counted` is what is booked until the node agent has carried it out."""

    booking: Booking
    counted: Booking
    container: str
    revision: int
    fields: tuple[FieldChange, ...]

    @property
    def node(self) -> NodeName:
        """Where it is."""
        return self.booking.node


Outcome = Adjusted | AdjustRefused


@dataclass(slots=True)
class Asked:
    """One adjustment without an answer. `number` is the shell's."""

    number: int
    change: Change
    tries: int = 0


@dataclass(slots=True)
class OnItsWay:
    """An adjustment that is being written: until the ledger has answered, the larger of both is booked."""

    asked: Asked
    adjusted: Adjusted


@dataclass(slots=True)
class Adjustments:
    """Everything that was asked for and not answered, and the answers that are due."""

    on_their_way: dict[AllocationId, OnItsWay] = field(default_factory=dict)
    again: list[Asked] = field(default_factory=list)
    """To be decided anew: somebody else wrote first."""
    answers: list[tuple[int, Outcome]] = field(default_factory=list)

    def undo(self, allocation: AllocationId) -> bool:
        """What was on its way did not get into the ledger. False when nothing was."""
        undone = self.on_their_way.pop(allocation, None)
        if undone is not None:
            self.again.append(undone.asked)
        return undone is not None

    def take_answers(self) -> list[tuple[int, Outcome]]:
        """What has to be answered now."""
        answers, self.answers = self.answers, []
        return answers
