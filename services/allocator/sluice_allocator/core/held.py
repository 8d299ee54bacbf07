"""
Requests whose slices may exist without the ledger knowing: the broker was wiped, and a node is not open yet.

A source remembers what its pods are bound to. Without waiting for that node, a running pod would be given a second
slice elsewhere, and its own, adopted later, would be revoked as surplus (LAW 4). And `Released` would be said of a
slice that is still there (PROTOCOL §4). When it turns out that the slice is nowhere any more, it is lost: its pod is
where it was, so it gets no other (ADR 0034).
"""

from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.contracts.messages import (
    AllocationRequested,
    Bound,
    Closed,
    Grant,
    Held,
    Pending,
    Released,
    Revoke,
    SliceDegraded,
    SliceGone,
)
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice.contracts.ticket_names import is_ticket_of
from sluice_allocator.core.desk import Desk
from sluice_allocator.core.removing import close_unbooked
from sluice_allocator.core.world import RequestFact

BEING_UNMADE = "being unmade"
"""Why a slice is revoked that was revoked in an earlier life of the broker; nobody knows why any more."""
SURPLUS = "surplus: the request is bound elsewhere"
"""Why a slice is revoked of which its source does not know, when the request is bound to another one."""
DECLINED = "declined: its node kept its pod out when it was bound"
"""Why a slice is waived that was bound: its pod was never let go with it."""
_NOT_OPEN = ReasonCount(reason=WaitReason.NODE_NOT_OPEN, count=1, of="nodes")


def waits_for_node(desk: Desk, request: RequestId, held: Held | None) -> NodeName | None:
    """
    A node that may have a slice of `request` of which the ledger does not tell (yet); None when there is none.

    An agent may speak of one, and an inventory may show one: even of an opened node, for an entry that is overwritten
    on its way to us is read later than the head that followed it (and names it). A source may remember one: that holds
    until the node is opened.
    """
    world = desk.world
    for allocation in world.slices_of.get(request, ()):
        if _is_unbooked(desk, request, allocation, world.slice_nodes[allocation]):
            return world.slice_nodes[allocation]
    for allocation, node in world.reported_of.get(request, {}).items():
        if _is_unbooked(desk, request, allocation, node):
            return node
    for allocation, node in world.on_their_way.items():
        if allocation.startswith(f"{request}_") and _is_unbooked(desk, request, allocation, node):
            return node
    if held is not None and not was_opened(desk, held.node) and _is_unbooked(desk, request, held.allocation, held.node):
        return held.node
    return None


def why_lost(desk: Desk, request: RequestId, held: Held) -> str | None:
    """
    Why the slice that a source remembers is not there any more; None while it is, or may be.

    Its pod is bound to the node, so no other slice can serve it.
    """
    entry = desk.world.ledger.get(held.allocation)
    if isinstance(entry, Closed):
        return entry.cause if not _may_be_entered_again(desk, held.node, held.allocation) else None
    if entry is not None or waits_for_node(desk, request, held) is not None or doubtful_ticket(desk, held):
        return None
    removed = desk.world.removed.get(held.node)
    if removed is not None:
        return f"{held.node} was removed: {removed.cause}"
    is_known = was_opened(desk, held.node) and held.node in desk.world.inventories
    return f"{held.node} no longer has it" if is_known else None


def why_taken_back(desk: Desk, request: RequestId) -> str | None:
    """
    Why a pod has to go whose source says that it has a slice which is being taken back; None when it need not.

    Its slice was lost, and the broker was wiped before its source heard of that (ADR 0034): the pod would stay on what
    is taken from it, and the slice's agent wait for it to end. What was revoked in this life of the broker, its source
    was told of, or has withdrawn. A `Bound` does not say that it was: it is older, and has landed late.

    Or it was surplus by then: a patch of a pod-watcher that has died since landed when its pod was bound elsewhere.
    """
    asked = desk.world.requests.get(request)
    held = asked.held if isinstance(asked, AllocationRequested) else None
    if held is None or isinstance(desk.world.bindings.get(request), Released):
        return None
    entry = desk.world.ledger.get(held.allocation)
    causes = (BEING_UNMADE, SURPLUS)
    is_unheard = isinstance(entry, Revoke) and entry.cause in causes
    if not is_unheard or isinstance(desk.world.slices.get(held.allocation), SliceGone):
        return None
    return f"its slice on {held.node} is being revoked"


def doubtful_ticket(desk: Desk, held: Held) -> str:
    """The ticket that is there of the slice that a source remembers, and that its agent cannot believe; or empty."""
    inventory = desk.world.inventories.get(held.node)
    if inventory is None or held.allocation in desk.world.ledger or held.node in desk.world.removed:
        return ""
    return next((each for each in inventory.snapshot.doubtful_tickets if is_ticket_of(each, held.allocation)), "")


def waits_to_be_shown(desk: Desk, request: RequestId, node: NodeName) -> bool:
    """
    Whether a request waits for the inventory of a node that was opened: STATE was lost since.

    Nothing shows what its agent has, or doubts; until then nothing that the ledger does not tell of is lost for good.
    """
    if not was_opened(desk, node) or node in desk.world.inventories or node in desk.world.removed:
        return False
    desk.opening.hold(request, node)
    return True


def _is_unbooked(desk: Desk, request: RequestId, allocation: AllocationId, node: NodeName) -> bool:
    """
    Whether a slice may be there and is not in the ledger; then the request waits for its node.

    Of one that was removed it is booked as gone, once its agent has had its time to say that it lives.
    """
    if isinstance(desk.world.slices.get(allocation), SliceGone):
        return False
    if allocation in desk.world.ledger and not _may_be_entered_again(desk, node, allocation):
        return False
    if desk.removals.is_over(node):
        close_unbooked(desk, request, allocation, node)
    desk.opening.hold(request, node)
    return True


def _may_be_entered_again(desk: Desk, node: NodeName, allocation: AllocationId) -> bool:
    """
    Whether a slice was closed with its node, whose agent speaks again, and the node is not open yet.

    That it was closed may have landed long after it was decided. What is there of it is known when the node is opened.
    """
    entry = desk.world.ledger.get(allocation)
    went = isinstance(entry, Closed) and entry.removed
    return went and node in desk.world.news and not was_opened(desk, node)


def waits_for_nodes(desk: Desk, request: RequestId) -> bool:
    """
    Whether a node that is just being opened may still show a slice of `request`, of which its source knows nothing.

    It waits for one such node after the other. Bounded: a node that cannot be opened for `orphan_grace_s` holds up
    nobody.
    """
    node = next(iter(desk.opening.since), None)
    if node is None:
        return False
    desk.opening.hold(request, node)
    return True


def look_at_opening(desk: Desk, node: NodeName) -> None:
    """Whether a node is heard of and not opened may have changed: look again at who waited for it."""
    is_told_of = node in desk.world.news or node in desk.world.inventories
    if was_opened(desk, node) or not is_told_of or node in desk.world.removed:
        desk.changed_requests |= desk.opening.opened(node)
    else:
        desk.opening.closed(node, desk.world.incarnation, desk.now)


def look_again(desk: Desk) -> None:
    """Time has passed: nodes that could not be opened hold up nobody any more, and none that waits is overlooked."""
    desk.changed_requests |= desk.opening.give_up(desk.now, desk.rules.orphan_grace_s)
    desk.changed_requests |= dict.fromkeys(desk.opening.longest_held(desk.rules.pending_refresh_batch))


def say_that_it_waits(desk: Desk, request: RequestId, asked: AllocationRequested, node: NodeName) -> None:
    """Tell whoever asked why the pod is not bound again yet."""
    say_why(desk, request, asked, f"its slice is on {node}, which is not open yet", _NOT_OPEN)


def say_that_it_is_in_doubt(
    desk: Desk, request: RequestId, asked: AllocationRequested, held: Held, ticket: str
) -> None:
    """Tell whoever asked that its slice is, or was, on a node whose agent cannot tell. It is looked at now and then."""
    desk.opening.hold(request, held.node)
    message = (
        f"its slice may be on {held.node}, which has lost its journal and cannot believe ticket {ticket}; "
        "`sluice gpus` says why: delete the pod, and it is given another"
    )
    say_why(desk, request, asked, message, _NOT_OPEN)


def say_why(desk: Desk, request: RequestId, asked: AllocationRequested, message: str, reason: ReasonCount) -> None:
    """Tell whoever asked why the pod is not bound; the same at a bounded rate, for another allocator may know more."""
    kept = desk.outbox.kept(subjects.waiting(request))
    if kept is None and request in desk.world.waiting:  # another allocator's word: two would answer each other for ever
        is_new = desk.attempts.last_said(request) is not reason.reason
    else:
        is_new = not isinstance(kept, Pending) or kept.message != message
    is_loss = reason.reason is not WaitReason.NODE_NOT_OPEN
    if not desk.attempts.may_say_pending(request, desk.now, reason=reason.reason, anew=is_loss and is_new):
        return
    pending = Pending(
        request=request,
        request_revision=asked.revision,
        message=message,
        reasons=(reason,),
    )
    desk.outbox.keep(subjects.waiting(request), pending, request=request)


def was_opened(desk: Desk, node: NodeName) -> bool:
    """Whether a node was opened in this life of the broker."""
    head = desk.world.heads.get(node)
    return head is not None and head.incarnation == desk.world.incarnation


def is_too_late(desk: Desk, grant: Grant) -> bool:
    """
    Whether a grant of another life of the broker landed in this one, and no agent will act on it.

    What is there of such grants is known when their node is opened, and is ordered anew then (`nodes`).
    """
    return grant.incarnation != desk.world.incarnation and was_opened(desk, grant.booking.node)


def held_instead(asked: RequestFact | None, binding: Bound) -> Held | None:
    """What a source remembers that its pod has, where that is not what `binding` says; None where they agree."""
    held = asked.held if isinstance(asked, AllocationRequested) else None
    return held if not binding.is_for(held) else None


def is_found_instead(desk: Desk, allocation: AllocationId, binding: Bound) -> bool:
    """
    Whether a slice was found on its node, and what `binding` names is gone: then its pod has this one, or will.

    That binding is of another life of the broker, and so may be what its source says; or it was never carried out.
    """
    entry = desk.world.ledger.get(allocation)
    if not (
        isinstance(entry, Grant) and entry.adopted and isinstance(desk.world.ledger.get(binding.allocation), Closed)
    ):
        return False
    return not isinstance(desk.world.slices.get(allocation), SliceDegraded)


def is_declined(asked: AllocationRequested, allocation: AllocationId) -> bool:
    """Whether a source says that its pod, which is held back yet, is not let go with this slice."""
    return asked.declined == allocation and not is_held(asked, allocation)


def is_held(asked: RequestFact | None, allocation: AllocationId) -> bool:
    """Whether a source remembers that its pod has this slice, or may (it is silent)."""
    if not isinstance(asked, AllocationRequested):
        return True
    return asked.held is not None and asked.held.allocation == allocation
