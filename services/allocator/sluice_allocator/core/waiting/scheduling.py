"""
The scheduling cycle: which request is tried when, and which reasons the others show.

A new request is tried at once, on the whole fleet. A waiting one fits nowhere, except where something changed since:
so whatever is freed is offered, node by node, to the head of each group in the order of turns; behind a head that got
a place the next of its group becomes head, at its own later turn.

Fairness: what was freed is offered to earlier turns before later ones, and every group is tried at least once on it.
One event has a budget of tries: first the node that was freed last, then the passes under way, in turn; the rest
follows with the next event. Two kinds may overtake others: a new request of another shape, which is tried at once;
and, where something is freed on a node whose pass is under way, the groups which that pass reaches next (every other
try is theirs, or the last turns would never be reached).
"""

from sluice.contracts.bus import subjects
from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.messages import AllocationRequested, Pending
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.booking import booking_of
from sluice_allocator.core.capacity.demand import with_nodes_asked_for
from sluice_allocator.core.desk import Desk
from sluice_allocator.core.evictions.draining import with_cordons
from sluice_allocator.core.evictions.preempting import find_victims
from sluice_allocator.core.groups.settling import joins_group, refresh_groups, shape_of_group, tell_group, turn_of
from sluice_allocator.core.groups.trials import begin_trial, go_on_with_trials, offer_to_group
from sluice_allocator.core.limits.alternatives import find_other, may_have_other, nor_other
from sluice_allocator.core.limits.quotas import forbids_asking, forbids_place, look_at_given_back, no_place
from sluice_allocator.core.placement import (
    Asking,
    NoPlace,
    Place,
    asking_of,
    explain,
    find_free,
    find_place_on,
    wait_for_pods,
)
from sluice_allocator.core.waiting.exchanging import exchange_promise
from sluice_allocator.core.waiting.promised import (
    not_from_others,
    say_for_whom_it_waits,
    standing_promise,
    with_promises,
)
from sluice_allocator.core.waiting.queue import alone, shape_of


def serve(desk: Desk) -> None:
    """Offer what was freed to waiting requests, then try new ones, within one event's budget."""
    if desk.wakes:
        if desk.queue:
            _offer(desk)
        else:
            desk.wakes.end_all()
    if desk.gangs.trial is not None or desk.gangs.owed:
        go_on_with_trials(desk)
    if desk.queue.has_news:
        _look_outside(desk)
    if desk.fleet.accounts.given_back:
        look_at_given_back(desk)
    if desk.over_quota.woken:
        _offer_to_namespaces(desk)
    if desk.fleet.peers.woken:
        _try_where_pods_have_changed(desk)
    if desk.to_try:
        _try_those_who_are_new(desk)
    if desk.to_tell and not desk.wakes.offers_everything:
        _tell_those_behind(desk)


def _try_those_who_are_new(desk: Desk) -> None:
    for _ in range(min(desk.rules.new_tries, len(desk.to_try))):
        request, _ = desk.to_try.popitem(last=False)
        if request in desk.queue:
            _try_new(desk, request)


def _try_where_pods_have_changed(desk: Desk) -> None:
    """Try those again that other pods' terms kept out; some per event."""
    woken = desk.fleet.peers.woken
    for _ in range(min(desk.rules.new_tries, len(woken))):
        request = next(iter(woken))
        del woken[request]
        if request in desk.queue:
            _try_all_alike(desk, desk.queue.group_of(request).members.first()[2])


def _tell_those_behind(desk: Desk) -> None:
    """Copy the reasons of the first of a shape to those behind it, after a pass over the whole fleet."""
    for _ in range(min(desk.rules.settle_batch, len(desk.to_tell))):
        request, _ = desk.to_tell.popitem(last=False)
        why = desk.queue.group_of(request).why if request in desk.queue else None
        if why is not None and _is_news(desk, request, why):
            _say_pending(desk, request, _asked(desk, request), why)


def _look_outside(desk: Desk) -> None:
    """Let requests into the queue where others left; publish the reason of those newly outside. Some per event."""
    for _ in range(desk.rules.new_tries):
        request = desk.queue.next_to_let_in()
        if request is None:
            break
        asked = _asked(desk, request)
        wait(desk, request, asked, shape_in_queue(desk, request, asked))
        desk.to_try[request] = None
    for _ in range(desk.rules.new_tries):
        request = desk.queue.next_put_out()
        if request is None:
            return
        if not tell_group(desk, request):
            _say_pending(desk, request, _asked(desk, request), desk.queue.why_outside())


def try_at_once(desk: Desk, request: RequestId, asked: AllocationRequested, shape: bytes) -> None:
    """
    Try a new request before it enters the queue: most never wait.

    Only while nothing else is to be looked at, nothing freed is being offered and no other of its shape waits.
    """
    over = forbids_asking(desk, request, asked.namespace, asked.claims)
    if over is None:
        found = _search(desk, request, asked)
    else:
        found = _other(desk, request, asked) or _or_evict(desk, request, asked, over)
    if found is None:
        return
    if isinstance(found, Place):
        _grant(desk, request, asked, found)
        return
    if not wait(desk, request, asked, shape):
        return
    if over is not None and not may_have_other(desk, request, asked):
        desk.queue.set_aside(request, asked.namespace)
    group = desk.queue.group_of(request)
    group.why, group.searched_at = found, desk.now
    _say_pending(desk, request, asked, found)


def wait(desk: Desk, request: RequestId, asked: AllocationRequested, shape: bytes) -> bool:
    """
    Add a request to the queue in its turn: the only way into it.

    False when it waits already, and when it is kept outside the full queue (`serve` publishes that).
    """
    since = desk.attempts.waits_since(request, desk.now)
    rank, sequence = turn_of(desk, request, asked)
    if not desk.queue.add(request, shape, rank, sequence):
        if request in desk.queue.outside:
            _take_back_word_of_promise(desk, request, asked)
        return False
    if not (desk.gangs.leads(request) or joins_group(desk, request)):  # a group has places for all, or none promised
        desk.aging.look_at(shape, since + desk.rules.promise_after_s)
    return True


def _take_back_word_of_promise(desk: Desk, request: RequestId, asked: AllocationRequested) -> None:
    """A request outside the queue may still show a reservation's reason, which is over: replace it."""
    said = desk.outbox.kept(subjects.waiting(request)) or desk.world.waiting.get(request)
    reasons = said.reasons[:1] if isinstance(said, Pending) else ()
    if any(each.reason is WaitReason.PLACE_BEING_FREED for each in reasons) and standing_promise(desk, request) is None:
        _say_pending(desk, request, asked, desk.queue.why_outside())


def stands_alone(desk: Desk, request: RequestId) -> bool:
    """Whether a request waits apart from its equals: it may fail where they fit, is reserved for, or leads a group."""
    may_fail = bool(desk.attempts.avoided(request, desk.now)) or _is_kept_out(desk, request)
    return may_fail or joins_group(desk, request) or standing_promise(desk, request) is not None


def _is_kept_out(desk: Desk, request: RequestId) -> bool:
    """Whether existing pods' anti-affinity keeps this one out, and perhaps not its equals."""
    asked = desk.world.requests.get(request)
    return isinstance(asked, AllocationRequested) and desk.fleet.peers.keep_out(asked)


def shape_in_queue(desk: Desk, request: RequestId, asked: AllocationRequested) -> bytes:
    """The queue shape of a request."""
    if desk.gangs.leads(request):
        return shape_of_group(desk, request)
    shape = shape_of(asked, limited=asked.namespace in desk.world.quotas)
    return alone(shape, request) if stands_alone(desk, request) else shape


def refresh_pending(desk: Desk) -> None:
    """Look again at a few waiting requests, in turn, so that reasons stay current and none is overlooked."""
    refresh_groups(desk)
    for _ in range(min(desk.rules.pending_refresh_batch, len(desk.queue))):  # each at most once
        if not desk.queue:
            return
        _look_again(desk, desk.queue.next_to_refresh())


def end_pauses(desk: Desk) -> None:
    """Time passed: requests try the GPUs again on which they failed, and wait with their equals again."""
    for request in desk.attempts.pauses_ended(desk.now):
        if request in desk.world.requests:
            desk.changed_requests[request] = None  # a request in backoff is not in the queue
        if request in desk.queue:
            asked = _asked(desk, request)
            wait(desk, request, asked, shape_in_queue(desk, request, asked))
            desk.to_try[request] = None


# -- who is tried -------------------------------------------------------------------------------------------------


def _offer(desk: Desk) -> None:
    """Continue the passes. A place that is found costs more than one that is not."""
    if desk.wakes.offers_everything_anew:
        desk.to_tell |= desk.to_try
        desk.to_try.clear()
    left = desk.rules.wake_tries
    while left > 0 and desk.wakes:
        offer = desk.wakes.first()
        part = min(left, desk.rules.wake_tries // 2)
        left -= part
        while part > 0:
            turn = offer.next_in(desk.queue)
            if turn is None:
                desk.wakes.end(offer)
                break
            served = _try_everywhere(desk, turn[2]) if offer.node is None else _try_on(desk, turn[2], offer.node)
            part -= desk.rules.tries_per_grant if served else 1
        else:
            desk.wakes.let_others_go_first(offer)
        left += max(part, 0)


def _offer_to_namespaces(desk: Desk) -> None:
    """Try requests again that wait for their namespace's limits, in turn; the rest follows with the next event."""
    for _ in range(desk.rules.new_tries):
        if not desk.over_quota.woken:
            return
        namespace, last = next(iter(desk.over_quota.woken.items()))
        turn = desk.queue.aside_after(namespace, last)
        if turn is None:
            desk.over_quota.end(namespace)
            continue
        desk.over_quota.woken[namespace] = turn
        _try_all_alike(desk, turn[2])


def _try_all_alike(desk: Desk, request: RequestId) -> None:
    """Try a waiting request; if it gets a place, the next of its group is tried after the other new ones."""
    group = desk.queue.group_of(request)
    if _try_everywhere(desk, request) and group.members:
        desk.to_try[group.members.first()[2]] = None


def _try_new(desk: Desk, request: RequestId) -> None:
    """
    Try a newly queued request; if an identical one is ahead, copy its reasons instead of searching.

    Even where a pass is under way that has not reached its group: its head is reached, and then it.
    """
    if desk.queue.is_head(request):
        _try_everywhere(desk, request)
    else:
        _look_again(desk, request)


def _look_again(desk: Desk, request: RequestId) -> None:
    """Publish why a request's group waits; search for the head of the group first, if that was long ago."""
    group = desk.queue.group_of(request)
    if desk.now - group.searched_at >= desk.rules.pending_refresh_s:
        served = _try_everywhere(desk, group.members.first()[2])
        if served and group.members:
            desk.to_try[group.members.first()[2]] = None
    if request in desk.queue and group.why is not None:
        _say_pending(desk, request, _asked(desk, request), group.why)


def _try_on(desk: Desk, request: RequestId, node: NodeName) -> bool:
    """Try one request on one node. True when it has a place now."""
    if desk.gangs.leads(request):
        offer_to_group(desk, request, node)
        return False
    asked = _asked(desk, request)
    over = forbids_asking(desk, request, asked.namespace, asked.claims)
    if over is not None:
        other = _other(desk, request, asked, node)
        if other is not None:
            _grant(desk, request, asked, other)
            return True
        _wait_for_limits(desk, request, asked, over)
        return False
    with desk.fleet.peers.without(desk.fleet.peers.booked_for(request)):
        place = _place_on(desk, request, asking_of(asked), node)
    fits = place is not None and isinstance(_within_limits(desk, request, asked, place), Place)
    if not fits and asked.alternatives:
        other = _other(desk, request, asked, node)
        if other is not None:
            _grant(desk, request, asked, other)
            return True
    if place is None:
        if exchange_promise(desk, request, asked, freed_on=node):
            return True
        _stand_apart(desk, request, asked)
        return False
    if not fits:
        return False
    _grant(desk, request, asked, place)
    return True


def _other(desk: Desk, request: RequestId, asked: AllocationRequested, node: NodeName | None = None) -> Place | None:
    """A place for one of its alternatives: on this node, or anywhere."""
    if not asked.alternatives:
        return None

    def find(asking: Asking) -> Place | None:
        if node is not None:
            return _place_on(desk, request, asking, node)
        return find_free(desk.fleet, asking, desk.attempts.avoided(request, desk.now))

    with desk.fleet.peers.without(desk.fleet.peers.booked_for(request)):
        return find_other(desk, request, asked, find)


def _place_on(desk: Desk, request: RequestId, asking: Asking, node: NodeName) -> Place | None:
    """A place on this node; on a node that a pod uses only as a last resort, only if there is no other."""
    avoid = desk.attempts.avoided(request, desk.now)
    if node in asking.host.shun:
        return find_free(desk.fleet, asking, avoid)
    return find_place_on(desk.fleet, asking, node, avoid)


def _try_everywhere(desk: Desk, request: RequestId) -> bool:
    """Try one request on the whole fleet, and publish why it waits. True when it has a place now."""
    if desk.gangs.leads(request):
        begin_trial(desk, request)
        return False
    asked = _asked(desk, request)
    group = desk.queue.group_of(request)
    over = forbids_asking(desk, request, asked.namespace, asked.claims)
    if over is not None:
        other = _other(desk, request, asked)
        if other is not None:
            _grant(desk, request, asked, other)
            return True
        if _or_evict(desk, request, asked, over) is None:
            return True
        _wait_for_limits(desk, request, asked, over)
        return False
    desk.queue.offer_again(request)
    found = _search(desk, request, asked)
    if found is None:
        return True
    if isinstance(found, Place):
        _grant(desk, request, asked, found)
        return True
    group.why, group.searched_at = found, desk.now
    _say_pending(desk, request, asked, found)
    _stand_apart(desk, request, asked)
    return False


def _stand_apart(desk: Desk, request: RequestId, asked: AllocationRequested) -> None:
    """A request newly kept out by other pods waits by itself, and its equals are tried without it."""
    group = desk.queue.group_of(request)
    if not desk.fleet.peers.keep_out(asked) or len(shape := shape_in_queue(desk, request, asked)) == len(group.shape):
        return
    if wait(desk, request, asked, shape):
        alone_now = desk.queue.group_of(request)
        alone_now.why, alone_now.searched_at = group.why, desk.now
        if group.members:
            desk.to_try[group.members.first()[2]] = None


def _search(desk: Desk, request: RequestId, asked: AllocationRequested) -> Place | NoPlace | None:
    """A free place, or why there is none; None when the request has been given one by eviction."""
    asking, avoid = asking_of(asked), desk.attempts.avoided(request, desk.now)
    with desk.fleet.peers.without(desk.fleet.peers.booked_for(request)):
        free = find_free(desk.fleet, asking, avoid)
    if free is None:
        other = _other(desk, request, asked)
        if other is not None:
            return other
        if exchange_promise(desk, request, asked) or _evict_for(desk, request, asked):
            return None
        with desk.fleet.peers.without(desk.fleet.peers.booked_for(request)):
            wait_for_pods(desk.fleet, asking, request)
            why = explain(desk.fleet, asking, avoid)
        return nor_other(asked, with_cordons(desk, with_promises(desk, why)))
    within = _within_limits(desk, request, asked, free)
    if not isinstance(within, NoPlace):
        return within
    return _other(desk, request, asked) or _or_evict(desk, request, asked, within)


def _or_evict(desk: Desk, request: RequestId, asked: AllocationRequested, over: NoPlace) -> NoPlace | None:
    """None when evictions of its own namespace make room in its limits; else the reason."""
    return None if _evict_for(desk, request, asked, at_limit=True) else nor_other(asked, over)


def _evict_for(desk: Desk, request: RequestId, asked: AllocationRequested, *, at_limit: bool = False) -> bool:
    """Book the place of less important pods, and have them evicted. False when that does not help."""
    if not asked.preempts or asked.group is not None or standing_promise(desk, request) is not None:
        return False  # members of a group are granted together or not at all; a reservation is waited for
    avoid = not_from_others(desk, request)
    found = find_victims(desk, request, asking_of(asked), asked.priority, avoid, at_limit=at_limit)
    if found is None:
        return False
    desk.queue.remove(request)
    after = tuple(victim.allocation for victim in found.victims)
    desk.grant(booking_of(desk, request, asked, found.place), after, evict=True)
    return True


def _within_limits(
    desk: Desk, request: RequestId, asked: AllocationRequested, found: Place | NoPlace
) -> Place | NoPlace:
    """The found place; or the limits of the namespace that its actual size would exceed."""
    if not isinstance(found, Place) or asked.namespace not in desk.world.quotas:
        return found
    return no_place(forbids_place(desk, request, asked.namespace, found.devices)) or found


def _wait_for_limits(desk: Desk, request: RequestId, asked: AllocationRequested, over: NoPlace) -> None:
    """Let a group wait until its namespace releases something or may have more: no place is of use to it."""
    if not may_have_other(desk, request, asked):
        desk.queue.set_aside(request, asked.namespace)
    group = desk.queue.group_of(request)
    group.why, group.searched_at = nor_other(asked, over), desk.now
    _say_pending(desk, request, asked, group.why)


def _grant(desk: Desk, request: RequestId, asked: AllocationRequested, place: Place) -> None:
    desk.queue.remove(request)
    desk.grant(booking_of(desk, request, asked, place))


def _asked(desk: Desk, request: RequestId) -> AllocationRequested:
    """A waiting request. Withdrawn ones were removed from the queue before any was tried."""
    asked = desk.world.requests[request]
    assert isinstance(asked, AllocationRequested)
    return asked


def _say_pending(desk: Desk, request: RequestId, asked: AllocationRequested, why: NoPlace) -> None:
    """Publish why it waits: at once the first time and when the first reason changes, else at a bounded rate."""
    promise = standing_promise(desk, request)
    if promise is not None and say_for_whom_it_waits(desk, request, asked, promise):
        return
    is_news = _is_news(desk, request, why)
    first = why.reasons[0].reason if why.reasons else None
    if not desk.attempts.may_say_pending(request, desk.now, reason=first, is_news=is_news):
        return
    message = with_nodes_asked_for(desk, request, why.message)
    pending = Pending(request=request, request_revision=asked.revision, message=message, reasons=why.reasons)
    desk.outbox.keep(subjects.waiting(request), pending, request=request)


def _is_news(desk: Desk, request: RequestId, why: NoPlace) -> bool:
    """Whether it has no reason yet, or another first one."""
    said = desk.outbox.kept(subjects.waiting(request)) or desk.world.waiting.get(request)
    return not isinstance(said, Pending) or said.reasons[:1] != why.reasons[:1]
