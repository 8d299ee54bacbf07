"""What the counting of missing nodes remembers from one count to the next."""

from dataclasses import dataclass, field

from sluice.contracts.ids import NodeName


@dataclass(slots=True)
class NodePools:
    """Memory of this process alone: losing it costs one count."""

    due_at: float = float("-inf")
    changed: dict[NodeName, None] = field(default_factory=dict)
    """Nodes to learn from."""
    counted: dict[str, int] = field(default_factory=dict)
    """The last count, by pool."""
    pool_of: dict[bytes, str] = field(default_factory=dict)
    """The pool that would serve waiting requests of a shape."""
