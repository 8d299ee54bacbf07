"""Tracks how far what was freed was offered. A pass offers one node (or the whole fleet) to the head of each shape, in
turn. When more is freed meanwhile it restarts, and every other try continues where it was: all shapes are reached."""

from collections import OrderedDict
from dataclasses import dataclass

from sluice.contracts.ids import NodeName
from sluice_allocator.core.queue.pending_queue import PendingQueue
from sluice_allocator.core.sorted_keys import QueueKey


@dataclass(slots=True)
class OfferPass:
    """One pass: `node` is None for the whole fleet."""

    node: NodeName | None
    offered_to: QueueKey | None = None  # the last turn that had the offer, from the first turn on
    until: QueueKey | None = None  # later turns are offered it by the rest of the earlier pass
    rest: QueueKey | None = None  # the last turn that had the offer by what is left of the earlier pass
    rest_is_next: bool = False

    def begin_anew(self) -> None:
        """More was freed: all shapes get the offer once more, or still."""
        if self.offered_to is not None:
            self.rest = self.until = self.rest or self.offered_to
            self.offered_to = None
            self.rest_is_next = False

    def next_in(self, queue: PendingQueue) -> QueueKey | None:
        """The next turn to get the offer; None when all had it."""
        if self.rest is not None and self.rest_is_next:
            turn = self.rest = queue.head_after(self.rest)
            if turn is not None:
                self.rest_is_next = False
                return turn
        self.rest_is_next = True
        turn = queue.head_after(self.offered_to)
        if turn is None or (self.until is not None and turn > self.until):
            if self.rest is None:
                return None
            turn, self.rest, self.until = queue.head_after(self.rest), None, None
        self.offered_to = turn or self.offered_to
        return turn


class CapacityOffers:
    """The unfinished passes."""

    def __init__(self) -> None:
        self._passes: OrderedDict[NodeName | None, OfferPass] = OrderedDict()
        self.heard = 0  # how often something was freed; places released by a failed trial do not count

    def __bool__(self) -> bool:
        return bool(self._passes)

    def freed(self, node: NodeName, *, as_before: bool = False) -> None:
        """Something was freed on a node, became usable there, or is free `as_before`: that is offered next."""
        self.heard += not as_before
        if node in self._passes:
            self._passes[node].begin_anew()
        else:
            self._passes[node] = OfferPass(node)
        self._passes.move_to_end(node, last=False)

    def everything(self) -> None:
        """The whole fleet changed: this pass replaces all others."""
        self.heard += 1
        self._passes.clear()
        self._passes[None] = OfferPass(None)

    @property
    def offers_everything(self) -> bool:
        """Whether a pass over the whole fleet is unfinished."""
        return None in self._passes

    @property
    def offers_everything_anew(self) -> bool:
        """Whether a pass over the whole fleet is about to begin, which tries all waiting requests."""
        return None in self._passes and self._passes[None].offered_to is None

    def first(self) -> OfferPass:
        """The pass to continue. There must be one."""
        return next(iter(self._passes.values()))

    def let_others_go_first(self, offer: OfferPass) -> None:
        self._passes.move_to_end(offer.node)

    def end_all(self) -> None:
        self._passes.clear()

    def end(self, offer: OfferPass) -> None:
        del self._passes[offer.node]
