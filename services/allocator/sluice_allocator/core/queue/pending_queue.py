"""The queue: waiting requests by priority, then age. Those with equal needs are a shape, of which only the head is
tried. Memory is limited: beyond it requests are kept outside, as their turns only, and come in as others leave."""

from collections import OrderedDict
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from sluice.contracts.ids import RequestId
from sluice.contracts.messages import AllocationRequested, Claim, PodTerm, SpreadTerm
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice_allocator.core.placement import NoPlace
from sluice_allocator.core.sorted_keys import QueueKey, QueueKeys

_encoder = msgspec.msgpack.Encoder()


def shape_of(request: AllocationRequested, *, limited: bool = False) -> bytes:
    """A request's needs: requests of equal shapes fit the same places. Its owner is included where it decides: shares
    live among those of the same namespace and user, a `limited` namespace may have to wait where others need not, and
    terms about other pods name one namespace and labels. So is being in a gang, which gets no reservations and evicts
    no pods, and so is a request that does not preempt: behind such a head the rest of its shape would get none either.
    """
    more = _more_of(request) if request.resource_claims or request.same_gpu or request.alternatives else ()
    sets = (request.claims, *request.alternatives)
    is_shared = any(claim.modes != ("exclusive",) or claim.shares_percent is not None for one in sets for claim in one)
    claims = [_anonymous(claim, keep_uid=is_shared) for claim in request.claims]
    namespace = request.namespace if is_shared or limited else None
    served_by = request.leeway.substitute != "no"
    of_group = request.group is not None
    host, alike = request.host, (namespace, served_by, of_group, request.preempts)
    asked = (claims, host, request.node_policy, request.gpu_policy, *alike, *more)
    if not (host.beside or host.apart or host.spread):
        return _encoder.encode(asked)
    terms: tuple[PodTerm | SpreadTerm, ...] = (*host.beside, *host.apart, *host.spread)
    keys = {each.key for term in terms for each in term.selector}
    labels = sorted((key, value) for key, value in request.labels.items() if key in keys)
    return _encoder.encode((*asked, request.namespace, labels))


def _more_of(request: AllocationRequested) -> tuple[object, ...]:
    """What it needs besides: containers count by name where a group of claims or an alternative may name them."""
    alternatives = [[replace(claim, driver_capabilities="") for claim in claims] for claims in request.alternatives]
    names = [claim.container for claim in request.claims] if request.same_gpu or request.alternatives else []
    return bool(request.resource_claims), request.same_gpu, alternatives, names


def singleton_shape(shape: bytes, request: RequestId) -> bytes:
    """The shape of a request that may fail where its equals fit: neither represents the other."""
    return shape + request.encode()


def _anonymous(claim: Claim, *, keep_uid: bool) -> Claim:
    return replace(claim, container="", uid=claim.uid if keep_uid else None, driver_capabilities="")


@dataclass(slots=True, eq=False)
class PendingShape:
    """Waiting requests of one shape."""

    shape: bytes
    members: QueueKeys = field(default_factory=QueueKeys)
    why: NoPlace | None = None  # why the whole fleet had no place for this shape at the last search; None before that
    searched_at: float = -1e9
    promise_failures: int = 0  # how often no reservation could be made for its first
    aside: str | None = None  # the namespace whose limits it waits for, while places are of no use to it


class PendingQueue:
    """Requests that want a place."""

    def __init__(self, most: int = 1 << 62) -> None:
        self._most = most
        self._turns = QueueKeys()  # of all that wait inside
        self.outside: dict[RequestId, QueueKey] = {}
        self._outside_turns = QueueKeys()
        self._put_out: OrderedDict[RequestId, None] = OrderedDict()  # requests that are newly outside
        self._waiting: OrderedDict[RequestId, tuple[PendingShape, QueueKey]] = OrderedDict()  # longest unseen first
        self.shapes: dict[bytes, PendingShape] = {}
        self._heads = QueueKeys()
        self._aside: dict[str, QueueKeys] = {}  # by namespace, the heads of shapes that wait for its limits

    def __contains__(self, request: RequestId) -> bool:
        return request in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: RequestId, shape: bytes, rank: int, sequence: int) -> bool:
        """Add a request; lower ranks come first. False when it already waited, in the same shape and rank, and when it
        is kept outside: then all inside come before it. A request that already waits keeps its original sequence."""
        before = self._waiting.get(request)
        if before is not None and before[0].shape == shape and before[1][0] == rank:
            return False
        known = before[1] if before is not None else self.outside.get(request)
        turn = (rank, known[1] if known is not None else sequence, request)
        if before is None and known == turn and not self.has_room:
            return False  # outside, and still so
        self.remove(request)
        if not self._makes_room_for(turn):
            self._keep_outside(turn)
            return False
        pending = self.shapes.setdefault(shape, PendingShape(shape))
        self._waiting[request] = (pending, turn)
        self._turns.add(turn)
        head = pending.members.after(None)
        pending.members.add(turn)
        if head is None or turn < head:
            self._heads_of(pending).add(turn)
            if head is not None:
                self._heads_of(pending).remove(head)
        return True

    def remove(self, request: RequestId) -> None:
        outside = self.outside.pop(request, None) if self.outside else None
        if outside is not None:
            self._outside_turns.remove(outside)
            self._put_out.pop(request, None)
            return
        found = self._waiting.pop(request, None)
        if found is None:
            return
        pending, turn = found
        self._turns.remove(turn)
        was_head = pending.members.first() == turn
        pending.members.remove(turn)
        if was_head:
            if pending.members:
                self._heads_of(pending).add(pending.members.first())
            else:
                del self.shapes[pending.shape]
            self._remove_head(pending, turn)

    def why_outside(self) -> NoPlace:
        inside, outside = len(self), len(self.outside)
        message = (
            f"the queue is full: {inside} requests wait, and {outside} more outside of it; this one enters it in "
            "its turn when others have a place or are withdrawn (the limit is the allocator's waiting_max)"
        )
        return NoPlace(message, (ReasonCount(reason=WaitReason.QUEUE_FULL, count=outside, of="requests"),))

    @property
    def has_room(self) -> bool:
        return len(self._waiting) < self._most

    @property
    def has_news(self) -> bool:
        """Whether a request newly outside has no reason yet, or one may come in."""
        return bool(self._put_out) or (bool(self.outside) and self.has_room)

    def next_put_out(self) -> RequestId | None:
        """A request newly outside, each once; None when there is none."""
        return self._put_out.popitem(last=False)[0] if self._put_out else None

    def next_to_let_in(self) -> RequestId | None:
        """The next request to come in; None when none is outside, or none may."""
        return self._outside_turns.first()[2] if self.outside and self.has_room else None

    def _makes_room_for(self, turn: QueueKey) -> bool:
        """Whether one with this turn may come in: if there is room and none before it, or if it displaces the last."""
        if self.has_room:
            return not self.outside or turn < self._outside_turns.first()
        last = self._turns.last() if self._turns else None
        if last is None or last < turn:
            return False
        self.remove(last[2])
        self._keep_outside(last)
        return True

    def _keep_outside(self, turn: QueueKey) -> None:
        self.outside[turn[2]] = turn
        self._outside_turns.add(turn)
        self._put_out[turn[2]] = None

    def pending_shape(self, request: RequestId) -> PendingShape:
        return self._waiting[request][0]

    def is_head(self, request: RequestId) -> bool:
        pending, turn = self._waiting[request]
        return pending.members.first() == turn

    def before(self, request: RequestId) -> int:
        pending, turn = self._waiting[request]
        return pending.members.before(turn)

    def ahead(self, request: RequestId) -> int:
        """How many of all that wait inside come before a waiting request, whatever their shape."""
        return self._turns.before(self._waiting[request][1])

    def set_aside(self, request: RequestId, namespace: str) -> None:
        """Offer no places to a waiting request's shape: its namespace's limits forbid them."""
        self._move(self.pending_shape(request), namespace)

    def offer_again(self, request: RequestId) -> None:
        self._move(self.pending_shape(request), None)

    def aside_after(self, namespace: str, turn: QueueKey | None) -> QueueKey | None:
        """As `head_after`, of the shapes that wait for the limits of a namespace."""
        heads = self._aside.get(namespace)
        return heads.after(turn) if heads is not None else None

    def in_turn(self) -> list[RequestId]:
        """All that wait inside. Walks over all: not for decisions."""
        return [request for _, _, request in sorted(turn for _, turn in self._waiting.values())]

    def head_after(self, turn: QueueKey | None) -> QueueKey | None:
        """The first head whose turn is after this one; the very first after None. None at the end."""
        return self._heads.after(turn)

    def next_to_refresh(self) -> RequestId:
        """Round robin over all that wait. There must be one."""
        request = next(iter(self._waiting))
        self._waiting.move_to_end(request)
        return request

    def _heads_of(self, pending: PendingShape) -> QueueKeys:
        return self._heads if pending.aside is None else self._aside.setdefault(pending.aside, QueueKeys())

    def _remove_head(self, pending: PendingShape, turn: QueueKey) -> None:
        heads = self._heads_of(pending)
        heads.remove(turn)
        if pending.aside is not None and not heads:
            del self._aside[pending.aside]

    def _move(self, pending: PendingShape, aside: str | None) -> None:
        if pending.aside == aside:
            return
        head = pending.members.first()
        self._remove_head(pending, head)
        pending.aside = aside
        self._heads_of(pending).add(head)
