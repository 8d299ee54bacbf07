"""
Revokes slice statuses with no ledger entry and no slice on the node (PROTOCOL §8).

The broker was wiped, an agent published its status again, and before its node was opened again its disk was wiped as
well. The request would wait for that slice without end. So it is revoked, with no devices: the agent answers that it
was never made, and all is closed as usual.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, NodeName, SourceName
from sluice.contracts.messages import (
    AllocationRequested,
    Booking,
    Held,
    RequestWithdrawn,
    Revoke,
    SliceGone,
    SliceMessage,
)
from sluice_allocator.core.desk import Desk
from sluice_allocator.core.held import doubtful_ticket
from sluice_allocator.core.nodes import is_open


@dataclass(slots=True)
class Unowned:
    """Statuses without a known slice, and since when the agent of an open node confirms that."""

    found: OrderedDict[AllocationId, float | None] = field(default_factory=OrderedDict)
    """Those that were looked at longest ago first."""

    def look(self, desk: Desk, allocation: AllocationId) -> None:
        """Remember a status without a ledger entry; forget it when there is one, or the slice is gone."""
        word = desk.world.slices.get(allocation)
        if word is None or isinstance(word, SliceGone) or allocation in desk.world.ledger:
            self.found.pop(allocation, None)
        else:
            self.found.setdefault(allocation, None)

    def tick(self, desk: Desk, now: float) -> None:
        """Revoke those that certainly do not exist, among a bounded number, in turn."""
        for _ in range(min(desk.rules.orphans_batch, len(self.found))):
            if not self.found:
                return
            allocation = next(iter(self.found))
            self.found.move_to_end(allocation)
            self.look(desk, allocation)
            if allocation not in self.found:
                continue
            word, node = desk.world.slices[allocation], desk.world.slice_nodes[allocation]
            if not _its_agent_has_none(desk, node, word):
                self.found[allocation] = None
                continue
            since = self.found[allocation]
            if since is None:
                self.found[allocation] = now
            elif now - since >= desk.rules.orphan_grace_s:
                _revoke(desk, node, word)


def _its_agent_has_none(desk: Desk, node: NodeName, word: SliceMessage) -> bool:
    """Whether the node's current agent reported everything, and this slice is not among it."""
    inventory, news = desk.world.inventories.get(node), desk.world.news.get(node)
    if inventory is None or news is None or inventory.stale or not is_open(desk, node):
        return False
    if word.allocation in desk.world.on_their_way or inventory.snapshot.generation < news.generation:
        return False
    if not isinstance(desk.world.requests.get(word.request), RequestWithdrawn) and doubtful_ticket(
        desk, Held(node=node, allocation=word.allocation)
    ):
        return False  # a process may be using it (ADR 0033)
    return word.allocation not in desk.world.reported_of.get(word.request, {})


def _revoke(desk: Desk, node: NodeName, word: SliceMessage) -> None:
    """End the status. It books no place: a slice that the agent does not have is nowhere."""
    address = subjects.ledger(node, word.allocation)
    if desk.outbox.busy(address):
        return
    asked = desk.world.requests.get(word.request)
    living = asked if isinstance(asked, AllocationRequested) else None
    booking = Booking(
        allocation=word.allocation,
        request=word.request,
        request_revision=asked.revision if asked is not None else 1,
        source=asked.source if asked is not None else SourceName(""),
        owner=living.owner if living is not None else word.request,
        namespace=living.namespace if living is not None else "",
        name=living.name if living is not None else "",
        node=node,
        devices=(),
        resource_claims=living.resource_claims if living is not None else (),
    )
    revoke = Revoke(
        revision=word.revision + 1,
        incarnation=desk.world.incarnation,
        booking=booking,
        cause="neither the ledger nor its node's agent has it",
    )
    desk.commit(address, revoke, word.request)
