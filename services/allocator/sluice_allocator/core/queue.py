"""
Who waits, in which order: priority first, then who asked first. Requests of one shape wait as one group.

When something was freed only the head of each shape has to be tried: if it does not fit, none behind it does.
"""

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field

from sluice.contracts.ids import RequestId
from sluice.contracts.messages import AllocationRequested
from sluice_allocator.core.shapes import Ask, ask_of

Turn = tuple[int, int, RequestId]
"""Priority (negated), sequence of the request's first word, id."""
Shape = tuple[tuple[Ask, int], ...]


def shape_of(request: AllocationRequested) -> Shape:
    """What a request asks for, without who asks: equal shapes fit the same places."""
    return tuple((ask_of(claim), claim.gpus) for claim in request.claims)


@dataclass(slots=True)
class WaitingQueue:
    """Requests that want a place."""

    turns: dict[RequestId, tuple[Shape, Turn]] = field(default_factory=dict)
    groups: dict[Shape, list[Turn]] = field(default_factory=dict)

    def __contains__(self, request: RequestId) -> bool:
        """Whether a request waits."""
        return request in self.turns

    def __len__(self) -> int:
        """How many wait."""
        return len(self.turns)

    def add(self, request: RequestId, asked: AllocationRequested, sequence: int) -> bool:
        """Let a request wait. False when it already did, in the same shape."""
        shape = shape_of(asked)
        before = self.turns.get(request)
        if before is not None and before[0] == shape and before[1][0] == -asked.priority:
            return False
        self.remove(request)
        turn = (-asked.priority, before[1][1] if before is not None else sequence, request)
        self.turns[request] = (shape, turn)
        bisect.insort(self.groups.setdefault(shape, []), turn)
        return True

    def remove(self, request: RequestId) -> None:
        """A request waits no longer."""
        found = self.turns.pop(request, None)
        if found is None:
            return
        shape, turn = found
        group = self.groups[shape]
        del group[bisect.bisect_left(group, turn)]
        if not group:
            del self.groups[shape]

    def next_to_refresh(self) -> RequestId:
        """Round robin over all who wait."""
        request = next(iter(self.turns))
        self.turns[request] = self.turns.pop(request)
        return request

    def heads(self) -> Iterator[tuple[Turn, Shape]]:
        """The first of each shape, in the order of their turns."""
        yield from sorted((group[0], shape) for shape, group in self.groups.items())

    def next_of(self, shape: Shape, after: Turn) -> Turn | None:
        """Who of a shape comes after a turn."""
        group = self.groups.get(shape, [])
        position = bisect.bisect_right(group, after)
        return group[position] if position < len(group) else None
