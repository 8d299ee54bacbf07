"""Serves the queue (step 5 of `core.cycle`): which request is tried when, and which reasons the others show. A new
request is tried at once, on the whole fleet. A waiting one fits nowhere but where something changed: what is freed is
offered, node by node, to the head of each shape in the order of turns; behind a head that got a place the next becomes
head, at its own later turn.

Fairness: what was freed is offered to earlier turns first, and every shape is tried at least once on it. An event has a
budget of tries: first the node freed last, then the passes under way, in turn. Two kinds may overtake: a new request of
another shape; and, on a node whose pass is under way, the shapes that it reaches next (every other try is theirs)."""

from sluice.contracts.bus import subjects
from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.messages import AllocationRequested, Pending
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core import placement
from sluice_allocator.core.capacity.demand import with_nodes_asked_for
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.gangs.gang import PartyStatus
from sluice_allocator.core.gangs.reconcile import refresh_gangs, shape_of_gang, tell_gang, turn_of
from sluice_allocator.core.gangs.trial import begin_trial, go_on_with_trials, offer_to_gang
from sluice_allocator.core.placement import NoPlace, Place, PlaceRequest, find_free, find_place_on, place_request_of
from sluice_allocator.core.preemption.candidates import find_victims
from sluice_allocator.core.preemption.drain import with_cordons
from sluice_allocator.core.queue.pending_queue import shape_of, singleton_shape
from sluice_allocator.core.quotas.alternatives import find_other, may_have_other, nor_other
from sluice_allocator.core.quotas.quota import forbids_asking, look_at_given_back, within_limits
from sluice_allocator.core.reservations.reservation import not_from_others, say_for_whom_it_waits, with_promises
from sluice_allocator.core.reservations.reserve import exchange_promise
from sluice_allocator.core.state.context import publish_wait
from sluice_allocator.core.state.grant_facts import standing_promise


def serve(ctx: SchedulerContext) -> None:
    """Offer what was freed to waiting requests, then try new ones, within one event's budget."""
    if ctx.offers:
        if ctx.queue:
            _offer(ctx)
        else:
            ctx.offers.end_all()
    if ctx.gangs.trial is not None or ctx.gangs.owed:
        go_on_with_trials(ctx)
    if ctx.queue.has_news:
        _look_outside(ctx)
    if ctx.cluster.namespace_usage.given_back:
        look_at_given_back(ctx)
    if ctx.over_quota.woken:
        _offer_to_namespaces(ctx)
    if ctx.cluster.peers.woken:
        _try_where_pods_have_changed(ctx)
    if ctx.to_try:
        _try_those_who_are_new(ctx)
    if ctx.to_tell and not ctx.offers.offers_everything:
        _tell_those_behind(ctx)


def _try_those_who_are_new(ctx: SchedulerContext) -> None:
    for _ in range(min(ctx.rules.new_tries, len(ctx.to_try))):
        request, _ = ctx.to_try.popitem(last=False)
        if request in ctx.queue:
            _try_new(ctx, request)


def _try_where_pods_have_changed(ctx: SchedulerContext) -> None:
    """Try those again that other pods' terms kept out; some per event."""
    woken = ctx.cluster.peers.woken
    for _ in range(min(ctx.rules.new_tries, len(woken))):
        request = next(iter(woken))
        del woken[request]
        if request in ctx.queue:
            _try_all_alike(ctx, ctx.queue.pending_shape(request).members.first()[2])


def _tell_those_behind(ctx: SchedulerContext) -> None:
    """Copy the reasons of the first of a shape to those behind it, after a pass over the whole fleet."""
    for _ in range(min(ctx.rules.settle_batch, len(ctx.to_tell))):
        request, _ = ctx.to_tell.popitem(last=False)
        why = ctx.queue.pending_shape(request).why if request in ctx.queue else None
        if why is not None and _is_news(ctx, request, why):
            _say_pending(ctx, request, ctx.facts.live(request), why)


def _look_outside(ctx: SchedulerContext) -> None:
    for _ in range(ctx.rules.new_tries):
        request = ctx.queue.next_to_let_in()
        if request is None:
            break
        _queue(ctx, request)
    for _ in range(ctx.rules.new_tries):
        request = ctx.queue.next_put_out()
        if request is None:
            return
        if not tell_gang(ctx, request):
            _say_pending(ctx, request, ctx.facts.live(request), ctx.queue.why_outside())


def try_at_once(ctx: SchedulerContext, request: RequestId, asked: AllocationRequested, shape: bytes) -> None:
    """Try a new request before it enters the queue, if nothing else is to be looked at or offered: most never wait."""
    over = forbids_asking(ctx, request, asked.namespace, asked.claims)
    found = _search(ctx, request, asked) if over is None else _instead(ctx, request, asked, over)
    if isinstance(found, Place):
        _grant(ctx, request, asked, found)
    if found is None or isinstance(found, Place) or not wait(ctx, request, asked, shape):
        return
    if over is not None:
        _wait_for_limits(ctx, request, asked, found)
    else:
        _wait_for_place(ctx, request, asked, found)


def wait(ctx: SchedulerContext, request: RequestId, asked: AllocationRequested, shape: bytes) -> bool:
    """Add a request to the queue: the only way. False if it waits already, or is kept outside the full queue."""
    since = ctx.backoff.since_when(request, ctx.now)
    rank, sequence = turn_of(ctx, request, asked)
    if not ctx.queue.add(request, shape, rank, sequence):
        if request in ctx.queue.outside:
            _take_back_word_of_promise(ctx, request, asked)
        return False
    is_of_gang = ctx.gangs.leads(request) or ctx.gangs.status_of(request) is PartyStatus.JOINS
    if not is_of_gang:  # a gang has places for all, or none promised
        ctx.aging.later.at(shape, since + ctx.rules.promise_after_s)
    return True


def _take_back_word_of_promise(ctx: SchedulerContext, request: RequestId, asked: AllocationRequested) -> None:
    """A request outside the queue may still show a reservation's reason, which is over: replace it."""
    said = ctx.outbox.kept(subjects.waiting(request)) or ctx.facts.waiting.get(request)
    reasons = said.reasons[:1] if isinstance(said, Pending) else ()
    if any(each.reason is WaitReason.PLACE_BEING_FREED for each in reasons) and standing_promise(ctx, request) is None:
        _say_pending(ctx, request, asked, ctx.queue.why_outside())


def stands_alone(ctx: SchedulerContext, request: RequestId, asked: AllocationRequested) -> bool:
    """Whether a request waits apart from its equals: it may fail where they fit, is reserved for, or leads a gang."""
    may_fail = bool(ctx.backoff.avoided(request, ctx.now)) or ctx.cluster.peers.keep_out(asked)
    return may_fail or ctx.gangs.status_of(request) is PartyStatus.JOINS or standing_promise(ctx, request) is not None


def shape_in_queue(ctx: SchedulerContext, request: RequestId, asked: AllocationRequested) -> bytes:
    if ctx.gangs.leads(request):
        return shape_of_gang(ctx, request)
    shape = shape_of(asked, limited=asked.namespace in ctx.facts.quotas)
    return singleton_shape(shape, request) if stands_alone(ctx, request, asked) else shape


def refresh_pending(ctx: SchedulerContext) -> None:
    """Look again at a few waiting requests, in turn, so that reasons stay current and none is overlooked."""
    refresh_gangs(ctx)
    for _ in range(min(ctx.rules.pending_refresh_batch, len(ctx.queue))):  # each at most once
        if not ctx.queue:
            return
        _look_again(ctx, ctx.queue.next_to_refresh())


def end_pauses(ctx: SchedulerContext) -> None:
    """Time passed: requests try the GPUs again on which they failed, and wait with their equals again."""
    for request in ctx.backoff.pauses_ended(ctx.now):
        if request in ctx.facts.requests:
            ctx.changed_requests[request] = None  # a request in backoff is not in the queue
        if request in ctx.queue:
            _queue(ctx, request)


def _queue(ctx: SchedulerContext, request: RequestId) -> None:
    """Let a request wait in the shape that it has now, and be tried."""
    asked = ctx.facts.live(request)
    wait(ctx, request, asked, shape_in_queue(ctx, request, asked))
    ctx.to_try[request] = None


def _offer(ctx: SchedulerContext) -> None:
    """Continue the passes. A place that is found costs more than one that is not."""
    if ctx.offers.offers_everything_anew:
        ctx.to_tell |= ctx.to_try
        ctx.to_try.clear()
    left = ctx.rules.wake_tries
    while left > 0 and ctx.offers:
        offer = ctx.offers.first()
        part = min(left, ctx.rules.wake_tries // 2)
        left -= part
        while part > 0:
            turn = offer.next_in(ctx.queue)
            if turn is None:
                ctx.offers.end(offer)
                break
            served = _try_everywhere(ctx, turn[2]) if offer.node is None else _try_on(ctx, turn[2], offer.node)
            part -= ctx.rules.tries_per_grant if served else 1
        else:
            ctx.offers.let_others_go_first(offer)
        left += max(part, 0)


def _offer_to_namespaces(ctx: SchedulerContext) -> None:
    """Try requests again that wait for their namespace's limits, in turn; the rest follows with the next event."""
    for _ in range(ctx.rules.new_tries):
        if not ctx.over_quota.woken:
            return
        namespace, last = next(iter(ctx.over_quota.woken.items()))
        turn = ctx.queue.aside_after(namespace, last)
        if turn is None:
            ctx.over_quota.end(namespace)
            continue
        ctx.over_quota.woken[namespace] = turn
        _try_all_alike(ctx, turn[2])


def _try_all_alike(ctx: SchedulerContext, request: RequestId) -> None:
    """Try a waiting request; if it gets a place, the next of its shape is tried after the other new ones."""
    pending = ctx.queue.pending_shape(request)
    if _try_everywhere(ctx, request) and pending.members:
        ctx.to_try[pending.members.first()[2]] = None


def _try_new(ctx: SchedulerContext, request: RequestId) -> None:
    """Try a newly queued request; if an identical one is ahead, copy its reasons instead of searching. Even where a
    pass is under way that has not reached its shape: its head is reached, and then it."""
    if ctx.queue.is_head(request):
        _try_everywhere(ctx, request)
    else:
        _look_again(ctx, request)


def _look_again(ctx: SchedulerContext, request: RequestId) -> None:
    """Publish why a request's shape waits; search for its head first, if that was long ago."""
    pending = ctx.queue.pending_shape(request)
    if ctx.now - pending.searched_at >= ctx.rules.pending_refresh_s:
        _try_all_alike(ctx, pending.members.first()[2])
    if request in ctx.queue and pending.why is not None:
        _say_pending(ctx, request, ctx.facts.live(request), pending.why)


def _try_on(ctx: SchedulerContext, request: RequestId, node: NodeName) -> bool:
    """Try a head on one node; True when it has a place now."""
    if ctx.gangs.leads(request):
        offer_to_gang(ctx, request, node)
        return False
    asked = ctx.facts.live(request)
    over, place = forbids_asking(ctx, request, asked.namespace, asked.claims), None
    if over is None:
        with ctx.cluster.peers.without(ctx.cluster.peers.booked_for(request)):
            place = _place_on(ctx, request, place_request_of(asked), node)
    fits = place is not None and isinstance(within_limits(ctx, request, asked, place), Place)
    granted = place if fits else _other(ctx, request, asked, node)
    if granted is not None:
        _grant(ctx, request, asked, granted)
        return True
    if over is not None:
        _wait_for_limits(ctx, request, asked, nor_other(asked, over))
    elif place is None:
        if exchange_promise(ctx, request, asked, freed_on=node):
            return True
        _stand_apart(ctx, request, asked)
    return False


def _other(
    ctx: SchedulerContext, request: RequestId, asked: AllocationRequested, node: NodeName | None = None
) -> Place | None:
    """A free place for one of its alternative claims, on `node` or anywhere."""
    if not asked.alternatives:
        return None

    def find(asking: PlaceRequest) -> Place | None:
        if node is not None:
            return _place_on(ctx, request, asking, node)
        return find_free(ctx.cluster, asking, ctx.backoff.avoided(request, ctx.now))

    with ctx.cluster.peers.without(ctx.cluster.peers.booked_for(request)):
        return find_other(ctx, request, asked, find)


def _place_on(ctx: SchedulerContext, request: RequestId, asking: PlaceRequest, node: NodeName) -> Place | None:
    """A place on this node; on a node that a pod uses only as a last resort, only if there is no other."""
    avoid = ctx.backoff.avoided(request, ctx.now)
    if node in asking.host.shun:
        return find_free(ctx.cluster, asking, avoid)
    return find_place_on(ctx.cluster, asking, node, avoid)


def _try_everywhere(ctx: SchedulerContext, request: RequestId) -> bool:
    """Try one request on the whole fleet, and publish why it waits. True when it has a place now."""
    if ctx.gangs.leads(request):
        begin_trial(ctx, request)
        return False
    asked = ctx.facts.live(request)
    over = forbids_asking(ctx, request, asked.namespace, asked.claims)
    if over is None:
        ctx.queue.offer_again(request)
    found = _search(ctx, request, asked) if over is None else _instead(ctx, request, asked, over)
    if isinstance(found, Place):
        _grant(ctx, request, asked, found)
    if found is None or isinstance(found, Place):
        return True
    if over is not None:
        _wait_for_limits(ctx, request, asked, found)
        return False
    _wait_for_place(ctx, request, asked, found)
    _stand_apart(ctx, request, asked)
    return False


def _stand_apart(ctx: SchedulerContext, request: RequestId, asked: AllocationRequested) -> None:
    """A request newly kept out by other pods waits by itself, and its equals are tried without it."""
    pending = ctx.queue.pending_shape(request)
    if not ctx.cluster.peers.keep_out(asked) or len(shape := shape_in_queue(ctx, request, asked)) == len(pending.shape):
        return
    if wait(ctx, request, asked, shape):
        alone_now = ctx.queue.pending_shape(request)
        alone_now.why, alone_now.searched_at = pending.why, ctx.now
        if pending.members:
            ctx.to_try[pending.members.first()[2]] = None


def _search(ctx: SchedulerContext, request: RequestId, asked: AllocationRequested) -> Place | NoPlace | None:
    """A free place, or why there is none; None when the request has been given one by eviction."""
    asking, avoid = place_request_of(asked), ctx.backoff.avoided(request, ctx.now)
    with ctx.cluster.peers.without(ctx.cluster.peers.booked_for(request)):
        free = find_free(ctx.cluster, asking, avoid)
    if free is None:
        other = _other(ctx, request, asked)
        if other is not None:
            return other
        if exchange_promise(ctx, request, asked) or _evict_for(ctx, request, asked):
            return None
        with ctx.cluster.peers.without(ctx.cluster.peers.booked_for(request)):
            placement.wait_for_pods(ctx.cluster, asking, request)
            why = placement.explain(ctx.cluster, asking, avoid)
        return nor_other(asked, with_cordons(ctx, with_promises(ctx, why)))
    within = within_limits(ctx, request, asked, free)
    return within if isinstance(within, Place) else _instead(ctx, request, asked, within)


def _instead(
    ctx: SchedulerContext, request: RequestId, asked: AllocationRequested, over: NoPlace
) -> Place | NoPlace | None:
    """What a request has whose first claims its namespace's limits forbid, as `_search`."""
    other = _other(ctx, request, asked)
    if other is not None or _evict_for(ctx, request, asked, at_limit=True):
        return other
    return nor_other(asked, over)


def _evict_for(
    ctx: SchedulerContext, request: RequestId, asked: AllocationRequested, *, at_limit: bool = False
) -> bool:
    """Book the place of less important pods, and have them evicted. False when that does not help."""
    if not asked.preempts or asked.group is not None or standing_promise(ctx, request) is not None:
        return False  # members of a gang are granted together or not at all; a reservation is waited for
    avoid = not_from_others(ctx, request)
    priority = ctx.priority_of(asked.namespace, asked.priority)
    found = find_victims(ctx, request, place_request_of(asked), priority, avoid, at_limit=at_limit)
    if found is None:
        return False
    ctx.queue.remove(request)
    after = tuple(victim.allocation for victim in found.victims)
    ctx.grant(ctx.booking_of(request, asked, found.place), after, evict=True)
    return True


def _wait_for_limits(ctx: SchedulerContext, request: RequestId, asked: AllocationRequested, why: NoPlace) -> None:
    """Let a shape wait until its namespace releases something or may have more: no place is of use to it."""
    if not may_have_other(ctx, request, asked):
        ctx.queue.set_aside(request, asked.namespace)
    _wait_for_place(ctx, request, asked, why)


def _wait_for_place(ctx: SchedulerContext, request: RequestId, asked: AllocationRequested, why: NoPlace) -> None:
    """Note and publish why a request's shape waits, after a search of the whole fleet."""
    pending = ctx.queue.pending_shape(request)
    pending.why, pending.searched_at = why, ctx.now
    _say_pending(ctx, request, asked, why)


def _grant(ctx: SchedulerContext, request: RequestId, asked: AllocationRequested, place: Place) -> None:
    ctx.queue.remove(request)
    ctx.grant(ctx.booking_of(request, asked, place))


def _say_pending(ctx: SchedulerContext, request: RequestId, asked: AllocationRequested, why: NoPlace) -> None:
    """Publish why it waits: at once the first time and when the first reason changes, else at a bounded rate."""
    promise = standing_promise(ctx, request)
    if promise is not None and say_for_whom_it_waits(ctx, request, asked, promise):
        return
    publish_wait(ctx, request, asked, with_nodes_asked_for(ctx, request, why), is_news=_is_news(ctx, request, why))


def _is_news(ctx: SchedulerContext, request: RequestId, why: NoPlace) -> bool:
    """Whether it has no reason yet, or another first one."""
    said = ctx.outbox.kept(subjects.waiting(request)) or ctx.facts.waiting.get(request)
    return not isinstance(said, Pending) or said.reasons[:1] != why.reasons[:1]
