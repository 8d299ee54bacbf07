"""
Serving the queue: who is tried when, and what the others are told.

A new request is tried at once, on the whole fleet. One that waits fits nowhere, except where something changed since:
so whatever is freed is offered, node by node, to the head of each group in the order of turns; behind a head that got
a place the next of its group becomes head, at its own later turn.

The rule of fairness: what was freed is offered to earlier turns before later ones, and every group is tried at least
once on it. One event is worth a bounded number of tries: the node that was freed last first, then the passes that are
under way, in turn; the rest goes on with the next event. Two may so overtake others: a new request of another shape,
which is tried at once; and, where something is freed on a node whose pass is under way, whoever that pass comes to
(every other try is its, else the last turns would never be reached).

It must not decide whether somebody should be asking: `requests` does.
"""

from sluice.contracts import subjects
from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.messages import AllocationRequested, Booking, Pending
from sluice_allocator.core.desk import Desk
from sluice_allocator.core.placement import NoPlace, Place, asking_of, find_place, find_place_on
from sluice_allocator.core.queue import alone, shape_of


def serve(desk: Desk) -> None:
    """Offer what was freed to those who wait, then try who is new: as many as one event is worth."""
    if not desk.queue:
        desk.wakes.end_all()
    elif desk.wakes:
        _offer(desk)
    for _ in range(min(desk.rules.new_tries, len(desk.to_try))):
        request, _ = desk.to_try.popitem(last=False)
        if request in desk.queue:
            _try_new(desk, request)


def try_at_once(desk: Desk, request: RequestId, asked: AllocationRequested, shape: bytes) -> None:
    """
    Try a new request before it comes to wait: most never wait, and are not put into the queue and out again.

    Only while nothing else is to be looked at, nothing freed is being offered and nobody waits for the same.
    """
    found = find_place(desk.fleet, asking_of(asked), frozenset())
    if isinstance(found, Place):
        _grant(desk, request, asked, found)
        return
    sequence = desk.world.sequences.get(subjects.request(request).subject, 0)
    desk.queue.add(request, shape, -asked.priority, sequence)
    group = desk.queue.group_of(request)
    group.why, group.searched_at = found, desk.now
    _say_pending(desk, request, asked, found)


def refresh_pending(desk: Desk) -> None:
    """Look again at a few who wait, in turn, so that reasons do not grow old and none is overlooked."""
    for _ in range(desk.rules.pending_refresh_batch):
        if not desk.queue:
            return
        _look_again(desk, desk.queue.next_to_refresh())


def end_pauses(desk: Desk) -> None:
    """Time has passed: requests try the GPUs again on which they failed, and wait with their equals again."""
    for request in desk.attempts.pauses_ended(desk.now):
        if request in desk.queue:
            asked = _asked(desk, request)
            shape = shape_of(asked)
            if desk.attempts.avoided(request, desk.now):
                shape = alone(shape, request)
            desk.queue.add(request, shape, -asked.priority, 0)
            desk.to_try[request] = None


# -- who is tried -------------------------------------------------------------------------------------------------


def _offer(desk: Desk) -> None:
    """Go on with the passes. A place that is found costs more than one that is not."""
    if desk.wakes.offers_everything_anew:
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


def _try_new(desk: Desk, request: RequestId) -> None:
    """
    One who has just come to wait. Behind others of its shape it has no chance: it is only told what they know.

    Even where a pass is under way that has not reached its group; for its head is reached, and then it.
    """
    if desk.queue.is_head(request):
        _try_everywhere(desk, request)
    else:
        _look_again(desk, request)


def _look_again(desk: Desk, request: RequestId) -> None:
    """Tell one request why its group waits; search for the head of the group first, where that was long ago."""
    group = desk.queue.group_of(request)
    if desk.now - group.searched_at >= desk.rules.pending_refresh_s:
        served = _try_everywhere(desk, group.members.first()[2])
        if served and group.members:
            desk.to_try[group.members.first()[2]] = None
    if request in desk.queue and group.why is not None:
        _say_pending(desk, request, _asked(desk, request), group.why)


def _try_on(desk: Desk, request: RequestId, node: NodeName) -> bool:
    """Try one request on one node. True when it has a place now."""
    asked = _asked(desk, request)
    place = find_place_on(desk.fleet, asking_of(asked), node, desk.attempts.avoided(request, desk.now))
    if place is None:
        return False
    _grant(desk, request, asked, place)
    return True


def _try_everywhere(desk: Desk, request: RequestId) -> bool:
    """Try one request on the whole fleet, and tell why it waits. True when it has a place now."""
    asked = _asked(desk, request)
    group = desk.queue.group_of(request)
    found = find_place(desk.fleet, asking_of(asked), desk.attempts.avoided(request, desk.now))
    if isinstance(found, Place):
        _grant(desk, request, asked, found)
        return True
    group.why, group.searched_at = found, desk.now
    _say_pending(desk, request, asked, found)
    return False


def _grant(desk: Desk, request: RequestId, asked: AllocationRequested, place: Place) -> None:
    desk.queue.remove(request)
    desk.grant(
        Booking(
            allocation=desk.new_allocation(request),
            request=request,
            request_revision=asked.revision,
            source=asked.source,
            owner=asked.owner,
            namespace=asked.namespace,
            name=asked.name,
            node=place.node,
            devices=place.devices,
            room=asked.host.room,
        )
    )


def _asked(desk: Desk, request: RequestId) -> AllocationRequested:
    """What one who waits asks for. Whoever asks no longer was taken out of the queue before anybody was tried."""
    asked = desk.world.requests[request]
    assert isinstance(asked, AllocationRequested)
    return asked


def _say_pending(desk: Desk, request: RequestId, asked: AllocationRequested, why: NoPlace) -> None:
    """Tell why it waits: at once the first time and when the first reason changes, else at a bounded rate."""
    address = subjects.waiting(request)
    said = desk.outbox.kept(address) or desk.world.waiting.get(request)
    anew = not isinstance(said, Pending) or said.reasons[:1] != why.reasons[:1]
    if not desk.attempts.may_say_pending(request, desk.now, anew=anew):
        return
    pending = Pending(request=request, request_revision=asked.revision, message=why.message, reasons=why.reasons)
    desk.outbox.keep(address, pending, request=request)
