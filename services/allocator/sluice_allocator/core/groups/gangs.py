"""
What this process remembers of pods that are granted together: who is of which group, and how each group stands.

All of it follows from requests, ledger and bindings, and is worked out again when one of those changes (`groups`).
Only the clocks and the trial are memory of their own: losing them costs time, never a slice. Nothing is decided here.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import Enum

from sluice.contracts.ids import RequestId, SourceName
from sluice.contracts.messages import Booking
from sluice.contracts.reasons import ReasonCount

GroupKey = tuple[str, str]
"""Namespace and name."""


class Stand(Enum):
    """What the group of a pod means for it."""

    WAITS = "waits"
    """For the others: it gets no place by itself, and is not bound."""
    JOINS = "joins"
    """Others have places already: it looks for its own at once, and is not bound."""
    STARTS = "starts"
    """All have their slices: it may be bound."""
    ALONE = "alone"
    """Somebody is bound: it is served like a pod without group."""
    LEAVES = "leaves"
    """There is no place for all: it gives back what it has."""


@dataclass(frozen=True, slots=True)
class Why:
    """Why a group waits."""

    message: str
    reasons: tuple[ReasonCount, ...]


@dataclass(frozen=True, slots=True)
class Stuck:
    """The member that had no place when its party was tried, and what was said of that."""

    member: RequestId
    why: Why
    heard: int
    """How often something had been freed when that trial began."""


NOT_GRANTED = 1 << 62
"""Behind every sequence."""


@dataclass(frozen=True, slots=True)
class Member:
    """One living pod of a group, as the bus tells of it."""

    request: RequestId
    name: str
    size: int
    """Of its group, as it says itself."""
    priority: int
    sequence: int
    started: bool
    """Bound, or bound to by its source's memory."""
    placed: bool
    """It has a place, or may have one on a node that is not open yet."""
    ready: bool
    adopted_for: SourceName | None
    """Its source, where a grant of it was found to be carried out already: it may run there, as its source knows."""
    granted_at: int
    """Where in BOOK the earliest of its grants stands; NOT_GRANTED while none does."""
    waived_at: int
    """Where in BOOK it was said that its group gives back what it has; -1 where it was not."""


@dataclass(slots=True)
class Clock:
    """How far a party has come, and since when it came no further."""

    progress: int
    since: float


@dataclass(slots=True)
class Party:
    """So many members of a group as its size says, who are granted together; the last one may be incomplete."""

    number: int
    size: int
    members: tuple[RequestId, ...]
    turn: tuple[int, int] = (0, 0)
    """The lowest priority among the members (negated), and the youngest of them: since then it could be served."""
    why: Why | None = None
    leader: RequestId | None = None
    """Who waits in the queue on behalf of all."""
    clock: Clock | None = None
    """While it has places and nobody of it is bound."""


@dataclass(slots=True)
class Gang:
    """All pods of one group."""

    key: GroupKey
    members: dict[RequestId, None] = field(default_factory=dict)
    known: dict[RequestId, Member] = field(default_factory=dict)
    """What was known of those who count when the group was looked at last."""
    touched: dict[RequestId, None] = field(default_factory=dict)
    """About whom something has changed since."""
    held: dict[RequestId, None] = field(default_factory=dict)
    """Who may have a slice on a node that is not open yet."""
    is_due: bool = False
    """Whether a group that is too large to be looked at all the time is to be looked at now."""
    stands: dict[RequestId, Stand] = field(default_factory=dict)
    party_of: dict[RequestId, Party] = field(default_factory=dict)
    parties: tuple[Party, ...] = ()
    clocks: dict[RequestId, Clock] = field(default_factory=dict)
    """Those of the parties, by each of their members: parties that move up have other numbers."""
    stuck: dict[int, Stuck] = field(default_factory=dict)
    """Per party, what came of the trial that was in vain last."""
    looked: dict[RequestId, None] = field(default_factory=dict)
    """Members that were looked at before the group was."""


@dataclass(slots=True)
class Trial:
    """Places for a whole party, found one after the other. They are booked here and not ordered yet."""

    key: GroupKey
    party: Party
    revisions: dict[RequestId, int]
    """The requests as they are tried."""
    left: deque[RequestId]
    found: dict[RequestId, Booking] = field(default_factory=dict)
    heard: int = 0
    """How often something had been freed when it began."""
    in_one_event: bool = True
    """Whether nobody was tried beside it."""


class Gangs:
    """All groups."""

    def __init__(self) -> None:
        """There is none."""
        self.of: dict[GroupKey, Gang] = {}
        self.member_of: dict[RequestId, GroupKey] = {}
        self.dirty: OrderedDict[GroupKey, None] = OrderedDict()
        """About which something has changed: nobody of them acts before they were looked at."""
        self.put_off: OrderedDict[GroupKey, None] = OrderedDict()
        """The same of groups that are looked at with the next tick."""
        self.timed: OrderedDict[GroupKey, None] = OrderedDict()
        """Those with a clock."""
        self.waiting: OrderedDict[RequestId, None] = OrderedDict()
        """Members who are told by their group why they wait, the one that was told longest ago first."""
        self.owed: OrderedDict[RequestId, None] = OrderedDict()
        """Leaders to whom something was offered when they could not be tried."""
        self.trial: Trial | None = None
        self.rest_until = -1e9
        """By then what was looked for in vain is made up for."""

    def know(self, request: RequestId, key: GroupKey | None) -> None:
        """A request is of this group; of none any more, or not there."""
        before = self.member_of.get(request)
        if before == key:
            return
        if before is not None:
            self._leave(request, before)
        if key is not None:
            self.member_of[request] = key
            self.of.setdefault(key, Gang(key)).members[request] = None
            self.touch(request)

    def touch(self, request: RequestId) -> None:
        """Something about a request has changed: its group is to be looked at before anybody of it acts."""
        key = self.member_of.get(request)
        if key is not None:
            self.of[key].touched[request] = None
            self.dirty[key] = None

    def note_hold(self, request: RequestId, *, holds: bool) -> None:
        """Whether a request may have a slice on a node that is not open yet."""
        key = self.member_of.get(request)
        if key is None or (request in self.of[key].held) == holds:
            return
        if holds:
            self.of[key].held[request] = None
        else:
            del self.of[key].held[request]
        self.touch(request)

    def unknown(self, request: RequestId) -> bool:
        """Whether it is still to be found out what its group means for a member; then it is looked at again."""
        gang = self.of[self.member_of[request]]
        if gang.key in self.dirty or gang.key in self.put_off:
            gang.looked[request] = None
            return True
        return False

    def stand_of(self, request: RequestId) -> Stand:
        """What its group means for a member now; while that is not known, it waits, and is looked at again."""
        if self.unknown(request):
            return Stand.WAITS
        gang = self.of[self.member_of[request]]
        return gang.stands.get(request, Stand.WAITS)

    def leads(self, request: RequestId) -> bool:
        """Whether a request waits in the queue on behalf of its group."""
        key = self.member_of.get(request)
        if key is None:
            return False
        party = self.of[key].party_of.get(request)
        return party is not None and party.leader == request

    def _leave(self, request: RequestId, key: GroupKey) -> None:
        del self.member_of[request]
        self.waiting.pop(request, None)
        self.owed.pop(request, None)
        gang = self.of[key]
        del gang.members[request]
        gang.stands.pop(request, None)
        gang.party_of.pop(request, None)
        gang.looked.pop(request, None)
        gang.held.pop(request, None)
        gang.touched[request] = None
        self.dirty[key] = None
