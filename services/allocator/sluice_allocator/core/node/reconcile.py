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
from sluice_allocator.core.node.removal import forget_node, reconcile_removed
from sluice_allocator.core.request.recovery import look_at_opening
from sluice_allocator.core.reservations.reservation import look_at_promises_on
from sluice_allocator.core.state.conditions import Condition
from sluice_allocator.core.state.context import Desk, HeadWritten, Life
from sluice_allocator.core.state.facts import BEING_UNMADE, is_held, is_its_agent, is_open

PAUSE_FIRST_S, PAUSE_MAX_S = 1.0, 8.0
OVER_S = 60.0
"""After this time without a conflict about a head the pause starts over."""


def reconcile_node(desk: Desk, node: NodeName) -> None:
    """Reconcile one node: read its inventory, open it if needed, use it or give the reason why not."""
    look_at_opening(desk, node)
    changed = _take_in_host(desk, node)  # one without GPUs is a domain, too
    if reconcile_removed(desk, node):
        return
    inventory = desk.world.inventories.get(node)
    if inventory is None:
        forget_node(desk, node)
        return
    shown = desk.shown.get(node)
    if _is_newer(inventory.snapshot, shown):
        desk.shown[node] = inventory.snapshot
        if shown is None or not _places_are_the_same(inventory.snapshot, shown):
            desk.fleet.show(inventory.snapshot)
            desk.wakes.freed(node)
            look_at_promises_on(desk, node)
    _look_for_unentered(desk, node, inventory)
    why_not = _why_not_use(desk, node, inventory)
    if why_not is WaitReason.NODE_NOT_OPEN:
        desk.unopened[node] = None
    elif node in desk.unopened:
        del desk.unopened[node]
        desk.conditions.clear(Condition.HEAD_OVERWRITTEN, node)
        _look_at_grants_on(desk, node)  # some may have come too late
    if why_not is WaitReason.NODE_NOT_OPEN and _may_adopt(desk, node, inventory):
        _adopt(desk, node, inventory)
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


def _may_adopt(desk: Desk, node: NodeName, inventory: NodeInventory) -> bool:
    """Whether the node may be opened: on complete facts of this incarnation, from its current agent."""
    news = desk.world.news.get(node)
    if news is None or inventory.stale or desk.world.unreadable.get(node):
        return False
    if not (is_its_agent(desk, node, inventory) and inventory.snapshot.generation >= news.generation):
        return False
    return inventory.incarnation in {"", desk.world.incarnations.get(Stream.STATE)}


def _adopt(desk: Desk, node: NodeName, inventory: NodeInventory) -> None:
    if desk.undecided_under.get(subjects.ledger_filter(node)) or _is_to_be_closed(desk, node):
        return  # looked at again when that is settled
    if desk.conditions.holds(Condition.REMOVAL_UNREAD, node):
        desk.conditions.to_read[Stream.STATE] = None
        return  # looked at again when STATE was read
    snapshot = inventory.snapshot
    if _leave_to_other(desk, node, (desk.world.incarnation, snapshot.boot_id, snapshot.agent_run)):
        return  # looked at again with time
    missing = [report for report in snapshot.slices if _is_missing(desk, report)]
    for report in missing:
        booking = report.booking
        desk.commit(subjects.ledger(node, booking.allocation), _adopting_entry(desk, report), booking.request)
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


def head_landed(desk: Desk, head: NodeOpened) -> None:
    """A head of this process is the current head of a node's ledger."""
    life, last = _life_of(head), desk.heads_written.get(head.node)
    is_again = last is not None and last.life == life and desk.now - last.at < OVER_S
    before = last.before + 1 if last is not None and is_again else 0
    desk.heads_written[head.node] = HeadWritten(life, desk.now, before)
    desk.conditions.clear(Condition.HEAD_OVERWRITTEN, head.node)


def _leave_to_other(desk: Desk, node: NodeName, life: Life) -> bool:
    """
    Whether to leave a head for a while that another allocator has written over this process's own.

    One of the two learned late that an agent restarted. Without a pause they would overwrite each other at the speed
    of the bus; after a pause of growing length the head is written again, so that neither waits without end.
    """
    written, instead = desk.heads_written.get(node), desk.world.heads.get(node)
    is_contested = instead is not None and instead.incarnation == life[0] and _life_of(instead) != life
    if written is None or written.life != life or not is_contested:
        desk.conditions.clear(Condition.HEAD_OVERWRITTEN, node)
        return False
    pause_s = min(PAUSE_FIRST_S * 2.0**written.before, PAUSE_MAX_S)
    desk.conditions.observe(Condition.HEAD_OVERWRITTEN, node, due=desk.now + pause_s)
    return not desk.conditions.is_mature(Condition.HEAD_OVERWRITTEN, node)


def _life_of(head: NodeOpened) -> Life:
    return head.incarnation, head.boot_id, head.agent_run


def _look_for_unentered(desk: Desk, node: NodeName, inventory: NodeInventory) -> None:
    """
    Note whether the ledger lacks slices of an agent, as far as is known now; a node where that lasts is adopted again.

    Either their entries are on their way to us, or the node was adopted without them: BOOK was lost and STATE was not,
    whose last message of the agent is older than its newest slice.
    """
    if not _may_adopt(desk, node, inventory):
        return
    lacks_some = any(_is_missing(desk, report) for report in inventory.snapshot.slices)
    desk.conditions.observe(Condition.SLICE_WITHOUT_ENTRY, node, holds=lacks_some)


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


def _adopting_entry(desk: Desk, report: SliceReport) -> Grant | Revoke:
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
