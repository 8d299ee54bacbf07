"""What follows from the facts about nodes, slices and bindings: questions only, which change nothing. A slice may exist
without a ledger entry: the broker was wiped, and a node is not adopted yet. A source remembers its pods' bindings.
Without waiting for that node, a running pod would get a second slice elsewhere, and its own, adopted later, would be
revoked as surplus (LAW 4); and `Released` would be published for a slice that still exists. If the slice turns out to
be gone, it is lost: its pod stays where it was, so it gets no other (ADR 0034)."""

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.contracts.ticket_paths import is_ticket_of
from sluice_allocator.core.state.bus_cache import RequestFact
from sluice_allocator.core.state.conditions import Condition
from sluice_allocator.core.state.context import Context

BEING_UNMADE = "being unmade"  # why a slice is revoked again after a wipe of the broker, its cause being lost
SURPLUS = "surplus: the request is bound elsewhere"  # a slice that its source does not know; its request has another
REFUSED = "refused"
DECLINED = "declined: its node kept its pod out when it was bound"  # why a bound slice is waived before its pod ran
FAILED = (msg.SliceFailed, msg.SliceQuarantined)  # statuses of a slice that could not be made, or not be removed
UNUSABLE = (*FAILED, msg.SliceDegraded)  # ... or whose GPU cannot be used now


def was_opened(ctx: Context, node: NodeName) -> bool:
    """Whether all that was on a node when its agent first spoke in this incarnation is in the ledger."""
    head = ctx.facts.heads.get(node)
    return head is not None and head.incarnation == ctx.facts.incarnation


def is_open(ctx: Context, node: NodeName) -> bool:
    """Whether slices may be granted or resized on a node as it is known now. One whose agent restarted was opened, and
    is not open until its inventory was adopted; what exists there stays bound, and may be revoked (PROTOCOL §6)."""
    inventory = ctx.facts.inventories.get(node)
    return inventory is not None and _is_adopted(ctx, node, inventory) and not ctx.facts.unreadable.get(node)


def _is_adopted(ctx: Context, node: NodeName, inventory: msg.NodeInventory) -> bool:
    """Whether the head names this incarnation, this boot and this run of the agent; and no closing of it is pending."""
    head = ctx.facts.heads.get(node)
    snapshot = inventory.snapshot
    return (
        head is not None
        and not ctx.outbox.busy(subjects.head(node))
        and head.incarnation == ctx.facts.incarnation
        and (head.boot_id, head.agent_run) == (snapshot.boot_id, snapshot.agent_run)
        and is_its_agent(ctx, node, inventory)
        and not ctx.conditions.is_mature(Condition.SLICE_WITHOUT_ENTRY, node)
    )


def is_its_agent(ctx: Context, node: NodeName, inventory: msg.NodeInventory) -> bool:
    """Whether the pulled snapshot is of the node's current agent: an older one may lack slices."""
    news = ctx.facts.news.get(node)
    snapshot = inventory.snapshot
    return news is not None and (news.boot_id, news.agent_run) == (snapshot.boot_id, snapshot.agent_run)


def is_unshown(ctx: Context, node: NodeName) -> bool:
    """Whether an adopted node's inventory is missing (STATE was lost): until it arrives no slice is lost for good."""
    return was_opened(ctx, node) and node not in ctx.facts.inventories and node not in ctx.facts.removed


def unbooked_slice(ctx: Context, request: RequestId, held: msg.Held | None) -> msg.Held | None:
    """A slice of `request` that may exist without an entry: reported by an agent or an inventory (even of an adopted
    node), named by a head, or remembered by a source until its node is adopted."""
    facts = ctx.facts
    told = [(each, facts.slice_nodes[each]) for each in facts.slices_of.get(request, ())]
    told += facts.reported_of.get(request, {}).items()
    if facts.on_their_way:
        told += [(each, node) for each, node in facts.on_their_way.items() if each.startswith(f"{request}_")]
    for allocation, node in told:
        if _is_unbooked(ctx, allocation, node):
            return msg.Held(node=node, allocation=allocation)
    if held is not None and not was_opened(ctx, held.node) and _is_unbooked(ctx, held.allocation, held.node):
        return held
    return None


def _is_unbooked(ctx: Context, allocation: AllocationId, node: NodeName) -> bool:
    is_gone = isinstance(ctx.facts.slices.get(allocation), msg.SliceGone)
    return not is_gone and (allocation not in ctx.facts.ledger or _may_be_entered_again(ctx, node, allocation))


def _may_be_entered_again(ctx: Context, node: NodeName, allocation: AllocationId) -> bool:
    """Whether a slice was closed with its node, whose agent publishes again, and the node is not open yet. The Closed
    may have landed long after it was decided; opening the node shows what exists."""
    entry = ctx.facts.ledger.get(allocation)
    went = isinstance(entry, msg.Closed) and entry.removed
    return went and node in ctx.facts.news and not was_opened(ctx, node)


def why_lost(ctx: Context, request: RequestId, held: msg.Held) -> str | None:
    """Why a slice that a source remembers is gone, so that no other can serve its pod; None while it may exist."""
    entry = ctx.facts.ledger.get(held.allocation)
    if isinstance(entry, msg.Closed):
        return entry.cause if not _may_be_entered_again(ctx, held.node, held.allocation) else None
    if entry is not None or unbooked_slice(ctx, request, held) is not None or doubtful_ticket(ctx, held):
        return None
    removed = ctx.facts.removed.get(held.node)
    if removed is not None:
        return f"{held.node} was removed: {removed.cause}"
    is_known = was_opened(ctx, held.node) and held.node in ctx.facts.inventories
    return f"{held.node} no longer has it" if is_known else None


def why_taken_back(ctx: Context, request: RequestId, asked: RequestFact | None) -> str | None:
    """Why a pod has to go whose source remembers a slice that is being revoked; None when it need not. Its slice was
    lost, and the broker was wiped before its source read that (ADR 0034): the pod would keep using a revoked slice, and
    the slice's agent would wait for it to end. A slice revoked in this incarnation is known to its source, or was
    withdrawn by it. A `Bound` is no proof of that: it is older, and landed late. Or it was surplus: a patch of a former
    pod-watcher landed when its pod was bound elsewhere."""
    held = asked.held if isinstance(asked, msg.AllocationRequested) else None
    if held is None or isinstance(ctx.facts.bindings.get(request), msg.Released):
        return None
    entry = ctx.facts.ledger.get(held.allocation)
    is_unheard = isinstance(entry, msg.Revoke) and entry.cause in {BEING_UNMADE, SURPLUS}
    is_there = is_unheard and not isinstance(ctx.facts.slices.get(held.allocation), msg.SliceGone)
    return f"its slice on {held.node} is being revoked" if is_there else None


def doubtful_ticket(ctx: Context, held: msg.Held) -> str:
    """The ticket of a remembered slice that its agent cannot verify; empty if there is none."""
    inventory = ctx.facts.inventories.get(held.node)
    if inventory is None or held.allocation in ctx.facts.ledger or held.node in ctx.facts.removed:
        return ""
    return next((each for each in inventory.snapshot.doubtful_tickets if is_ticket_of(each, held.allocation)), "")


def is_too_late(ctx: Context, grant: msg.Grant) -> bool:
    """Whether a grant of an earlier incarnation landed in this one: opening its node orders it again."""
    return grant.incarnation != ctx.facts.incarnation and was_opened(ctx, grant.booking.node)


def held_instead(asked: RequestFact | None, binding: msg.Bound) -> msg.Held | None:
    """The slice that a source remembers, if `binding` names another; None where they agree."""
    held = asked.held if isinstance(asked, msg.AllocationRequested) else None
    return held if not binding.is_for(held) else None


def is_found_instead(ctx: Context, allocation: AllocationId, binding: msg.Bound) -> bool:
    """Whether a slice was found on its node, and the one in `binding` (of an earlier incarnation, or never carried out)
    is gone: then its pod has this one, or will."""
    entry, former = ctx.facts.granted(allocation), ctx.facts.ledger.get(binding.allocation)
    is_there = entry is not None and entry.adopted and isinstance(former, msg.Closed)
    return is_there and not isinstance(ctx.facts.slices.get(allocation), msg.SliceDegraded)


def is_declined(asked: msg.AllocationRequested, allocation: AllocationId) -> bool:
    """Whether a source publishes that its pod, which is still gated, will not be admitted with this slice."""
    return asked.declined == allocation and not is_held(asked, allocation)


def is_held(asked: RequestFact | None, allocation: AllocationId) -> bool:
    """Whether a source remembers that its pod has this slice, or may (it is silent)."""
    if not isinstance(asked, msg.AllocationRequested):
        return True
    return asked.held is not None and asked.held.allocation == allocation


def is_rejected(asked: RequestFact | None, booking: msg.Booking) -> bool:
    """Whether the source rejected the request of a slice, and not an older revision. If the slice is bound, or was
    found after a wipe, the rejection may be outdated: it is an orphan until the source syncs."""
    return isinstance(asked, msg.RequestRejected) and asked.revision >= booking.request_revision


def may_come_yet(ctx: Context, allocation: AllocationId) -> bool:
    """Whether a bound allocation's entry is still on its way. False for a slice that is gone: the Bound landed late."""
    is_known = allocation in ctx.facts.ledger or allocation in ctx.facts.lost
    return not is_known and not isinstance(ctx.facts.slices.get(allocation), msg.SliceGone)


def answer_without_slice(ctx: Context, request: RequestId) -> msg.Bound | msg.Refused | msg.Waived | None:
    """The last binding of a request that gets no slice (any more), as far as the ledger tells. None if it does not name
    its source, which alone can confirm that the request is gone."""
    match ctx.facts.bindings.get(request):
        case msg.Refused() | msg.Waived() as answer if answer.source:
            return answer
        case msg.Bound() as bound if bound.source and isinstance(
            ctx.facts.ledger.get(bound.allocation), msg.Closed | None
        ):
            return bound
        case _:
            return None
