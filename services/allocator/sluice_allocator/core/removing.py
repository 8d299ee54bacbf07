"""
Closes the grants of a removed node (PROTOCOL §6, ADR 0012).

The order matters. First the head is closed, so that no process may grant there. Then its agent has time to prove that
it runs. Then each grant is closed, with a mark that no agent confirmed it. A process that finds the node opened since
has read late, and restarts the time before each of the two steps. The guard of the ledger keeps all of this from
landing over a node opened meanwhile; opening enters what the agent still has, marked entries included, before the
node is used.
"""

from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.contracts.messages import Closed, NodeClosed
from sluice_allocator.core.desk import Desk
from sluice_allocator.core.world import request_of


def settle_removed(desk: Desk, node: NodeName) -> bool:
    """Reconcile one node that may be removed: nothing is granted, and grants are closed. False when it is not."""
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
    Close a slice of a removed node that has no ledger entry, though its source remembers it: the broker was wiped.

    So a process that opens the node at this very moment, having read its agent, is not overruled by one that reads
    late.
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
