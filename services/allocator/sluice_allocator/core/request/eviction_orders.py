"""
Decides which evictions are ordered, and which orders are lifted.

Both follow from grants, bindings and cordons, so that a restart and a second allocator order the same. A pod is
evicted only for a valid grant: the place of one that is being revoked would stay unused, and its Revoke may be read
later than the order. A bound pod is evicted only from the place it is bound to.
"""

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import AllocationId, Incarnation, RequestId
from sluice.contracts.messages import (
    AllocationRequested,
    Bound,
    EvictionOrdered,
    EvictionOver,
    Grant,
    LedgerEntry,
)
from sluice_allocator.core.preemption.drain import why_drained
from sluice_allocator.core.request.grant_validity import why_decline, why_revoke
from sluice_allocator.core.state.bus_cache import request_of
from sluice_allocator.core.state.conditions import Condition
from sluice_allocator.core.state.context import Desk
from sluice_allocator.core.state.facts import why_taken_back
from sluice_allocator.core.state.grant_facts import is_being_revoked, is_gone, is_move, named, why_moved


def reconcile_eviction(desk: Desk, request: RequestId, entries: dict[AllocationId, LedgerEntry]) -> None:
    """Order the eviction of a pod that has to go, or lift the order."""
    concerns_some = desk.world.promises or desk.world.cordons or desk.world.evictions or desk.sparing.has_orders
    if not concerns_some and why_taken_back(desk, request) is None:
        return
    _look_at_those_who_go_for(desk, request, entries)
    cause = why_evict(desk, request, entries)
    if cause is not None or _is_in_the_way(desk, entries):
        desk.sparing.awaited(request, desk.now)
    else:
        desk.sparing.over(request)
    if cause is not None:
        life = desk.world.incarnations.get(Stream.STATE, Incarnation(""))
        _say(desk, EvictionOrdered(request=request, cause=cause, incarnation=life))
    elif request in desk.world.evictions or isinstance(desk.outbox.kept(subjects.eviction(request)), EvictionOrdered):
        _say(desk, EvictionOver(request=request))


def _say(desk: Desk, word: EvictionOrdered | EvictionOver) -> None:
    """
    Publish whether a pod has to go. At a bounded rate while another allocator writes the opposite: one has read less.

    Nothing is written twice.
    """
    address = subjects.eviction(word.request)
    stands = desk.world.evictions.get(word.request) == word
    if stands or desk.outbox.kept(address) is not None or desk.throttle(Condition.EVICTION_WRITTEN, word.request):
        ttl_s = desk.rules.closing_ttl_s if isinstance(word, EvictionOver) else None
        desk.outbox.keep(address, word, request=word.request, ttl_s=ttl_s)


def why_evict(desk: Desk, request: RequestId, entries: dict[AllocationId, LedgerEntry]) -> str | None:
    """Why the pod of a request has to go; None when it need not."""
    if not isinstance(desk.world.requests.get(request), AllocationRequested):
        return None
    for allocation, entry in entries.items():
        if not isinstance(entry, Grant) or is_gone(desk, allocation):
            continue
        other = _goes_for(desk, request, allocation)
        if other is not None:
            return why_moved(other) if is_move(other) else f"its place is needed for {named(other)}"
        drained = why_drained(desk, entry)
        if drained is not None:
            return drained
    return why_taken_back(desk, request)


def _look_at_those_who_go_for(desk: Desk, request: RequestId, entries: dict[AllocationId, LedgerEntry]) -> None:
    """
    The validity of a grant may have changed with its request: look again at the evictions for it.

    Not of slices that are gone: two requests may each have had a place after the other's, at different times.
    """
    for entry in entries.values():
        for each in entry.after if isinstance(entry, Grant) and entry.evict else ():
            other = desk.world.ledger.get(each)
            if other is not None and request_of(other) != request and not is_gone(desk, each):
                desk.changed_requests[request_of(other)] = None


def _is_in_the_way(desk: Desk, entries: dict[AllocationId, LedgerEntry]) -> bool:
    """Whether a grant waits for a slice to go whose pod may have gone already: that may take too long as well."""
    left = (allocation for allocation in entries if not is_gone(desk, allocation))
    return any(_evicting(desk, allocation) for allocation in left)


def _goes_for(desk: Desk, request: RequestId, allocation: AllocationId) -> Grant | None:
    """
    The grant for whose place the pod with this allocation goes; None where there is none.

    For a pod bound elsewhere this allocation is surplus and revoked anyway: its eviction would end the other one.
    """
    binding = desk.world.bindings.get(request)
    if isinstance(binding, Bound) and binding.allocation != allocation:
        return None
    return next((each for each in _evicting(desk, allocation) if _stands(desk, each)), None)


def _evicting(desk: Desk, allocation: AllocationId) -> list[Grant]:
    """
    The grants for whose place the pod of an allocation has to go.

    Only of requests seen in this incarnation of the bus: others may be gone, and their grants are given up then.
    """
    promises = (desk.world.ledger[promise] for promise in desk.world.promises.get(allocation, ()))
    return [each for each in promises if isinstance(each, Grant) and each.evict and _is_asked_for(desk, each)]


def _is_asked_for(desk: Desk, grant: Grant) -> bool:
    asked = desk.world.requests.get(grant.booking.request)
    return grant.incarnation == desk.world.incarnation and isinstance(asked, AllocationRequested)


def _stands(desk: Desk, grant: Grant) -> bool:
    """Whether a requested grant is neither being revoked nor about to be."""
    asked = desk.world.requests.get(grant.booking.request)
    if not isinstance(asked, AllocationRequested) or is_being_revoked(desk, grant):
        return False
    return why_revoke(desk, grant, asked) is None and why_decline(desk, grant, asked) is None
