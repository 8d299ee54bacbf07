"""What the counting of missing nodes remembers from one count to the next."""

from dataclasses import dataclass, field

from sluice.contracts.ids import NodeName, RunId
from sluice.contracts.outbox import Outbox
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.gangs.gang import GangContext


@dataclass(slots=True)
class NodePools:
    """Memory of this process alone: losing it costs one count."""

    due_at: float = float("-inf")
    changed: dict[NodeName, None] = field(default_factory=dict)  # nodes to learn from
    counted: dict[str, int] = field(default_factory=dict)  # the last count, by pool
    pool_of: dict[bytes, str] = field(default_factory=dict)  # the pool that would serve waiting requests of a shape


class CapacityContext(GangContext):
    """With what the counting of missing nodes remembers."""

    def __init__(self, run: RunId, rules: SchedulerConfig, outbox: Outbox) -> None:
        super().__init__(run, rules, outbox)
        self.node_pools = NodePools()
