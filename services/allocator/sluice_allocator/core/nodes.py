"""
Opens nodes: a node is used only when everything its agent reported is in the ledger (PROTOCOL §6).

An empty ledger looks like an empty node; after a wiped broker that would give used slices away a second time. So
first every reported slice gets its (adopting) entry of this incarnation, then the head is written, and only then do
grants follow.
"""

from msgspec.structs import replace

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import AllocationId, NodeName
from sluice.contracts.messages import (
    AllocationRequested,
    Bound,
    Closed,
    Grant,
    NodeInventory,
    NodeOpened,
    NodeSnapshot,
    Revoke,
    SliceDegraded,
    SliceGone,
    SliceReady,
    SliceReport,
)
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.desk import Desk
from sluice_allocator.core.held import BEING_UNMADE, is_held, look_at_opening
from sluice_allocator.core.removing import settle_removed
from sluice_allocator.core.waiting.promised import look_at_promises_on


def settle_node(desk: Desk, node: NodeName) -> None:
    """Reconcile one node: read its inventory, open it if needed, use it or give the reason why not."""
    look_at_opening(desk, node)
    changed = _take_in_host(desk, node)  # one without GPUs is a domain, too
    if settle_removed(desk, node):
        return
    inventory = desk.world.inventories.get(node)
    if inventory is None:
        desk.fleet.forget_node(node)
        desk.shown.pop(node, None)
        desk.unopened.pop(node, None)
        desk.reopening.forget(node)
        desk.unentered.forget(node)
        return
    shown = desk.shown.get(node)
    if _is_newer(inventory.snapshot, shown):
        desk.shown[node] = inventory.snapshot
        if shown is None or not _places_are_the_same(inventory.snapshot, shown):
            desk.fleet.show(inventory.snapshot)
            desk.wakes.freed(node)
            look_at_promises_on(desk, node)
    _look_for_unentered(desk, node, inventory)
    desk.node_pools.changed[node] = None
    why_not = _why_not_use(desk, node, inventory)
    if why_not is WaitReason.NODE_NOT_OPEN:
        desk.unopened[node] = None
    elif node in desk.unopened:
        del desk.unopened[node]
        desk.reopening.settled(node)
        _look_at_grants_on(desk, node)  # some may have come too late
    if why_not is WaitReason.NODE_NOT_OPEN and _may_open(desk, node, inventory):
        _open(desk, node, inventory)
    cordon = desk.world.cordons.get(node)
    changed |= desk.fleet.set_usable(node, why_not)
    changed |= desk.fleet.cordon(node, frozenset(cordon.gpus if cordon is not None else ()))
    if changed:
        desk.wakes.freed(node)
        look_at_promises_on(desk, node)
    if changed and why_not is WaitReason.NODE_STALE:
        _look_at_grants_on(desk, node)


def _take_in_host(desk: Desk, node: NodeName) -> bool:
    """Update a node's facts besides GPUs. If it rejects pods now, grants there that are not bound are looked at."""
    before, facts = desk.fleet.host(node), desk.world.hosts.get(node)
    known = (before.cordoned, before.taints) if before is not None else (False, ())
    if facts is not None and (facts.cordoned, facts.taints) != known:
        _look_at_grants_on(desk, node)
    return desk.fleet.set_host(node, facts)


def _look_at_grants_on(desk: Desk, node: NodeName) -> None:
    """Look again at requests that wait for a slice there: they may be served elsewhere (`standing`)."""
    for allocation in desk.world.allocations_on.get(node, ()):
        entry = desk.world.ledger[allocation]
        if isinstance(entry, Grant):
            desk.changed_requests[entry.booking.request] = None


def is_open(desk: Desk, node: NodeName) -> bool:
    """Whether orders may be written for a node as it is known now, also for existing slices (PROTOCOL §6)."""
    inventory = desk.world.inventories.get(node)
    return inventory is not None and _is_open(desk, node, inventory) and not desk.world.unreadable.get(node)


def _places_are_the_same(snapshot: NodeSnapshot, shown: NodeSnapshot) -> bool:
    """Whether a snapshot shows the same places: then only our own slices came and went, which the ledger tells."""
    places = (snapshot.gpus, snapshot.modes, snapshot.time_quota, snapshot.kubelet_hands_over)
    return places == (shown.gpus, shown.modes, shown.time_quota, shown.kubelet_hands_over)


def _is_newer(snapshot: NodeSnapshot, shown: NodeSnapshot | None) -> bool:
    """Whether a snapshot tells more than the one shown: generations count within one run of the agent only."""
    if shown is None or (shown.boot_id, shown.agent_run) != (snapshot.boot_id, snapshot.agent_run):
        return True
    return snapshot.generation > shown.generation


def _why_not_use(desk: Desk, node: NodeName, inventory: NodeInventory) -> WaitReason | None:
    if not is_open(desk, node):
        return WaitReason.NODE_NOT_OPEN
    if inventory.stale:
        return WaitReason.NODE_STALE
    host = desk.world.hosts.get(node)
    cordon = desk.world.cordons.get(node)
    if (cordon is not None and not cordon.gpus) or (host is not None and host.cordoned):
        return WaitReason.NODE_CORDONED
    return None


def _is_open(desk: Desk, node: NodeName, inventory: NodeInventory) -> bool:
    """Whether the head names this incarnation, this boot and this run of the agent; and no closing of it is pending."""
    head = desk.world.heads.get(node)
    snapshot = inventory.snapshot
    return (
        head is not None
        and not desk.outbox.busy(subjects.head(node))
        and head.incarnation == desk.world.incarnation
        and (head.boot_id, head.agent_run) == (snapshot.boot_id, snapshot.agent_run)
        and _is_its_agent(desk, node, inventory)
        and not desk.unentered.is_over(node)
    )


def _is_its_agent(desk: Desk, node: NodeName, inventory: NodeInventory) -> bool:
    """Whether the pulled snapshot is of the node's current agent: an older one may lack slices."""
    news = desk.world.news.get(node)
    snapshot = inventory.snapshot
    return news is not None and (news.boot_id, news.agent_run) == (snapshot.boot_id, snapshot.agent_run)


def _may_open(desk: Desk, node: NodeName, inventory: NodeInventory) -> bool:
    """Whether the node may be opened: on complete facts of this incarnation, from its current agent."""
    news = desk.world.news.get(node)
    if news is None or inventory.stale or desk.world.unreadable.get(node):
        return False
    if not (_is_its_agent(desk, node, inventory) and inventory.snapshot.generation >= news.generation):
        return False
    return inventory.incarnation in {"", desk.world.incarnations.get(Stream.STATE)}


def _open(desk: Desk, node: NodeName, inventory: NodeInventory) -> None:
    if desk.undecided_under.get(subjects.ledger_filter(node)) or _is_to_be_closed(desk, node):
        return  # looked at again when that is settled
    if desk.unheard.holds_up(node):
        return  # looked at again when STATE was read
    snapshot = inventory.snapshot
    life = (desk.world.incarnation, snapshot.boot_id, snapshot.agent_run)
    if desk.reopening.rests(node, life, desk.world.heads.get(node), desk.now):
        return  # looked at again with time
    missing = [report for report in snapshot.slices if _is_missing(desk, report)]
    for report in missing:
        booking = report.booking
        desk.commit(subjects.ledger(node, booking.allocation), _adopt(desk, report), booking.request)
    if not missing:
        _close_again(desk, node)
        adopted = (report.booking.allocation for report in snapshot.slices)
        head = NodeOpened(
            node=node,
            incarnation=desk.world.incarnation,
            boot_id=snapshot.boot_id,
            agent_run=snapshot.agent_run,
            adopted=tuple(allocation for allocation in adopted if allocation in desk.world.ledger),
            lived=_lived(desk, node, snapshot),
        )
        desk.commit(subjects.head(node), head, "")


def _look_for_unentered(desk: Desk, node: NodeName, inventory: NodeInventory) -> None:
    """Whether the ledger lacks slices of an agent, as far as is known now."""
    if not _may_open(desk, node, inventory):
        return
    if any(_is_missing(desk, report) for report in inventory.snapshot.slices):
        desk.unentered.look(node, desk.now, desk.rules.orphan_grace_s)
    else:
        desk.unentered.forget(node)


def _is_to_be_closed(desk: Desk, node: NodeName) -> bool:
    """
    Whether a slice that is reported gone is not closed yet (`entries` does that).

    An agent that lost its journal would find an order for it, and mistake a slice made there since for it.
    """
    there = desk.world.allocations_on.get(node, ())
    gone = (each for each in there if isinstance(desk.world.slices.get(each), SliceGone))
    return any(not isinstance(desk.world.ledger.get(allocation), Closed) for allocation in gone)


def _close_again(desk: Desk, node: NodeName) -> None:
    """
    Publish `Closed` again for slices that the agent never read to be closed, before the head for its new run.

    Expiry is silent. If the node was away longer than closing messages live, the bus has forgotten them, and an agent
    with a wiped disk remembers nothing either: its `SliceGone` would stay.
    """
    for allocation in desk.world.allocations_on.get(node, ()):
        entry, word = desk.world.ledger.get(allocation), desk.world.slices.get(allocation)
        if isinstance(entry, Closed) and isinstance(word, SliceGone) and not word.closing:
            address = subjects.ledger(node, allocation)
            desk.commit(address, entry, entry.request, ttl_s=desk.rules.closing_ttl_s)


def _lived(desk: Desk, node: NodeName, snapshot: NodeSnapshot) -> tuple[AllocationId, ...]:
    """Slices that were ready once and that the agent no longer knows: made again, they may not fail."""
    reported = {report.booking.allocation for report in snapshot.slices}
    there = desk.world.allocations_on.get(node, ())
    return tuple(allocation for allocation in there if allocation not in reported and _was_ready(desk, allocation))


def _was_ready(desk: Desk, allocation: AllocationId) -> bool:
    entry = desk.world.ledger.get(allocation)
    if not isinstance(entry, Grant):
        return False
    binding = desk.world.bindings.get(entry.booking.request)
    is_bound = isinstance(binding, Bound) and binding.allocation == allocation
    asked = desk.world.requests.get(entry.booking.request)
    is_remembered = isinstance(asked, AllocationRequested) and is_held(asked, allocation)
    return is_bound or is_remembered or isinstance(desk.world.slices.get(allocation), (SliceReady, SliceDegraded))


def _is_missing(desk: Desk, report: SliceReport) -> bool:
    """
    Whether the ledger lacks a reported slice. If it is closed there, or reported gone, the snapshot was pulled too
    early; but if it was closed with its node, no agent reported it gone, and this one has it. A grant of an earlier
    incarnation that landed late does not count: an agent that loses its journal would not make the slice again.
    """
    allocation = report.booking.allocation
    if isinstance(desk.world.slices.get(allocation), SliceGone):
        return False
    match desk.world.ledger.get(allocation):
        case None:
            return True
        case Closed(removed=removed):
            return removed
        case Grant(incarnation=incarnation):
            return incarnation != desk.world.incarnation
        case _:
            return False


def _adopt(desk: Desk, report: SliceReport) -> Grant | Revoke:
    """The entry for an existing slice: with the revision its agent knows, so that it orders nothing new."""
    incarnation = desk.world.incarnation
    if report.revoked:
        booking = replace(report.booking, devices=report.counts) if report.counts else report.booking
        return Revoke(
            revision=report.revision,
            incarnation=incarnation,
            booking=booking,
            cause=BEING_UNMADE,
            after=report.after,
        )
    return Grant(
        revision=report.revision,
        incarnation=incarnation,
        booking=report.booking,
        after=report.after,
        evict=report.evict,
        adopted=True,
        counts=report.counts,
    )
