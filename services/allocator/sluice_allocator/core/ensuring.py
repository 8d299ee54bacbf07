"""
Keeps track of agents' durable consumers: agents may not create their own, so the active allocator does.

The shell creates them and reports when that is done.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from sluice.contracts.ids import Incarnation, NodeName


@dataclass(slots=True)
class Ensuring:
    """Nodes whose consumers may be missing. A tick costs only as much as is missing."""

    incarnation: Incarnation = field(default=Incarnation(""))
    missing: dict[NodeName, float] = field(default_factory=dict)
    """When each consumer was last asked for in this incarnation of the broker."""
    ensured: dict[NodeName, None] = field(default_factory=dict)
    asked_in: dict[NodeName, Incarnation] = field(default_factory=dict)

    def heard_of(self, node: NodeName, *, speaks: bool) -> None:
        """An agent speaks for a node, or no longer does."""
        if not speaks:
            self.missing.pop(node, None)
        elif node not in self.ensured:
            self.missing.setdefault(node, -1e9)

    def done(self, node: NodeName) -> None:
        """The shell made a consumer, in the incarnation in which it was last asked for."""
        if self.asked_in.get(node) == self.incarnation:
            self.ensured[node] = None
            self.missing.pop(node, None)

    def begin_anew(self, incarnation: Incarnation, nodes: Iterable[NodeName]) -> None:
        """The broker may have been wiped: then all consumers are missing."""
        if incarnation != self.incarnation:
            self.incarnation = incarnation
            self.ensured = {}
            self.missing = dict.fromkeys(nodes, -1e9)

    def to_ask(self, now: float, retry_s: float) -> list[NodeName]:
        """The nodes whose consumers to ask for now."""
        due = [node for node, asked_at in self.missing.items() if now - asked_at >= retry_s]
        for node in due:
            self.missing[node] = now
            self.asked_in[node] = self.incarnation
        return due
