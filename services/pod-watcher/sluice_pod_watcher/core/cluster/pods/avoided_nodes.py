"""Remember per controller the nodes on which the scheduler could not place its pods, so that the next ones avoid them.
The scheduler's own message has the reason and is not parsed. A restart loses the memory; then the next pod may try such
a node once more.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from sluice.contracts.ids import NodeName

AVOIDED_S = 600.0  # a node is tried again after this: most obstacles are gone or fixed by then
OWNERS_MAX, NODES_MAX = 1000, 20


@dataclass(slots=True)
class AvoidedNodes:
    """Nodes by the UID of a controller."""

    _of: OrderedDict[str, dict[NodeName, float]] = field(default_factory=OrderedDict)

    def add(self, owner: str, node: NodeName, now: float) -> None:
        """A pod of this owner was not scheduled there."""
        nodes = self._of.setdefault(owner, {})
        nodes[node] = now + AVOIDED_S
        self._of.move_to_end(owner)
        if len(nodes) > NODES_MAX:
            del nodes[min(nodes, key=lambda each: nodes[each])]
        if len(self._of) > OWNERS_MAX:
            self._of.popitem(last=False)

    def nodes(self, owner: str, now: float) -> tuple[NodeName, ...]:
        """Nodes that the next pod of this owner uses only as a last resort."""
        return tuple(sorted(node for node, until in self._of.get(owner, {}).items() if until > now))
