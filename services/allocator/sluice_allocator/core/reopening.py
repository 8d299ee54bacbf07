"""
Delays rewriting heads of ledgers that another allocator has written over.

Of two active allocators one may learn late that an agent restarted. Each takes the other's head for an older one, and
without a pause they would overwrite each other at the speed of the bus, with the node unusable. After a pause of
growing length the head is written again all the same, so that neither waits for the other without end. A head that
this process never wrote is not delayed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from sluice.contracts.ids import Incarnation, NodeName, RunId
from sluice.contracts.messages import NodeOpened

Life = tuple[Incarnation, str, RunId]
"""What a head opens its node for: the incarnation, the boot, and the run of its agent."""

PAUSE_FIRST_S = 1.0
PAUSE_MAX_S = 8.0
OVER_S = 60.0
"""After this time without a conflict the pause starts over."""


@dataclass(frozen=True, slots=True)
class _Said:
    """The head that this process wrote last: for what, when, and how often before."""

    life: Life
    at: float
    before: int


@dataclass(slots=True)
class Reopening:
    """The heads written per node, and since when each is overwritten."""

    said: dict[NodeName, _Said] = field(default_factory=dict)
    since: dict[NodeName, float] = field(default_factory=dict)
    """Nodes opened otherwise by another allocator, until they are open as they should be."""

    def landed(self, head: NodeOpened, now: float) -> None:
        """A head of this process is the current head of a node's ledger."""
        life, last = _life_of(head), self.said.get(head.node)
        is_again = last is not None and last.life == life and now - last.at < OVER_S
        self.said[head.node] = _Said(life, now, last.before + 1 if last is not None and is_again else 0)
        self.settled(head.node)

    def rests(self, node: NodeName, life: Life, instead: NodeOpened | None, now: float) -> bool:
        """Whether this process opened a node for just this run, and another process for another run just now."""
        said = self.said.get(node)
        is_contested = instead is not None and instead.incarnation == life[0] and _life_of(instead) != life
        if said is None or said.life != life or not is_contested:
            self.settled(node)
            return False
        since = self.since.setdefault(node, now)
        return now - since < min(PAUSE_FIRST_S * 2.0**said.before, PAUSE_MAX_S)

    def settled(self, node: NodeName) -> None:
        """The head is uncontested: the next conflict starts a new pause."""
        self.since.pop(node, None)

    def waiting(self) -> Iterable[NodeName]:
        """Nodes to be opened again with time."""
        return self.since

    def forget(self, node: NodeName) -> None:
        """The node is gone."""
        self.said.pop(node, None)
        self.settled(node)


def _life_of(head: NodeOpened) -> Life:
    """What a head opens its node for."""
    return head.incarnation, head.boot_id, head.agent_run
