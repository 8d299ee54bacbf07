"""Requests that wait for a node: it may have a slice of theirs, or cannot tell, so they get no other meanwhile."""

from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.messages import AllocationRequested, Held
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.node.removal import close_unbooked
from sluice_allocator.core.state.conditions import Condition
from sluice_allocator.core.state.context import say_why
from sluice_allocator.core.state.facts import unbooked_slice

_NOT_OPEN = ReasonCount(reason=WaitReason.NODE_NOT_OPEN, count=1, of="nodes")


def await_node(ctx: SchedulerContext, request: RequestId, held: Held | None) -> NodeName | None:
    """Let a request wait for the node that may have a slice of it, which is returned; None if there is none."""
    found = unbooked_slice(ctx, request, held)
    if found is None:
        return None
    if ctx.conditions.is_mature(Condition.NODE_REMOVED, found.node):
        close_unbooked(ctx, request, found)
    ctx.node_waits.hold(request, found.node, ctx.now)
    return found.node


def await_any_node(ctx: SchedulerContext, request: RequestId) -> bool:
    """Let a request wait for a node that is not adopted yet: it may show a slice that its source does not know. It
    waits for one such node after the other, at most `orphan_grace_s` for each. False when there is none."""
    node = next(iter(ctx.conditions.young(Condition.NODE_NEVER_OPENED)), None)
    if node is not None:
        ctx.node_waits.hold(request, NodeName(node), ctx.now)
    return node is not None


def say_that_it_waits(ctx: SchedulerContext, request: RequestId, asked: AllocationRequested, node: NodeName) -> None:
    """Publish why the pod is not bound again yet, if that lasts: after a wipe a whole fleet waits for a moment. It is
    looked at when the node is adopted, and now and then."""
    ctx.node_waits.hold(request, node, ctx.now)
    if ctx.now >= ctx.node_waits.since[request] + ctx.rules.orphan_grace_s:
        say_why(ctx, request, asked, f"its slice is on {node}, which is not open yet", _NOT_OPEN)


def say_that_it_is_in_doubt(
    ctx: SchedulerContext, request: RequestId, asked: AllocationRequested, held: Held, ticket: str
) -> None:
    """Publish that its slice is on a node whose agent cannot tell. It is looked at now and then."""
    ctx.node_waits.hold(request, held.node, ctx.now)
    message = (
        f"its slice may be on {held.node}, which has lost its journal and cannot believe ticket {ticket}; "
        "`sluice gpus` says why: delete the pod, and it is given another"
    )
    say_why(ctx, request, asked, message, _NOT_OPEN)
