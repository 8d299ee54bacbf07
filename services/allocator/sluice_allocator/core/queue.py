"""
Who waits, in which order: priority first, then who asked first. Requests that ask for the same wait as one group.

Where the head of a group does not fit, nobody behind it in the group does; so only heads have to be tried. Nothing
here grows with the number of those who wait, but the memory for them.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from sluice.contracts.ids import RequestId
from sluice.contracts.messages import AllocationRequested, Claim
from sluice_allocator.core.placement import NoPlace
from sluice_allocator.core.turns import Turn, Turns

SHAPES_REMEMBERED = 4096

_encoder = msgspec.msgpack.Encoder()


def shape_of(request: AllocationRequested) -> bytes:
    """
    What a request asks for, without who asks: requests of equal shapes fit the same places.

    Who asks is left in where it decides on the place: shares live among those of the same namespace and user.
    """
    is_shared = any(claim.modes != ("exclusive",) or claim.shares_percent is not None for claim in request.claims)
    claims = [_anonymous(claim, keep_uid=is_shared) for claim in request.claims]
    namespace = request.namespace if is_shared else None
    return _encoder.encode((claims, request.host, request.node_policy, request.gpu_policy, namespace))


def alone(shape: bytes, request: RequestId) -> bytes:
    """The shape of a request that may fail where its equals fit: it shall not stand for them, nor they for it."""
    return shape + request.encode()


class Shapes:
    """Shapes that some known model could serve. Models come to be known and are not forgotten, so it stays true."""

    def __init__(self) -> None:
        """None is known to be possible."""
        self._shapes: dict[bytes, None] = {}

    def __contains__(self, shape: bytes) -> bool:
        """Whether a shape is known to be possible."""
        return shape in self._shapes

    def add(self, shape: bytes) -> None:
        """A shape is possible. Too many are forgotten, and found to be possible again."""
        if shape not in self._shapes:
            if len(self._shapes) == SHAPES_REMEMBERED:
                self._shapes.clear()
            self._shapes[shape] = None


def _anonymous(claim: Claim, *, keep_uid: bool) -> Claim:
    return msgspec.structs.replace(claim, container="", uid=claim.uid if keep_uid else None)


@dataclass(slots=True, eq=False)
class Group:
    """Requests of one shape that wait."""

    shape: bytes
    members: Turns = field(default_factory=Turns)
    why: NoPlace | None = None
    """Why the whole fleet had no place for this shape when it was searched last; None before that."""
    searched_at: float = -1e9


class WaitingQueue:
    """Requests that want a place."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._waiting: OrderedDict[RequestId, tuple[Group, Turn]] = OrderedDict()
        """Ordered by when each was looked at last."""
        self._groups: dict[bytes, Group] = {}
        self._heads = Turns()

    def __contains__(self, request: RequestId) -> bool:
        """Whether a request waits."""
        return request in self._waiting

    @property
    def shapes(self) -> Mapping[bytes, Group]:
        """The shapes for which somebody waits."""
        return self._groups

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def add(self, request: RequestId, shape: bytes, rank: int, sequence: int) -> bool:
        """
        Let a request wait; lower ranks come first. False when it already did, in the same shape and rank.

        One that waits already keeps the sequence by which it came.
        """
        before = self._waiting.get(request)
        if before is not None and before[0].shape == shape and before[1][0] == rank:
            return False
        self.remove(request)
        group = self._groups.get(shape)
        if group is None:
            group = self._groups[shape] = Group(shape)
        turn = (rank, before[1][1] if before is not None else sequence, request)
        self._waiting[request] = (group, turn)
        head = group.members.first() if group.members else None
        group.members.add(turn)
        if head is None or turn < head:
            self._heads.add(turn)
            if head is not None:
                self._heads.remove(head)
        return True

    def remove(self, request: RequestId) -> None:
        """A request waits no longer."""
        found = self._waiting.pop(request, None)
        if found is None:
            return
        group, turn = found
        was_head = group.members.first() == turn
        group.members.remove(turn)
        if was_head:
            self._heads.remove(turn)
            if group.members:
                self._heads.add(group.members.first())
            else:
                del self._groups[group.shape]

    def group_of(self, request: RequestId) -> Group:
        """The group in which a request waits."""
        return self._waiting[request][0]

    def is_head(self, request: RequestId) -> bool:
        """Whether a request that waits is the first of its group."""
        group, turn = self._waiting[request]
        return group.members.first() == turn

    def before(self, request: RequestId) -> int:
        """How many of its group are tried before a request that waits."""
        group, turn = self._waiting[request]
        return group.members.before(turn)

    def head_after(self, turn: Turn | None) -> Turn | None:
        """The first head whose turn is after this one; the very first after None. None at the end."""
        return self._heads.after(turn)

    def next_to_refresh(self) -> RequestId:
        """Round robin over all who wait. Somebody must."""
        request = next(iter(self._waiting))
        self._waiting.move_to_end(request)
        return request
