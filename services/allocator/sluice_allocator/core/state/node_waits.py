"""Requests that wait for a node, because they may have a slice there that the ledger does not show (yet)."""

from collections import OrderedDict
from dataclasses import dataclass, field

from sluice.contracts.ids import NodeName, RequestId


@dataclass(slots=True)
class NodeWaits:
    """Each such request, and the one node that it waits for."""

    node_of: OrderedDict[RequestId, NodeName] = field(default_factory=OrderedDict)
    """Those that were looked at longest ago first."""
    _on: dict[NodeName, dict[RequestId, None]] = field(default_factory=dict)

    def hold(self, request: RequestId, node: NodeName) -> None:
        """A request waits for this node only."""
        if self.node_of.get(request, node) != node:
            self.let_go(request)
        self._on.setdefault(node, {})[request] = None
        self.node_of[request] = node

    def let_go(self, request: RequestId) -> None:
        """A request is reconsidered: whether it waits for a node is decided again."""
        node = self.node_of.pop(request, None)
        if node is not None:
            del self._on[node][request]
            if not self._on[node]:
                del self._on[node]

    def release(self, node: NodeName) -> dict[RequestId, None]:
        """A node is adopted, gone, or given up. Returns the requests that waited for it."""
        waited = self._on.pop(node, {})
        for request in waited:
            del self.node_of[request]
        return waited

    def longest_held(self, count: int) -> list[RequestId]:
        """Some of the requests that wait, round robin."""
        requests = []
        for _ in range(min(count, len(self.node_of))):
            requests.append(next(iter(self.node_of)))
            self.node_of.move_to_end(requests[-1])
        return requests
