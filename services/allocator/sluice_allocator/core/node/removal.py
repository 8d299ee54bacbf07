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
from sluice.contracts.messages import Closed, Held, NodeClosed
from sluice_allocator.core.state.bus_cache import request_of
from sluice_allocator.core.state.conditions import Condition
from sluice_allocator.core.state.context import Desk

_CLOSED, _ADOPTED_AGAIN = 1, 2


def reconcile_removed(desk: Desk, node: NodeName) -> bool:
    """Reconcile one node that may be removed: nothing is granted, and grants are closed. False when it is not."""
    removed = desk.world.removed.get(node)
    if removed is None:
        return False
    mark = _follow(desk, node)
    forget_node(desk, node)
    if desk.undecided_under.get(subjects.ledger_filter(node)):
        return True  # looked at again when that is settled
    is_over = desk.conditions.is_mature(Condition.NODE_REMOVED, node)
    if node in desk.world.heads:
        if is_over or mark != _ADOPTED_AGAIN:
            closed = NodeClosed(node=node, incarnation=desk.world.incarnation, cause=removed.cause)
            desk.commit(subjects.head(node), closed, "", ttl_s=desk.rules.closing_ttl_s)
    elif is_over:
        _close_grants(desk, node)
    return True


def _follow(desk: Desk, node: NodeName) -> int:
    """
    Since when a removal is known, and whether the head was closed, or adopted again, since then.

    The time starts over when another process adopts the node, and when that is closed: that process has read the
    agent, and this one may only be late.
    """
    due = desk.now + desk.rules.removed_grace_s
    desk.conditions.observe(Condition.NODE_REMOVED, node, due=due)
    watched = desk.conditions.get(Condition.NODE_REMOVED, node)
    assert watched is not None
    before, is_adopted = watched.mark, node in desk.world.heads
    mark = _CLOSED if not is_adopted else _ADOPTED_AGAIN if before == _CLOSED else before
    if mark != before and before:
        desk.conditions.clear(Condition.NODE_REMOVED, node)
        desk.conditions.observe(Condition.NODE_REMOVED, node, due=due, mark=mark)
    watched.mark = mark
    return mark


def forget_node(desk: Desk, node: NodeName) -> None:
    """Nothing can be granted on a node, and nothing of its adoption counts any more."""
    desk.fleet.forget_node(node)
    desk.shown.pop(node, None)
    desk.unopened.pop(node, None)
    desk.heads_written.pop(node, None)
    desk.conditions.clear(Condition.HEAD_OVERWRITTEN, node)
    desk.conditions.clear(Condition.SLICE_WITHOUT_ENTRY, node)


def close_unbooked(desk: Desk, request: RequestId, slice_: Held) -> None:
    """
    Close a slice of a removed node that has no ledger entry, though its source remembers it: the broker was wiped.

    So a process that opens the node at this very moment, having read its agent, is not overruled by one that reads
    late.
    """
    node, allocation = slice_.node, slice_.allocation
    if node not in desk.world.removed or node in desk.world.heads:
        return
    if desk.outbox.busy(subjects.ledger(node, allocation)):
        return
    status = desk.world.slices.get(allocation)
    _close(desk, node, allocation, request, status.revision if status is not None else 1)


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
