"""Conditions that are looked at again, and since when each holds. Observed when a fact changes; `core.recheck` has the
rule of each: how long, what confirms it, what follows. Losing it costs time, never a slice."""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import NodeName, RequestId, SourceName
from sluice_allocator.core.key_index import drop, in_turn, put


class Condition(StrEnum):
    """What may have to be looked at again. In brackets: what is the key."""

    GRANT_WITHOUT_REQUEST = "a grant has no request (allocation)"
    ANSWER_WITHOUT_REQUEST = "a binding has no request (request)"
    STATUS_WITHOUT_SLICE = "an agent's status has neither ledger entry nor slice (allocation)"
    BOUND_WITHOUT_ENTRY = "a binding has no ledger entry (request)"
    BINDING_DIFFERS = "a binding differs from its slice, and neither is known to be newer (request)"
    SLICE_WITHOUT_ENTRY = "an agent reports a slice that the ledger of its adopted node lacks (node)"
    NODE_NEVER_OPENED = "a node is known, and was not opened since the broker was wiped (node)"
    NODE_REMOVED = "a node was removed, and its agent may still prove that it runs (node)"
    REMOVAL_UNREAD = "a ledger was closed for a removal that is not read yet (node)"
    CONSUMER_MISSING = "an agent may have no durable consumer (node)"


@dataclass(slots=True)
class Watched:
    """One key of a condition."""

    due: float | None  # when it has lasted long enough; None while it is not certain
    mark: int = 0  # what its rule notes
    reading: int | None = None  # how many readings had begun when it had lasted long enough: a later one confirms it


class Conditions:
    """The conditions that hold; of each kind, the keys that were looked at longest ago first."""

    def __init__(self) -> None:
        self._young: dict[Condition, OrderedDict[str, Watched]] = {each: OrderedDict() for each in Condition}
        self._mature: dict[Condition, dict[str, Watched]] = {each: {} for each in Condition}
        self.readings: Counter[Stream] = Counter()  # how often each stream began to be read
        self.syncs: Counter[SourceName] = Counter()  # how often each source was complete, outside snapshots
        self.to_read: dict[Stream, None] = {}  # streams to be read again, to confirm a condition

    def observe(
        self, condition: Condition, key: str, *, holds: bool = True, due: float | None = None, mark: int = 0
    ) -> None:
        """A condition holds, or no longer does. The first time counts."""
        if not holds:
            self.clear(condition, key)
        elif self.get(condition, key) is None:
            self._young[condition][key] = Watched(due, mark)

    def clear(self, condition: Condition, key: str) -> bool:
        if not self._young[condition] and not self._mature[condition]:
            return False  # nearly always
        return (self._young[condition].pop(key, None) or self._mature[condition].pop(key, None)) is not None

    def clear_all(self, condition: Condition) -> None:
        self._young[condition].clear()
        self._mature[condition].clear()

    def get(self, condition: Condition, key: str) -> Watched | None:
        return self._young[condition].get(key) or self._mature[condition].get(key)

    def holds(self, condition: Condition, key: str) -> bool:
        return self.get(condition, key) is not None

    def is_mature(self, condition: Condition, key: str) -> bool:
        return key in self._mature[condition]

    def young(self, condition: Condition) -> Mapping[str, Watched]:
        """The keys for which it has not lasted long enough."""
        return self._young[condition]

    def mature(self, condition: Condition, key: str) -> None:
        """It has lasted long enough, and is not looked at again until it is observed again."""
        self._mature[condition][key] = self._young[condition].pop(key)

    def in_turn(self, condition: Condition, most: int) -> list[str]:
        """The keys looked at longest ago, at most so many; they come last the next time."""
        young = self._young[condition]
        return in_turn(young, most) if young else []

    def confirm(self, watched: Watched, stream: Stream) -> bool:
        """Whether a stream was read since a condition had lasted long enough; else it is to be read again."""
        if watched.reading is None:
            watched.reading = self.readings[stream]
            self.to_read[stream] = None
        return self.readings[stream] > watched.reading

    def end_older(self, condition: Condition, stream: Stream) -> None:
        """A stream was read completely: a condition is over that was observed before that began."""
        for key in [key for key, each in self._young[condition].items() if each.mark < self.readings[stream]]:
            self.clear(condition, key)


@dataclass(slots=True)
class NodeWaits:
    """Requests that may have a slice on a node where that is not certain yet, and the one node each waits for."""

    node_of: OrderedDict[RequestId, NodeName] = field(default_factory=OrderedDict)  # looked at longest ago first
    since: dict[RequestId, float] = field(default_factory=dict)  # when each began to wait, whichever the node
    _on: dict[NodeName, dict[RequestId, None]] = field(default_factory=dict)

    def hold(self, request: RequestId, node: NodeName, now: float) -> None:
        if self.node_of.get(request, node) != node:
            self.let_go(request)
        put(self._on, node, request)
        self.node_of[request] = node
        self.since.setdefault(request, now)

    def let_go(self, request: RequestId) -> None:
        """A request is reconsidered: whether it waits for a node is decided again."""
        node = self.node_of.pop(request, None)
        if node is not None:
            drop(self._on, node, request)

    def release(self, node: NodeName) -> dict[RequestId, None]:
        """A node is adopted, gone, or given up. Returns the requests that waited for it."""
        waited = self._on.pop(node, {})
        for request in waited:
            del self.node_of[request]
        return waited
