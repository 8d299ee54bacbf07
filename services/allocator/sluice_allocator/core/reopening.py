"""
Heads of ledgers that another allocator has written over: said once more only after a pause.

Of two allocators that work at once one may hear late that an agent was restarted. Each takes the other's head for an
older one, and without a pause they would write over each other at the speed of the bus, the node open for nobody. After
a pause of growing length it is said again all the same: whoever is right, nobody has to wait for the other for ever.
A head that was never said by this process waits for nothing. It must not judge whether a node may be opened.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from sluice.contracts.ids import Incarnation, NodeName, RunId
from sluice.contracts.messages import NodeOpened

Life = tuple[Incarnation, str, RunId]
"""For whom a node is open: the life of the bus, the boot, and the run of its agent."""

PAUSE_FIRST_S = 1.0
PAUSE_MAX_S = 8.0
OVER_S = 60.0
"""Whoever says the same so long after it was said last is in no quarrel any more."""


@dataclass(frozen=True, slots=True)
class _Said:
    """What this process said last of a node: for whom it is open, when, and how often it had said so before."""

    life: Life
    at: float
    before: int


@dataclass(slots=True)
class Reopening:
    """What was said of each node, and what was written over since when."""

    said: dict[NodeName, _Said] = field(default_factory=dict)
    since: dict[NodeName, float] = field(default_factory=dict)
    """Those that somebody else has opened otherwise, until they are open as they should be."""

    def landed(self, head: NodeOpened, now: float) -> None:
        """A head of this process is the last word of a node's ledger."""
        life, last = _life_of(head), self.said.get(head.node)
        is_again = last is not None and last.life == life and now - last.at < OVER_S
        self.said[head.node] = _Said(life, now, last.before + 1 if last is not None and is_again else 0)
        self.settled(head.node)

    def rests(self, node: NodeName, life: Life, instead: NodeOpened | None, now: float) -> bool:
        """Whether this process has opened a node for just this, and somebody else for another run just now."""
        said = self.said.get(node)
        is_contested = instead is not None and instead.incarnation == life[0] and _life_of(instead) != life
        if said is None or said.life != life or not is_contested:
            self.settled(node)
            return False
        since = self.since.setdefault(node, now)
        return now - since < min(PAUSE_FIRST_S * 2.0**said.before, PAUSE_MAX_S)

    def settled(self, node: NodeName) -> None:
        """Nobody contests how a node is open: the next who does is waited for from then on."""
        self.since.pop(node, None)

    def waiting(self) -> Iterable[NodeName]:
        """Nodes to be opened again with time."""
        return self.since

    def forget(self, node: NodeName) -> None:
        """There is no such node any more."""
        self.said.pop(node, None)
        self.settled(node)


def _life_of(head: NodeOpened) -> Life:
    """For whom it opens its node."""
    return head.incarnation, head.boot_id, head.agent_run
