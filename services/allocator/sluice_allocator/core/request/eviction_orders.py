"""Decides which evictions are ordered and lifted, from grants, bindings and cordons, so that a restart and a second
allocator order the same. A pod is evicted only for a valid grant, and a bound one only from the place it is bound to.
"""

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import AllocationId, Incarnation, RequestId
from sluice.contracts.messages import AllocationRequested, EvictionOrdered, EvictionOver, Grant
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.preemption.drain import why_drained
from sluice_allocator.core.request.grant_validity import why_decline, why_revoke
from sluice_allocator.core.state.bus_cache import Entries, RequestFact, request_of
from sluice_allocator.core.state.facts import why_taken_back
from sluice_allocator.core.state.grant_facts import is_being_revoked, is_gone, is_move, named, why_moved


def reconcile_eviction(ctx: SchedulerContext, request: RequestId, asked: RequestFact | None, entries: Entries) -> None:
    concerns_some = ctx.facts.promises or ctx.facts.cordons or ctx.facts.evictions or ctx.sparing.has_orders
    if not concerns_some and why_taken_back(ctx, request, asked) is None:
        return
    _look_at_those_who_go_for(ctx, request, entries)
    cause = why_evict(ctx, request, asked, entries)
    if cause is not None or _is_in_the_way(ctx, entries):
        ctx.sparing.awaited(request, ctx.now)
    else:
        ctx.sparing.over(request)
    if cause is not None:
        life = ctx.facts.incarnations.get(Stream.STATE, Incarnation(""))
        _say(ctx, EvictionOrdered(request=request, cause=cause, incarnation=life))
    elif request in ctx.facts.evictions or isinstance(ctx.outbox.kept(subjects.eviction(request)), EvictionOrdered):
        _say(ctx, EvictionOver(request=request))


def _say(ctx: SchedulerContext, word: EvictionOrdered | EvictionOver) -> None:
    ttl_s = ctx.rules.closing_ttl_s if isinstance(word, EvictionOver) else None
    ctx.outbox.keep(subjects.eviction(word.request), word, request=word.request, ttl_s=ttl_s)


def why_evict(ctx: SchedulerContext, request: RequestId, asked: RequestFact | None, entries: Entries) -> str | None:
    if not isinstance(asked, AllocationRequested):
        return None
    for allocation, entry in entries.items():
        if not isinstance(entry, Grant) or is_gone(ctx, allocation):
            continue
        other = _goes_for(ctx, request, allocation)
        if other is not None:
            return why_moved(other) if is_move(other) else f"its place is needed for {named(other)}"
        drained = why_drained(ctx, entry)
        if drained is not None:
            return drained
    return why_taken_back(ctx, request, asked)


def _look_at_those_who_go_for(ctx: SchedulerContext, request: RequestId, entries: Entries) -> None:
    """The validity of a grant may have changed with its request: look again at the evictions for it. Not of slices that
    are gone: two requests may each have had a place after the other's, at different times."""
    for entry in entries.values():
        for each in entry.after if isinstance(entry, Grant) and entry.evict else ():
            other = ctx.facts.ledger.get(each)
            if other is not None and request_of(other) != request and not is_gone(ctx, each):
                ctx.changed_requests[request_of(other)] = None


def _is_in_the_way(ctx: SchedulerContext, entries: Entries) -> bool:
    """Whether a grant waits for a slice to go whose pod may have gone already: that may take too long as well."""
    left = (allocation for allocation in entries if not is_gone(ctx, allocation))
    return any(_evicting(ctx, allocation) for allocation in left)


def _goes_for(ctx: SchedulerContext, request: RequestId, allocation: AllocationId) -> Grant | None:
    """The grant for whose place the pod with this allocation goes; None where there is none. For a pod bound elsewhere
    this allocation is surplus and revoked anyway: its eviction would end the other one."""
    if ctx.facts.bound_to(request) not in {None, allocation}:
        return None
    return next((each for each in _evicting(ctx, allocation) if _stands(ctx, each)), None)


def _evicting(ctx: SchedulerContext, allocation: AllocationId) -> list[Grant]:
    """Grants for whose place an allocation's pod has to go; of requests seen in this incarnation only."""
    facts = ctx.facts
    promises = (each for each in facts.grants(facts.promises.get(allocation, ())) if each.evict)
    return [e for e in promises if e.incarnation == facts.incarnation and facts.wanted(e.booking.request) is not None]


def _stands(ctx: SchedulerContext, grant: Grant) -> bool:
    asked = ctx.facts.wanted(grant.booking.request)
    if asked is None or is_being_revoked(ctx, grant):
        return False
    return why_revoke(ctx, grant, asked) is None and why_decline(ctx, grant, asked) is None
