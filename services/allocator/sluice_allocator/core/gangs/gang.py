"""Remembers gangs of pods that are granted together: their members, and how far each gang is. All of it follows from
requests, ledger and bindings, and is computed again when one of those changes (`gangs.reconcile`). Only the clocks and
the trial are memory of their own: losing them costs time, never a slice."""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import RequestId, SourceName
from sluice_allocator.core.placement import NoPlace
from sluice_allocator.core.preemption.eviction_backoff import PreemptionContext
from sluice_allocator.core.state.facts import UNUSABLE
from sluice_allocator.core.state.grant_facts import written_at

GangKey = tuple[str, str]  # namespace and name


class PartyStatus(Enum):
    """What its gang means for a pod."""

    WAITS = "waits"  # it gets no place by itself, and is not bound: its party's leader waits in the queue for all
    JOINS = "joins"  # others have places already: it searches for its own at once, and is not bound
    STARTS = "starts"  # all have their slices: it may be bound
    ALONE = "alone"  # a member is bound, or there is no gang: it is served like any single pod
    LEAVES = "leaves"  # there is no place for all: it releases its place

    @property
    def searches(self) -> bool:
        """Whether a pod without a place searches for one by itself."""
        return self is PartyStatus.ALONE or self is PartyStatus.JOINS

    @property
    def may_start(self) -> bool:
        """Whether a pod is bound when its slice is ready."""
        return self is PartyStatus.ALONE or self is PartyStatus.STARTS


class StuckMember(msgspec.Struct, frozen=True):
    """The member that had no place when its party was tried, and the reason."""

    member: RequestId
    why: NoPlace
    heard: int  # how often something had been freed when that trial began


NOT_GRANTED = 1 << 62  # behind every sequence


class Member(msgspec.Struct, frozen=True):
    """One live pod of a gang, as the bus shows it."""

    request: RequestId
    name: str
    size: int  # the gang's size, as this pod gives it
    priority: int
    sequence: int
    started: bool  # Bound, or remembered as bound by its source
    placed: bool  # it has a place, or may have one on a node that is not open yet
    ready: bool
    adopted_for: SourceName | None  # its source, if a grant of it was found carried out already: it may run there
    granted_at: int  # where in BOOK the earliest of its grants stands; NOT_GRANTED while none does
    waived_at: int  # the sequence in BOOK at which its gang's release was published; -1 where it was not


@dataclass(slots=True)
class PatienceTimer:
    """How far a party got, in places and ready slices, and since when. What is lost and comes back is no progress."""

    progress: int
    since: float


@dataclass(slots=True)
class Party:
    """As many members as the gang's size, granted together; the last party may be incomplete."""

    number: int
    size: int
    members: tuple[RequestId, ...]
    turn: tuple[int, int] = (0, 0)  # the lowest priority (negated), and the youngest: since then it may be served
    why: NoPlace | None = None
    leader: RequestId | None = None  # the member that waits in the queue on behalf of all
    clock: PatienceTimer | None = None  # while it has places and no member is bound


@dataclass(slots=True)
class Gang:
    """All pods of one gang."""

    key: GangKey
    members: dict[RequestId, None] = field(default_factory=dict)
    known: dict[RequestId, Member] = field(default_factory=dict)  # the members when the gang was last looked at
    touched: dict[RequestId, None] = field(default_factory=dict)  # members that changed since
    held: dict[RequestId, None] = field(default_factory=dict)  # members that may have a slice on an unadopted node
    is_due: bool = False  # whether a gang that is too large to be looked at all the time is to be looked at now
    statuses: dict[RequestId, PartyStatus] = field(default_factory=dict)
    party_of: dict[RequestId, Party] = field(default_factory=dict)
    parties: tuple[Party, ...] = ()
    clocks: dict[RequestId, PatienceTimer] = field(default_factory=dict)  # by member: parties get other numbers
    stuck: dict[int, StuckMember] = field(default_factory=dict)  # per party, the result of its last failed trial
    looked: dict[RequestId, None] = field(default_factory=dict)  # members that were looked at before the gang was


@dataclass(slots=True)
class Trial:
    """Places for a whole party, found one after the other. They are booked here and not ordered yet."""

    key: GangKey
    party: Party
    revisions: dict[RequestId, int]  # the requests as they are tried
    left: deque[RequestId]
    found: dict[RequestId, msg.Booking] = field(default_factory=dict)
    heard: int = 0  # how often something had been freed when it began
    in_one_event: bool = True  # whether no other request was tried meanwhile


class Gangs:
    """All gangs."""

    def __init__(self) -> None:
        self.of: dict[GangKey, Gang] = {}
        self.member_of: dict[RequestId, GangKey] = {}
        self.dirty: OrderedDict[GangKey, None] = OrderedDict()  # changed: looked at before any member acts
        self.put_off: OrderedDict[GangKey, None] = OrderedDict()  # to be looked at with the next tick
        self.timed: OrderedDict[GangKey, None] = OrderedDict()  # those with a clock
        self.waiting: OrderedDict[RequestId, None] = OrderedDict()  # members that show the gang's reason, oldest first
        self.owed: OrderedDict[RequestId, None] = OrderedDict()  # leaders whose offer came when they were busy
        self.trial: Trial | None = None
        self.rest_until = -1e9  # until then failed searches delay the next trial

    def know(self, request: RequestId, key: GangKey | None) -> None:
        """A request is of this gang; of none any more, or gone."""
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
        """A request changed: its gang is looked at before any member acts."""
        key = self.member_of.get(request)
        if key is not None:
            self.of[key].touched[request] = None
            self.dirty[key] = None

    def note_hold(self, request: RequestId, *, holds: bool) -> None:
        """Whether a request may have a slice on a node that is not open yet."""
        key = self.member_of.get(request)
        if key is None or (request in self.of[key].held) == holds:
            return
        self.of[key].held.pop(request, None)
        if holds:
            self.of[key].held[request] = None
        self.touch(request)

    def is_unknown(self, request: RequestId) -> bool:
        """Whether a request's gang is to be looked at before its members act."""
        key = self.member_of.get(request)
        return key in self.dirty or key in self.put_off

    def note_looked_at(self, request: RequestId) -> None:
        """A request was reconciled: if its gang is still to be looked at, it is looked at again after that."""
        if self.is_unknown(request):
            self.of[self.member_of[request]].looked[request] = None

    def status_of(self, request: RequestId) -> PartyStatus:
        """What its gang means for a request now: while that is unknown it waits; without a gang it is alone."""
        key = self.member_of.get(request)
        if key is None:
            return PartyStatus.ALONE
        return PartyStatus.WAITS if self.is_unknown(request) else self.of[key].statuses.get(request, PartyStatus.WAITS)

    def leads(self, request: RequestId) -> bool:
        """Whether a request waits in the queue on behalf of its gang."""
        return request in self.member_of and (party := self.party_of(request)) is not None and party.leader == request

    def party_of(self, request: RequestId) -> Party | None:
        key = self.member_of.get(request)
        return self.of[key].party_of.get(request) if key is not None else None

    def _leave(self, request: RequestId, key: GangKey) -> None:
        del self.member_of[request]
        self.waiting.pop(request, None)
        self.owed.pop(request, None)
        gang = self.of[key]
        for known in (gang.members, gang.statuses, gang.party_of, gang.looked, gang.held):
            known.pop(request, None)
        gang.touched[request] = None
        self.dirty[key] = None


@dataclass(eq=False)
class GangContext(PreemptionContext):
    """With gangs, and the trial that is under way."""

    gangs: Gangs = field(default_factory=Gangs)

    @property
    def nothing_else_to_do(self) -> bool:
        return not (self.gangs.dirty or self.gangs.trial) and super().nothing_else_to_do

    def touch(self, request: RequestId) -> None:
        self.gangs.touch(request)

    def take_back(self, guard: str) -> None:
        """A trial's places there are searched again."""
        super().take_back(guard)
        for booking in list(self.gangs.trial.found.values()) if self.gangs.trial is not None else ():
            if subjects.ledger(booking.node, booking.allocation).guard == guard:
                self.untry(booking)

    def take_back_all(self) -> None:
        super().take_back_all()
        self.put_trial_off()

    def untry(self, booking: msg.Booking) -> None:
        trial = self.gangs.trial
        if trial is not None and trial.found.pop(booking.request, None) is not None:
            self.unassume(booking)
            trial.left.append(booking.request)

    def drop_trial(self) -> None:
        trial, self.gangs.trial = self.gangs.trial, None
        for booking in trial.found.values() if trial is not None else ():
            if self.unassume(booking) and trial is not None and not trial.in_one_event:
                self.offers.freed(booking.node, as_before=True)  # others may have been tried beside it

    def put_trial_off(self) -> None:
        if self.gangs.trial is not None and self.gangs.trial.party.leader is not None:
            self.gangs.owed[self.gangs.trial.party.leader] = None
        self.drop_trial()


NOT_USABLE = (*UNUSABLE, msg.SliceGone)  # no gang starts on these


def member_of_gang(ctx: GangContext, request: RequestId) -> Member | None:
    """The state of one pod; None when it is over or refused, and so not counted."""
    asked, binding = ctx.facts.wanted(request), ctx.facts.answer_to(request)
    if asked is None or asked.group is None or isinstance(binding, msg.Refused | msg.Released):
        return None
    sequences = ctx.facts.sequences[Stream.BOOK]
    waived = ctx.facts.waived_by(request)
    together = isinstance(binding, msg.Waived) and bool(waived) and not binding.alone
    waived_at = sequences.get(subjects.binding(request).subject, -1) if together else -1
    placed, ready, granted_at = request in ctx.committing or request in ctx.node_waits.node_of, False, NOT_GRANTED
    adopted = False
    for entry in ctx.facts.grants_of(request):
        allocation = entry.booking.allocation
        slice_ = ctx.facts.slices.get(allocation)
        if allocation in waived or isinstance(slice_, NOT_USABLE):
            continue
        placed = True
        adopted |= entry.adopted
        ready |= isinstance(slice_, msg.SliceReady) and slice_.revision == entry.revision
        granted_at = min(granted_at, written_at(ctx, entry.booking) or granted_at)
    return Member(
        request=request,
        name=asked.name,
        size=asked.group.size,
        priority=ctx.priority_of(asked.namespace, asked.priority),
        sequence=ctx.facts.came_at(request),
        started=isinstance(binding, msg.Bound) or asked.held is not None,
        placed=placed,
        ready=ready,
        adopted_for=asked.source if adopted else None,
        granted_at=granted_at,
        waived_at=waived_at,
    )
