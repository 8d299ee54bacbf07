"""Closes the grants of a removed node (PROTOCOL §6, ADR 0012), in this order: the head, so that no process grants
there; then, when its agent had time to prove that it runs, each grant, marked as unconfirmed. A process that finds the
node opened since has read late, and restarts the time before each step. Opening enters what the agent still has."""

from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.contracts.messages import AllocationRequested, Closed, Held, NodeClosed
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.state.bus_cache import request_of
from sluice_allocator.core.state.conditions import Condition
from sluice_allocator.core.state.context import say_why
from sluice_allocator.core.state.facts import unbooked_slice

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
    ctx.heads_written.pop(node, None)
    ctx.conditions.clear(Condition.HEAD_OVERWRITTEN, node)
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


_NOT_OPEN = ReasonCount(reason=WaitReason.NODE_NOT_OPEN, count=1, of="nodes")


def await_node(ctx: SchedulerContext, request: RequestId, held: Held | None) -> NodeName | None:
    """Let a request wait for the node that may have a slice of it, which is returned; None if there is none."""
    found = unbooked_slice(ctx, request, held)
    if found is None:
        return None
    if ctx.conditions.is_mature(Condition.NODE_REMOVED, found.node):
        close_unbooked(ctx, request, found)
    ctx.node_waits.hold(request, found.node)
    return found.node


def await_any_node(ctx: SchedulerContext, request: RequestId) -> bool:
    """Let a request wait for a node that is not adopted yet: it may show a slice that its source does not know. It
    waits for one such node after the other, at most `orphan_grace_s` for each. False when there is none."""
    node = next(iter(ctx.conditions.young(Condition.NODE_NOT_ADOPTED)), None)
    if node is not None:
        ctx.node_waits.hold(request, NodeName(node))
    return node is not None


def say_that_it_waits(ctx: SchedulerContext, request: RequestId, asked: AllocationRequested, node: NodeName) -> None:
    """Publish why the pod is not bound again yet. It is looked at when the node is adopted, and now and then."""
    ctx.node_waits.hold(request, node)
    say_why(ctx, request, asked, f"its slice is on {node}, which is not open yet", _NOT_OPEN)


def say_that_it_is_in_doubt(
    ctx: SchedulerContext, request: RequestId, asked: AllocationRequested, held: Held, ticket: str
) -> None:
    """Publish that its slice is on a node whose agent cannot tell. It is looked at now and then."""
    ctx.node_waits.hold(request, held.node)
    message = (
        f"its slice may be on {held.node}, which has lost its journal and cannot believe ticket {ticket}; "
        "`sluice gpus` says why: delete the pod, and it is given another"
    )
    say_why(ctx, request, asked, message, _NOT_OPEN)
