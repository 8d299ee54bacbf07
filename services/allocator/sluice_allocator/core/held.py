"""
Requests whose slices may exist without the ledger knowing: the broker was wiped, and a node is not open yet.

A source remembers what its pods are bound to. Without waiting for that node, a running pod would be given a second
slice elsewhere, and its own, adopted later, would be revoked as surplus (LAW 4). And `Released` would be said of a
slice that is still there (PROTOCOL §4).
"""

from sluice.contracts import subjects
from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.messages import AllocationRequested, Held, Pending, SliceGone
from sluice.contracts.refusals import ReasonCount, WaitReason
from sluice_allocator.core.desk import Attempt, Desk


def waits_for_node(desk: Desk, request: RequestId, held: Held | None) -> NodeName | None:
    """
    A node that may have a slice of `request` of which the ledger does not tell (yet); None when there is none.

    An agent may speak of one, and an inventory may show one: even of an opened node, for an entry that is overwritten
    on its way to us is read later than the head that followed it. A source may remember one: that holds until the node
    is opened.
    """
    world = desk.world
    homes = dict(world.reported_of.get(request, {}))
    homes |= {allocation: world.slice_nodes[allocation] for allocation in world.slices_of.get(request, ())}
    if held is not None and not _was_opened(desk, held.node):
        homes[held.allocation] = held.node
    for allocation, node in homes.items():
        if allocation not in world.ledger and not isinstance(world.slices.get(allocation), SliceGone):
            desk.held_on.setdefault(node, {})[request] = None
            return node
    return None


def waits_for_nodes(desk: Desk, request: RequestId) -> bool:
    """
    Whether a node that is just being opened may still show a slice of `request`, of which its source knows nothing.

    Bounded: a node that cannot be opened for `orphan_grace_s` holds up nobody.
    """
    known = dict.fromkeys((*desk.world.news, *desk.world.inventories))
    opening = [node for node in known if not _was_opened(desk, node)]
    fresh = [
        node
        for node in opening
        if desk.now - desk.unopened_since.setdefault(node, desk.now) < desk.rules.orphan_grace_s
    ]
    for node in fresh:
        desk.held_on.setdefault(node, {})[request] = None
    return bool(fresh)


def node_was_opened(desk: Desk, node: NodeName) -> None:
    """A head was written or has gone: look again at who waited for it."""
    desk.unopened_since.pop(node, None)
    desk.changed_requests |= desk.held_on.pop(node, {})


def look_again(desk: Desk) -> None:
    """Time has passed: nodes that could not be opened hold up nobody any more."""
    for node, since in list(desk.unopened_since.items()):
        if desk.now - since >= desk.rules.orphan_grace_s:
            desk.changed_requests |= desk.held_on.pop(node, {})


def say_that_it_waits(desk: Desk, request: RequestId, asked: AllocationRequested, node: NodeName) -> None:
    """Tell whoever asked why the pod is not bound again yet; at a bounded rate, for another allocator may know more."""
    attempt = desk.attempts.setdefault(request, Attempt())
    if desk.now - attempt.pending_said_at < desk.rules.pending_refresh_s:
        return
    attempt.pending_said_at = desk.now
    pending = Pending(
        request=request,
        request_revision=asked.revision,
        message=f"its slice is on {node}, which is not open yet",
        reasons=(ReasonCount(reason=WaitReason.NODE_NOT_OPEN, count=1, of="nodes"),),
    )
    desk.outbox.keep(subjects.waiting(request), pending, request=request)


def _was_opened(desk: Desk, node: NodeName) -> bool:
    head = desk.world.heads.get(node)
    return head is not None and head.incarnation == desk.world.incarnation
