"""
Agents may not make their own durables; whoever works sees to it that each has one in this life of the broker.

It must not do it: the shell does, and says when it is done.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from sluice.contracts.ids import Incarnation, NodeName


@dataclass(slots=True)
class Ensuring:
    """Which nodes' durables are not known to be there. A tick costs what is missing, not what is there."""

    incarnation: Incarnation = field(default=Incarnation(""))
    missing: dict[NodeName, float] = field(default_factory=dict)
    """When the durable of each was asked for last in this life of the broker."""
    ensured: dict[NodeName, None] = field(default_factory=dict)
    asked_in: dict[NodeName, Incarnation] = field(default_factory=dict)

    def heard_of(self, node: NodeName, *, speaks: bool) -> None:
        """An agent speaks for a node, or none does any more."""
        if not speaks:
            self.missing.pop(node, None)
        elif node not in self.ensured:
            self.missing.setdefault(node, -1e9)

    def done(self, node: NodeName) -> None:
        """The shell has made a durable: in the life of the broker in which it was asked for last."""
        if self.asked_in.get(node) == self.incarnation:
            self.ensured[node] = None
            self.missing.pop(node, None)

    def begin_anew(self, incarnation: Incarnation, nodes: Iterable[NodeName]) -> None:
        """The broker may have been wiped: then nothing is there any more."""
        if incarnation != self.incarnation:
            self.incarnation = incarnation
            self.ensured = {}
            self.missing = dict.fromkeys(nodes, -1e9)

    def to_ask(self, now: float, retry_s: float) -> list[NodeName]:
        """The nodes whose durables to ask for now."""
        due = [node for node, asked_at in self.missing.items() if now - asked_at >= retry_s]
        for node in due:
            self.missing[node] = now
            self.asked_in[node] = self.incarnation
        return due
