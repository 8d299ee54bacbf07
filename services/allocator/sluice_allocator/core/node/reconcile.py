"""Opens nodes: a node is used only when everything its agent reported is in the ledger (PROTOCOL §6). An empty ledger
looks like an empty node; after a wiped broker that would give used slices away a second time. So first every reported
slice gets its (adopting) entry of this incarnation, then the head is written, and only then do grants follow."""

from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import AllocationId, NodeName
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.node.removal import forget_node, reconcile_removed
from sluice_allocator.core.reservations.reservation import look_at_promises_on
from sluice_allocator.core.state.conditions import Condition
from sluice_allocator.core.state.facts import BEING_UNMADE, is_held, is_its_agent, is_open, was_opened


def reconcile_node(ctx: SchedulerContext, node: NodeName) -> None:
    look_at_opening(ctx, node)
    _watch_consumer(ctx, node)
    changed = _take_in_host(ctx, node)  # one without GPUs is a domain, too
    if reconcile_removed(ctx, node):
        return
    inventory = ctx.facts.inventories.get(node)
    if inventory is None:
        forget_node(ctx, node)
        return
    shown = ctx.shown.get(node)
    if _is_newer(inventory.snapshot, shown):
        ctx.shown[node] = inventory.snapshot
        if shown is None or not _places_are_the_same(inventory.snapshot, shown):
            ctx.cluster.show(inventory.snapshot)
            ctx.offers.freed(node)
            look_at_promises_on(ctx, node)
    _look_for_unentered(ctx, node, inventory)
    ctx.node_pools.changed[node] = None
    why_not = _why_not_use(ctx, node, inventory)
    if WaitReason.NODE_NOT_OPEN in why_not:
        ctx.unopened[node] = None
    elif node in ctx.unopened:
        del ctx.unopened[node]
        _look_at_grants_on(ctx, node)  # some may have come too late
    if WaitReason.NODE_NOT_OPEN in why_not and _may_adopt(ctx, node, inventory):
        _adopt(ctx, node, inventory)
    cordon = ctx.facts.cordons.get(node)
    changed |= ctx.cluster.set_usable(node, *why_not)
    changed |= ctx.cluster.cordon(node, frozenset(cordon.gpus if cordon is not None else ()))
    if changed:
        ctx.offers.freed(node)
        look_at_promises_on(ctx, node)
    if changed and inventory.stale:
        _look_at_grants_on(ctx, node)


def _watch_consumer(ctx: SchedulerContext, node: NodeName) -> None:
    """An agent speaks for a node, or no longer does. Agents may not create their consumers, so this process does."""
    is_missing = node in ctx.facts.news and ctx.ensured.get(node) != ctx.facts.incarnation
    ctx.conditions.observe(Condition.CONSUMER_MISSING, node, holds=is_missing, due=ctx.now)


def _take_in_host(ctx: SchedulerContext, node: NodeName) -> bool:
    """Update a node's facts besides GPUs. If it rejects pods now, grants there that are not bound are looked at."""
    before, facts = ctx.cluster.host(node), ctx.facts.hosts.get(node)
    known = (before.cordoned, before.taints) if before is not None else (False, ())
    if facts is not None and (facts.cordoned, facts.taints) != known:
        _look_at_grants_on(ctx, node)
    return ctx.cluster.set_host(node, facts)


def _look_at_grants_on(ctx: SchedulerContext, node: NodeName) -> None:
    """Look again at requests that wait for a slice there: they may be served elsewhere
    (`grant_validity.why_decline`)."""
    for grant in ctx.facts.grants(ctx.facts.allocations_on.get(node, ())):
        ctx.changed_requests[grant.booking.request] = None


def _places_are_the_same(snapshot: msg.NodeSnapshot, shown: msg.NodeSnapshot) -> bool:
    """Whether a snapshot shows the same places: then only our own slices came and went, which the ledger tells."""
    places = (snapshot.gpus, snapshot.modes, snapshot.time_quota, snapshot.kubelet_hands_over)
    return places == (shown.gpus, shown.modes, shown.time_quota, shown.kubelet_hands_over)


def _is_newer(snapshot: msg.NodeSnapshot, shown: msg.NodeSnapshot | None) -> bool:
    """Whether a snapshot tells more than the one shown: generations count within one run of the agent only."""
    if shown is None or (shown.boot_id, shown.agent_run) != (snapshot.boot_id, snapshot.agent_run):
        return True
    return snapshot.generation > shown.generation


def _why_not_use(ctx: SchedulerContext, node: NodeName, inventory: msg.NodeInventory) -> tuple[WaitReason, ...]:
    """All reasons, the first to be shown first: what follows from one does not depend on another."""
    cordon = ctx.facts.cordons.get(node)
    reasons = {
        WaitReason.NODE_NOT_OPEN: not is_open(ctx, node),
        WaitReason.NODE_STALE: inventory.stale,
        WaitReason.NODE_CORDONED: cordon is not None and not cordon.gpus,
    }
    return tuple(reason for reason, holds in reasons.items() if holds)


def _may_adopt(ctx: SchedulerContext, node: NodeName, inventory: msg.NodeInventory) -> bool:
    news = ctx.facts.news.get(node)
    if news is None or inventory.stale or ctx.facts.unreadable.get(node):
        return False
    if not (is_its_agent(ctx, node, inventory) and inventory.snapshot.generation >= news.generation):
        return False
    return inventory.incarnation in {"", ctx.facts.incarnations.get(Stream.STATE)}


def _adopt(ctx: SchedulerContext, node: NodeName, inventory: msg.NodeInventory) -> None:
    if ctx.undecided_under.get(subjects.ledger_filter(node)) or _is_to_be_closed(ctx, node):
        return  # looked at again when that is settled
    if ctx.conditions.holds(Condition.REMOVAL_UNREAD, node):
        ctx.conditions.to_read[Stream.STATE] = None
        return  # looked at again when STATE was read
    snapshot = inventory.snapshot
    missing = [report for report in snapshot.slices if _is_missing(ctx, report)]
    for report in missing:
        booking = report.booking
        ctx.commit(subjects.ledger(node, booking.allocation), _adopting_entry(ctx, report), booking.request)
    if not missing:
        _close_again(ctx, node)
        reported = (report.booking.allocation for report in snapshot.slices)
        head = msg.NodeOpened(
            node=node,
            incarnation=ctx.facts.incarnation,
            boot_id=snapshot.boot_id,
            agent_run=snapshot.agent_run,
            adopted=tuple(each for each in reported if each in ctx.facts.ledger),
            lived=_lived(ctx, node, snapshot),
        )
        ctx.commit(subjects.head(node), head, "")


def _look_for_unentered(ctx: SchedulerContext, node: NodeName, inventory: msg.NodeInventory) -> None:
    """Note whether the ledger lacks slices of an agent; a node where that lasts is adopted again. Their entries are on
    their way, or BOOK was lost and STATE was not, whose last message is older than the newest slice."""
    if not _may_adopt(ctx, node, inventory):
        return
    lacks_some = any(_is_missing(ctx, report) for report in inventory.snapshot.slices)
    due = ctx.now + ctx.rules.orphan_grace_s
    ctx.conditions.observe(Condition.SLICE_WITHOUT_ENTRY, node, holds=lacks_some, due=due)


def _is_to_be_closed(ctx: SchedulerContext, node: NodeName) -> bool:
    """Whether a slice reported gone is not closed yet: an agent without its journal would mistake a new one for it."""
    there = ctx.facts.allocations_on.get(node, ())
    gone = (each for each in there if isinstance(ctx.facts.slices.get(each), msg.SliceGone))
    return any(not isinstance(ctx.facts.ledger.get(allocation), msg.Closed) for allocation in gone)


def _close_again(ctx: SchedulerContext, node: NodeName) -> None:
    """Publish `Closed` again for slices that the agent never read to be closed, before the head for its new run: the
    bus may have forgotten them, and a wiped agent too, whose `SliceGone` would stay."""
    for allocation in ctx.facts.allocations_on.get(node, ()):
        entry, word = ctx.facts.ledger.get(allocation), ctx.facts.slices.get(allocation)
        if isinstance(entry, msg.Closed) and isinstance(word, msg.SliceGone) and not word.closing:
            address = subjects.ledger(node, allocation)
            ctx.commit(address, entry, entry.request, ttl_s=ctx.rules.closing_ttl_s)


def _lived(ctx: SchedulerContext, node: NodeName, snapshot: msg.NodeSnapshot) -> tuple[AllocationId, ...]:
    """Slices that were ready once and that the agent no longer knows: made again, they may not fail."""
    reported = {report.booking.allocation for report in snapshot.slices}
    there = ctx.facts.allocations_on.get(node, ())
    return tuple(allocation for allocation in there if allocation not in reported and _was_ready(ctx, allocation))


def _was_ready(ctx: SchedulerContext, allocation: AllocationId) -> bool:
    entry, slice_ = ctx.facts.granted(allocation), ctx.facts.slices.get(allocation)
    if entry is None:
        return False
    asked, is_bound = ctx.facts.wanted(entry.booking.request), ctx.facts.bound_to(entry.booking.request) == allocation
    is_remembered = asked is not None and is_held(asked, allocation)
    return is_bound or is_remembered or isinstance(slice_, (msg.SliceReady, msg.SliceDegraded))


def _is_missing(ctx: SchedulerContext, report: msg.SliceReport) -> bool:
    """Whether the ledger lacks a reported slice. If it is closed there, or reported gone, the snapshot was pulled too
    early; but if it was closed with its node, no agent reported it gone, and this one has it. A grant of an earlier
    incarnation that landed late does not count: an agent that loses its journal would not make the slice again."""
    allocation = report.booking.allocation
    if isinstance(ctx.facts.slices.get(allocation), msg.SliceGone):
        return False
    match ctx.facts.ledger.get(allocation):
        case None:
            return True
        case msg.Closed(removed=removed):
            return removed
        case msg.Grant(incarnation=incarnation):
            return incarnation != ctx.facts.incarnation
        case _:
            return False


def _adopting_entry(ctx: SchedulerContext, report: msg.SliceReport) -> msg.Grant | msg.Revoke:
    """The entry for an existing slice: with the revision its agent knows, so that it orders nothing new."""
    incarnation = ctx.facts.incarnation
    revision, booking, after = report.revision, report.booking, report.after
    if report.revoked:
        booking = replace(booking, devices=report.counts) if report.counts else booking
        return msg.Revoke(revision=revision, incarnation=incarnation, booking=booking, cause=BEING_UNMADE, after=after)
    grant = msg.Grant(revision=revision, incarnation=incarnation, booking=booking, after=after, evict=report.evict)
    return replace(grant, adopted=True, counts=report.counts)


def look_at_opening(ctx: SchedulerContext, node: NodeName) -> None:
    """A node became adopted, or unknown: look again at the requests that wait for it."""
    is_told_of = node in ctx.facts.news or node in ctx.facts.inventories
    is_awaited = is_told_of and not was_opened(ctx, node) and node not in ctx.facts.removed
    ctx.conditions.observe(Condition.NODE_NEVER_OPENED, node, holds=is_awaited, due=ctx.now + ctx.rules.orphan_grace_s)
    if not is_awaited:
        ctx.changed_requests |= ctx.node_waits.release(node)
