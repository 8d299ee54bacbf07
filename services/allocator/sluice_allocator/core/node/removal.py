"""Closes the grants of a removed node (PROTOCOL §6, ADR 0012), in this order: the head, so that no process grants
there; then, when its agent had time to prove that it runs, each grant, marked as unconfirmed. A process that finds the
node opened since has read late, and restarts the time before each step. Opening enters what the agent still has."""

from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.contracts.messages import Closed, Held, NodeClosed
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.state.bus_cache import request_of
from sluice_allocator.core.state.conditions import Condition

_CLOSED, _ADOPTED_AGAIN = 1, 2


def reconcile_removed(ctx: SchedulerContext, node: NodeName) -> bool:
    """Reconcile one node that may be removed: nothing is granted, and grants are closed. False when it is not."""
    removed = ctx.facts.removed.get(node)
    if removed is None:
        return False
    mark = _follow(ctx, node)
    forget_node(ctx, node)
    if ctx.undecided_under.get(subjects.ledger_filter(node)):
        return True  # looked at again when that is settled
    is_over = ctx.conditions.is_mature(Condition.NODE_REMOVED, node)
    if node in ctx.facts.heads:
        if is_over or mark != _ADOPTED_AGAIN:
            closed = NodeClosed(node=node, incarnation=ctx.facts.incarnation, cause=removed.cause)
            ctx.commit(subjects.head(node), closed, "", ttl_s=ctx.rules.closing_ttl_s)
    elif is_over:
        _close_grants(ctx, node)
    return True


def _follow(ctx: SchedulerContext, node: NodeName) -> int:
    """Since when a removal is known, and the head closed, or adopted again. The time starts over when another process
    adopts the node, and when that is closed: this process may only be late."""
    due = ctx.now + ctx.rules.removed_grace_s
    ctx.conditions.observe(Condition.NODE_REMOVED, node, due=due)
    watched = ctx.conditions.get(Condition.NODE_REMOVED, node)
    assert watched is not None
    before, is_adopted = watched.mark, node in ctx.facts.heads
    mark = _CLOSED if not is_adopted else _ADOPTED_AGAIN if before == _CLOSED else before
    if mark != before and before:
        ctx.conditions.clear(Condition.NODE_REMOVED, node)
        ctx.conditions.observe(Condition.NODE_REMOVED, node, due=due, mark=mark)
    watched.mark = mark
    return mark


def forget_node(ctx: SchedulerContext, node: NodeName) -> None:
    """Nothing can be granted on a node, and nothing of its adoption counts any more."""
    ctx.cluster.forget_node(node)
    ctx.shown.pop(node, None)
    ctx.unopened.pop(node, None)
    ctx.conditions.clear(Condition.SLICE_WITHOUT_ENTRY, node)


def close_unbooked(ctx: SchedulerContext, request: RequestId, slice_: Held) -> None:
    """Close a slice of a removed node that only its source remembers, as the broker was wiped. So a process that opens
    the node now, having read its agent, is not overruled by one that reads late."""
    node, allocation = slice_.node, slice_.allocation
    if node not in ctx.facts.removed or node in ctx.facts.heads:
        return
    if ctx.outbox.busy(subjects.ledger(node, allocation)):
        return
    status = ctx.facts.slices.get(allocation)
    _close(ctx, node, allocation, request, status.revision if status is not None else 1)


def _close_grants(ctx: SchedulerContext, node: NodeName) -> None:
    for allocation in ctx.facts.allocations_on.get(node, ()):
        entry = ctx.facts.ledger[allocation]
        if not isinstance(entry, Closed):
            _close(ctx, node, allocation, request_of(entry), entry.revision)


def _close(ctx: SchedulerContext, node: NodeName, allocation: AllocationId, request: RequestId, revision: int) -> None:
    closed = Closed(
        revision=revision,
        allocation=allocation,
        request=request,
        node=node,
        cause=f"{node} was removed: {ctx.facts.removed[node].cause}",
        removed=True,
        incarnation=ctx.facts.incarnation,
    )
    ctx.commit(subjects.ledger(node, allocation), closed, request, ttl_s=ctx.rules.closing_ttl_s)
