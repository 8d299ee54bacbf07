"""
Tracks nodes that are known and not opened yet, and the requests that wait for them.

A node that cannot be opened for `orphan_grace_s` is given up: after that, requests no longer wait for it unless it
reported their slice.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from sluice.contracts.ids import Incarnation, NodeName, RequestId


@dataclass(slots=True)
class Opening:
    """The nodes that are not open, and the requests that wait for one node each."""

    since: dict[NodeName, tuple[Incarnation, float]] = field(default_factory=dict)
    """Since when, in this incarnation of the broker, nodes are known and not opened."""
    given_up: dict[NodeName, Incarnation] = field(default_factory=dict)
    held_on: dict[NodeName, dict[RequestId, None]] = field(default_factory=dict)
    holds: OrderedDict[RequestId, NodeName] = field(default_factory=OrderedDict)
    """The same by request, those that were looked at longest ago first."""

    def closed(self, node: NodeName, incarnation: Incarnation, now: float) -> None:
        """A node is known and not opened in this incarnation."""
        if self.given_up.get(node) != incarnation and self.since.get(node, ("", 0.0))[0] != incarnation:
            self.given_up.pop(node, None)
            self.since[node] = (incarnation, now)

    def opened(self, node: NodeName) -> dict[RequestId, None]:
        """A node is open, or gone. Returns the requests that waited for it."""
        self.since.pop(node, None)
        self.given_up.pop(node, None)
        return self._let_go(node)

    def give_up(self, now: float, grace_s: float) -> dict[RequestId, None]:
        """Time passed. Returns the requests that waited for nodes that could not be opened for so long."""
        waited: dict[RequestId, None] = {}
        for node, (incarnation, since) in list(self.since.items()):
            if now - since >= grace_s:
                del self.since[node]
                self.given_up[node] = incarnation
                waited |= self._let_go(node)
        return waited

    def hold(self, request: RequestId, node: NodeName) -> None:
        """A request waits for this node only."""
        if self.holds.get(request, node) != node:
            self.let_go(request)
        self.held_on.setdefault(node, {})[request] = None
        self.holds[request] = node

    def let_go(self, request: RequestId) -> None:
        """A request is reconsidered: whether it waits for a node is decided again."""
        node = self.holds.pop(request, None)
        if node is not None:
            del self.held_on[node][request]
            if not self.held_on[node]:
                del self.held_on[node]

    def longest_held(self, count: int) -> list[RequestId]:
        """Some of the requests that wait for a node, round robin."""
        requests = []
        for _ in range(min(count, len(self.holds))):
            request = next(iter(self.holds))
            self.holds.move_to_end(request)
            requests.append(request)
        return requests

    def _let_go(self, node: NodeName) -> dict[RequestId, None]:
        waited = self.held_on.pop(node, {})
        for request in waited:
            del self.holds[request]
        return waited
