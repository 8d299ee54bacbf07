"""
Serving the queue: who is tried when, and what the others are told.

A new request is tried at once. When something was freed, the head of each shape is tried in the order of turns: if
it does not fit, nobody behind it in its shape does.
"""

from sluice.contracts import subjects
from sluice.contracts.ids import RequestId
from sluice.contracts.messages import AllocationRequested, Booking, Pending
from sluice_allocator.core.desk import Attempt, Desk
from sluice_allocator.core.placing import Avoid, NoPlace, Place, find_place


def try_waiting(desk: Desk, now: float) -> None:
    """Give places to waiting requests: to new ones, and to all when something was freed."""
    new, desk.to_try = desk.to_try, {}
    if desk.freed:
        desk.freed = False
        _try_all(desk, now)
    for request in new:
        if request in desk.queue:
            _try(desk, request, now)


def _try_all(desk: Desk, now: float) -> None:
    """Heads in the order of their turns; behind a head that got a place comes the next of its shape."""
    heads = list(desk.queue.heads())
    while heads:
        turn, shape = heads.pop(0)
        following = desk.queue.next_of(shape, turn)
        served_or_special = _try(desk, turn[2], now)
        if served_or_special and following is not None:
            heads.append((following, shape))
            heads.sort()


def _try(desk: Desk, request: RequestId, now: float) -> bool:
    """Try one request. True when whoever is behind it in its shape may still fit."""
    asked = desk.world.requests.get(request)
    if not isinstance(asked, AllocationRequested):
        desk.queue.remove(request)
        return True
    avoid = _avoided(desk, request)
    found = find_place(desk.fleet, asked.claims, avoid)
    if isinstance(found, Place):
        desk.queue.remove(request)
        desk.grant(_booking(desk, request, asked, found))
        return True
    _say_pending(desk, request, asked, found, now)
    return bool(avoid)


def _booking(desk: Desk, request: RequestId, asked: AllocationRequested, place: Place) -> Booking:
    return Booking(
        allocation=desk.new_allocation(request),
        request=request,
        request_revision=asked.revision,
        source=asked.source,
        owner=asked.owner,
        namespace=asked.namespace,
        name=asked.name,
        node=place.node,
        devices=place.devices,
    )


def _avoided(desk: Desk, request: RequestId) -> Avoid:
    """GPUs where this request failed a short while ago."""
    attempt = desk.attempts.get(request)
    if attempt is None or not attempt.avoid:
        return frozenset()
    attempt.avoid = {uuid: until for uuid, until in attempt.avoid.items() if until > desk.now}
    return frozenset(attempt.avoid)


def _say_pending(desk: Desk, request: RequestId, asked: AllocationRequested, why: NoPlace, now: float) -> None:
    """Tell why it waits: at once the first time and when the first reason changes, else at a bounded rate."""
    address = subjects.waiting(request)
    said = desk.outbox.kept(address) or desk.world.waiting.get(request)
    attempt = desk.attempts.setdefault(request, Attempt())
    same = isinstance(said, Pending) and said.reasons[:1] == why.reasons[:1]
    if same and now - attempt.pending_said_at < desk.rules.pending_refresh_s:
        return
    attempt.pending_said_at = now
    pending = Pending(request=request, request_revision=asked.revision, message=why.message, reasons=why.reasons)
    desk.outbox.keep(address, pending, request=request)


def refresh_pending(desk: Desk, now: float) -> None:
    """Look again at a few waiting requests, in turn, so that reasons do not grow old and none is overlooked."""
    for _ in range(min(desk.rules.pending_refresh_batch, len(desk.queue))):
        request = desk.queue.next_to_refresh()
        desk.to_try[request] = None
    try_waiting(desk, now)
