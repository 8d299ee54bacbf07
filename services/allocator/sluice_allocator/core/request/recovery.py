"""
Handles requests whose slices may exist without a ledger entry: the broker was wiped, and a node is not open yet.

A source remembers its pods' bindings. Without waiting for that node, a running pod would get a second slice
elsewhere, and its own, adopted later, would be revoked as surplus (LAW 4); and `Released` would be published for a
slice that still exists (PROTOCOL §4). If the slice turns out to be gone, it is lost: its pod stays where it was, so
it gets no other (ADR 0034).
"""

from sluice.contracts.bus import subjects
from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.messages import (
    AllocationRequested,
    Held,
    Pending,
)
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice_allocator.core.node.removal import close_unbooked
from sluice_allocator.core.state.conditions import Condition
from sluice_allocator.core.state.context import Desk
from sluice_allocator.core.state.facts import unbooked_slice, was_opened

_NOT_OPEN = ReasonCount(reason=WaitReason.NODE_NOT_OPEN, count=1, of="nodes")


def await_node(desk: Desk, request: RequestId, held: Held | None) -> NodeName | None:
    """
    Let a request wait for the node that may have a slice of it, which is returned; None when there is none.

    A slice of a removed node is closed once its agent had its time to prove that it runs.
    """
    found = unbooked_slice(desk, request, held)
    if found is None:
        return None
    if desk.conditions.is_mature(Condition.NODE_REMOVED, found.node):
        close_unbooked(desk, request, found)
    desk.node_waits.hold(request, found.node)
    return found.node


def await_any_node(desk: Desk, request: RequestId) -> bool:
    """
    Let a request wait for a node that is not adopted yet: it may show a slice that its source does not know.

    It waits for one such node after the other, at most `orphan_grace_s` for each. False when there is none.
    """
    node = next(iter(desk.conditions.young(Condition.NODE_NOT_ADOPTED)), None)
    if node is not None:
        desk.node_waits.hold(request, NodeName(node))
    return node is not None


def look_at_opening(desk: Desk, node: NodeName) -> None:
    """A node became adopted, or unknown: look again at the requests that wait for it."""
    is_told_of = node in desk.world.news or node in desk.world.inventories
    is_awaited = is_told_of and not was_opened(desk, node) and node not in desk.world.removed
    desk.conditions.observe(Condition.NODE_NOT_ADOPTED, node, holds=is_awaited)
    if not is_awaited:
        desk.changed_requests |= desk.node_waits.release(node)


def say_that_it_waits(desk: Desk, request: RequestId, asked: AllocationRequested, node: NodeName) -> None:
    """Publish why the pod is not bound again yet. It is looked at when the node is adopted, and now and then."""
    desk.node_waits.hold(request, node)
    say_why(desk, request, asked, f"its slice is on {node}, which is not open yet", _NOT_OPEN)


def say_that_it_is_in_doubt(
    desk: Desk, request: RequestId, asked: AllocationRequested, held: Held, ticket: str
) -> None:
    """Publish that its slice is on a node whose agent cannot tell. It is looked at now and then."""
    desk.node_waits.hold(request, held.node)
    message = (
        f"its slice may be on {held.node}, which has lost its journal and cannot believe ticket {ticket}; "
        "`sluice gpus` says why: delete the pod, and it is given another"
    )
    say_why(desk, request, asked, message, _NOT_OPEN)


def say_why(desk: Desk, request: RequestId, asked: AllocationRequested, message: str, reason: ReasonCount) -> None:
    """Publish why the pod is not bound; the same reason at a bounded rate, for another allocator may know more."""
    kept = desk.outbox.kept(subjects.waiting(request))
    if kept is None and request in desk.world.waiting:  # another allocator's: two would answer each other forever
        is_new = desk.attempts.last_said(request) is not reason.reason
    else:
        is_new = not isinstance(kept, Pending) or kept.message != message
    is_loss = reason.reason is not WaitReason.NODE_NOT_OPEN
    if not desk.attempts.admit_pending(request, desk.now, reason=reason.reason, is_news=is_loss and is_new):
        return
    pending = Pending(
        request=request,
        request_revision=asked.revision,
        message=message,
        reasons=(reason,),
    )
    desk.outbox.keep(subjects.waiting(request), pending, request=request)
