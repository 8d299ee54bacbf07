"""How many pods with slices a node takes: in which seeds a limit holds, and the judge that counts the ledger."""

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from simulation.judges.books import Books

from sluice.contracts.bus.events import Write
from sluice.contracts.messages import Closed, Grant

if TYPE_CHECKING:
    from simulation.plans.plan import Plan

LIMITED_SEEDS = 0.12


def with_limit(plan: "Plan", seeds: float = LIMITED_SEEDS) -> "Plan":
    """In some seeds nodes take few pods: drawn apart. Not with jobs, whose judge counts room on GPUs alone."""
    dice = Random(f"pods per node {plan.seed}")
    jobs = any("group" in key for life in plan.pods for key, _ in life.pod.ask.annotations)
    if dice.random() >= seeds or jobs:
        return plan
    return replace(plan, pods_per_node_max=dice.choice((1, 2, 3, 4)))


class PodsPerNode:
    """Counts the pods of a node whenever one more is put there."""

    def __init__(self, books: Books, most: int | None) -> None:
        """At most so many on each node; None for no limit."""
        self._books = books
        self._most = most

    def landed(self, write: Write, _sequence: int) -> None:
        """Once all are gone that are waited for, the node has no more pods than it may; what came back counts."""
        grant = write.message
        if self._most is None or not isinstance(grant, Grant) or grant.adopted or grant.revision > 1:
            return
        there = self.there(grant.booking.node)
        awaited = {each for allocation in there for each in self._books.after.get(allocation, ())}
        stay = {grant.booking.allocation, *there} - awaited - set(grant.after)
        if len(stay) > self._most:
            booking = grant.booking
            text = f"{booking.allocation} is the {len(stay)}th pod on {booking.node}, which takes {self._most}"
            self._books.fail("pods per node", text)

    def takes_more(self, node: str) -> bool:
        """Whether one more pod may be put on a node now."""
        return self._most is None or len(self.there(node)) < self._most

    def there(self, node: str) -> list[str]:
        """The allocations that the ledger of a node books, and that are not gone. Without devices it is no pod's."""
        entries = self._books.ledger.get(node, {}).items()
        booked = [name for name, entry in entries if not isinstance(entry, Closed) and entry.booking.devices]
        return [name for name in booked if name not in self._books.gone]
