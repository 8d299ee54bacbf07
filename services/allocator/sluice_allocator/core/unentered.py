"""
Tracks slices that an agent reports on an open node without a ledger entry (PROTOCOL §6).

Either their entries are on their way to us, or the node was opened without them: BOOK was lost and STATE was not,
whose last message of the agent is older than its newest slice. Such slices would never be revoked, and their places
be granted again and again, in vain. A node where that lasts is opened again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from sluice.contracts.ids import NodeName


@dataclass(slots=True)
class Unentered:
    """Nodes with such slices."""

    _since: dict[NodeName, float] = field(default_factory=dict)
    _over: dict[NodeName, None] = field(default_factory=dict)
    """Those on which it has lasted."""

    def look(self, node: NodeName, now: float, grace_s: float) -> None:
        """A node has some; the first time counts."""
        if now - self._since.setdefault(node, now) >= grace_s:
            self._over[node] = None

    def forget(self, node: NodeName) -> None:
        """It has none, or is gone."""
        self._since.pop(node, None)
        self._over.pop(node, None)

    def is_over(self, node: NodeName) -> bool:
        """Whether a node has to be opened again."""
        return node in self._over

    def due(self, now: float, grace_s: float) -> Iterable[NodeName]:
        """The nodes to be looked at again: it may have lasted long enough."""
        return [node for node, since in self._since.items() if now - since >= grace_s and node not in self._over]
