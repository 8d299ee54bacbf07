"""
Closing the grants of a node that was removed (PROTOCOL §6, ADR 0012).

The order is the whole of it. First the head is closed, so that the node is open for nobody. Then its agent has time to
say that it lives. Then each grant is closed, with a mark that no agent said so. Who finds the node opened since reads
late, and gives it its time again before each of the two. The guard of the ledger sees to it that none of this lands
over a node that is opened meanwhile; whoever opens it enters what the agent still has, marked ones included, before it
is used.
"""

from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.contracts.messages import Closed, NodeClosed
from sluice_allocator.core.desk import Desk
from sluice_allocator.core.world import request_of


def settle_removed(desk: Desk, node: NodeName) -> bool:
    """Look at one node, which may be removed: nothing is given there, and what was is closed. False when it is not."""
    removed = desk.world.removed.get(node)
    if removed is None:
        return False
    desk.removals.heard(node, desk.now)
    desk.fleet.forget_node(node)
    desk.shown.pop(node, None)
    desk.unopened.pop(node, None)
    desk.reopening.forget(node)
    desk.unentered.forget(node)
    if desk.undecided_under.get(subjects.ledger_filter(node)):
        return True  # looked at again when that is settled
    if node in desk.world.heads:
        if desk.removals.may_be_shut(node, desk.now):
            closed = NodeClosed(node=node, incarnation=desk.world.incarnation, cause=removed.cause)
            desk.commit(subjects.head(node), closed, "", ttl_s=desk.rules.closing_ttl_s)
        return True
    desk.removals.shut(node, desk.now)
    if desk.removals.is_over(node):
        _close_grants(desk, node)
    return True


def close_unbooked(desk: Desk, request: RequestId, allocation: AllocationId, node: NodeName) -> None:
    """
    Close what the ledger of a removed node does not tell of, though somebody remembers it: the broker was wiped.

    So whoever opens the node at this very moment, and has heard its agent, is not overlooked by who reads late.
    """
    if node not in desk.world.removed or node in desk.world.heads:
        return
    if desk.outbox.busy(subjects.ledger(node, allocation)):
        return
    word = desk.world.slices.get(allocation)
    _close(desk, node, allocation, request, word.revision if word is not None else 1)


def _close_grants(desk: Desk, node: NodeName) -> None:
    for allocation in desk.world.allocations_on.get(node, ()):
        entry = desk.world.ledger[allocation]
        if not isinstance(entry, Closed):
            _close(desk, node, allocation, request_of(entry), entry.revision)


def _close(desk: Desk, node: NodeName, allocation: AllocationId, request: RequestId, revision: int) -> None:
    closed = Closed(
        revision=revision,
        allocation=allocation,
        request=request,
        node=node,
        cause=f"{node} was removed: {desk.world.removed[node].cause}",
        removed=True,
        incarnation=desk.world.incarnation,
    )
    desk.commit(subjects.ledger(node, allocation), closed, request, ttl_s=desk.rules.closing_ttl_s)
