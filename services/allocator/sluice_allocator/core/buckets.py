"""
GPUs grouped by model and layout state, so that a decision looks at states and never at the fleet.

A busy fleet occupies a dozen distinct states per model; picking the best place is a walk over those.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from sluice.contracts.ids import GpuUuid
from sluice.mig.table import State

GpuOrder = tuple[str, int, GpuUuid]
"""Node, index on the node, UUID: the deterministic order in which equal GPUs are taken."""


@dataclass(slots=True)
class _Bucket:
    members: dict[GpuUuid, GpuOrder] = field(default_factory=dict)
    heap: list[GpuOrder] = field(default_factory=list)
    """Every member, and some that have left: those are dropped when they come to the top."""

    def add(self, order: GpuOrder) -> None:
        self.members[order[2]] = order
        heapq.heappush(self.heap, order)
        if len(self.heap) > 64 + 4 * len(self.members):
            self.heap = sorted(self.members.values())

    def first(self) -> GpuUuid:
        while self.members.get(self.heap[0][2]) != self.heap[0]:
            heapq.heappop(self.heap)
        return self.heap[0][2]


class Buckets:
    """Which usable GPUs of each model are in which state."""

    def __init__(self) -> None:
        """Begin empty."""
        self._by_model: dict[str, dict[State, _Bucket]] = {}
        self._where: dict[GpuUuid, tuple[str, State]] = {}

    def put(self, order: GpuOrder, model_key: str, state: State) -> None:
        """A GPU is usable and in `state` now."""
        uuid = order[2]
        if self._where.get(uuid) == (model_key, state):
            return
        self.remove(uuid)
        self._where[uuid] = (model_key, state)
        self._by_model.setdefault(model_key, {}).setdefault(state, _Bucket()).add(order)

    def remove(self, uuid: GpuUuid) -> None:
        """A GPU is not to be used any more."""
        where = self._where.pop(uuid, None)
        if where is None:
            return
        model_key, state = where
        states = self._by_model[model_key]
        del states[state].members[uuid]
        if not states[state].members:
            del states[state]
        if not states:
            del self._by_model[model_key]

    def models(self) -> Iterator[str]:
        """The models of which at least one GPU is usable, in name order."""
        yield from sorted(self._by_model)

    def states(self, model_key: str) -> Iterator[tuple[State, int]]:
        """The states in which usable GPUs of a model are, with how many there are in each."""
        for state, bucket in self._by_model.get(model_key, {}).items():
            yield state, len(bucket.members)

    def first(self, model_key: str, state: State) -> GpuUuid:
        """The GPU of a state that is taken next."""
        return self._by_model[model_key][state].first()
