"""Aging: the first request of a shape that waited for `promise_after_s` is booked a place that others still use, to be
had when those are gone (a Grant with `after`), or small requests would take every piece that is freed. It keeps its
turn and takes any earlier place; nothing is evicted. `placement.reserve` chooses the place; docs/queue.md has the
bound."""

from sluice.contracts.delayed_queue import backoff_s
from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.contracts.messages import AllocationRequested, Grant, Revoke
from sluice_allocator.core.placement import find_reservation, place_request_of, without_shunned_nodes
from sluice_allocator.core.queue.pending_queue import PendingShape
from sluice_allocator.core.quotas.quota import forbids_place
from sluice_allocator.core.reservations.aging import ReservationContext
from sluice_allocator.core.reservations.reservation import not_from_others
from sluice_allocator.core.sorted_keys import QueueKey
from sluice_allocator.core.state.grant_facts import (
    is_being_revoked,
    is_exchange,
    is_gone,
    is_in_quarantine,
    is_promise,
    standing_promise,
)


def promise_places(ctx: ReservationContext) -> None:
    """Time passed: reserve places for the first of those that waited long enough, in the order of turns."""
    if ctx.rules.promises_percent == 0:
        return
    # reservations ended: of each model the first that they kept out has the next one
    for model in ctx.promised.freed:
        claim = _first_claim(ctx, model)
        if claim is not None:
            ctx.aging.later.at(claim[1], ctx.now)
    ctx.promised.freed.clear()
    _see_who_is_due(ctx)
    for _ in range(ctx.rules.promise_tries):
        pending = _next_shape(ctx)
        if pending is None:
            return
        if _try_to_promise(ctx, pending):
            _look_at(ctx, pending.shape)  # the next of its shape may have waited long enough, too
        else:
            pending.promise_failures += 1
            pause_s = backoff_s(pending.promise_failures, ctx.rules.promise_retry_s, ctx.rules.promise_retry_max_s)
            ctx.aging.later.at(pending.shape, ctx.now + pause_s)


def _first_claim(ctx: ReservationContext, model: str) -> tuple[QueueKey, bytes] | None:
    """The earliest turn among those that still wait at that turn."""
    while (claim := ctx.aging.first_claim(model)) is not None:
        turn, shape = claim
        pending = ctx.queue.shapes.get(shape)
        if pending is not None and pending.members.first() == turn:
            return claim
        ctx.aging.no_claim(shape)
    return None


def _see_who_is_due(ctx: ReservationContext) -> None:
    for shape in ctx.aging.later.due(ctx.now, ctx.rules.settle_batch):
        _look_at(ctx, shape)


def _look_at(ctx: ReservationContext, shape: bytes) -> None:
    pending = ctx.queue.shapes.get(shape)
    if pending is None:
        return
    turn = pending.members.first()
    due_at = ctx.backoff.since_when(turn[2], ctx.now) + ctx.rules.promise_after_s
    if due_at <= ctx.now:
        ctx.aging.mark_due(shape, turn)
    else:
        ctx.aging.later.at(shape, due_at)


def _next_shape(ctx: ReservationContext) -> PendingShape | None:
    """The shape whose turn it is; those with another first by now are looked at again."""
    for _ in range(ctx.rules.settle_batch):
        due = ctx.aging.next_due()
        if due is None:
            return None
        turn, shape = due
        pending = ctx.queue.shapes.get(shape)
        if pending is not None and pending.members.first() == turn:
            return pending
        _look_at(ctx, shape)
    return None


def _try_to_promise(ctx: ReservationContext, pending: PendingShape) -> bool:
    """Reserve a place for the first of a shape. False when it has none to wait for, or has one already."""
    turn = pending.members.first()
    request = turn[2]
    asked = ctx.facts.wanted(request)
    if asked is None or pending.aside is not None or asked.group is not None:
        ctx.aging.no_claim(pending.shape)
        return False  # it waits for its namespace's limits, or for its gang: no place would help it
    if standing_promise(ctx, request) is not None:
        ctx.aging.no_claim(pending.shape)  # another allocator's, or one by which movable pods make room for it
        return False
    limits = _Limits(ctx, turn)
    promise = find_reservation(
        ctx.cluster,
        place_request_of(asked),
        not_from_others(ctx, request),
        shown=ctx.shown,
        wait_for=limits.wait_for,
        open_to=limits.open_to,
    )
    if promise is None and limits.kept_out:
        ctx.aging.claim(pending.shape, turn, frozenset(limits.kept_out))
    else:
        ctx.aging.no_claim(pending.shape)
    if promise is None or forbids_place(ctx, None, asked.namespace, promise.place.devices, promise.after):
        return False
    ctx.queue.remove(request)
    ctx.grant(ctx.booking_of(request, asked, promise.place), promise.after)
    return True


class _Limits:
    """Which tenants one try may wait for, and which models it may reserve; remembers temporary obstacles."""

    def __init__(self, ctx: ReservationContext, turn: QueueKey) -> None:
        self._ctx, self._turn = ctx, turn
        self._open: dict[str, bool] = {}
        self.kept_out: dict[str, None] = {}  # models on which others' reservations were in its way

    def wait_for(self, allocation: AllocationId) -> int | None:
        """The cost of waiting for an allocation; None if it may not be waited for. Not for one that is not in the
        ledger yet, nor for one that waits for others itself: reservations would chain, and the wait have no bound. Both
        will pass. Nor for one in quarantine, which may not pass."""
        ctx = self._ctx
        entry = ctx.facts.ledger.get(allocation)
        if is_in_quarantine(ctx, allocation):
            return None
        if isinstance(entry, Revoke):
            return 0
        if isinstance(entry, Grant) and not is_promise(ctx, entry) and not is_gone(ctx, allocation):
            return 1
        booking = ctx.cluster.booking(allocation)
        if booking is not None:
            self.kept_out |= dict.fromkeys(ctx.cluster.models_of(booking))
        return None

    def open_to(self, model: str) -> bool:
        """Whether a GPU of a model may be reserved now: the limit allows one more, and no other claim is earlier."""
        known = self._open.get(model)
        if known is None:
            claim = _first_claim(self._ctx, model)
            is_later = claim is not None and claim[0] < self._turn
            known = self._open[model] = self._has_room(model) and not is_later
        if not known:
            self.kept_out[model] = None
        return known

    def _has_room(self, model: str) -> bool:
        """One is always allowed, however few there are."""
        ctx = self._ctx
        most = max(1, ctx.cluster.gpus_of(model) * ctx.rules.promises_percent // 100)
        return ctx.promised.of_model[model] < most


def exchange_promise(
    ctx: ReservationContext, request: RequestId, asked: AllocationRequested, freed_on: NodeName | None = None
) -> bool:
    """Book a place that is free now together with a part of what a request's reservation covers; False where there is
    none. Otherwise the pod would wait for a tenant that need not go: no other search counts reserved parts as free. The
    new grant comes after the reservation (`after`), which so ends without being given up first. `freed_on`: only if the
    reservation is on this node, since nothing changed elsewhere."""
    promise = standing_promise(ctx, request)
    if promise is None or freed_on not in {None, promise.booking.node} or not _is_all_it_has(ctx, promise):
        return False
    asking = without_shunned_nodes(place_request_of(asked))
    place = ctx.place_in(promise.booking, request, asking, own=ctx.cluster.peers.booked_for(request))
    after = (promise.booking.allocation,)
    if place is None or forbids_place(ctx, request, asked.namespace, place.devices, after):
        return False
    ctx.queue.remove(request)
    ctx.grant(ctx.booking_of(request, asked, place), after)
    return True


def _is_all_it_has(ctx: ReservationContext, promise: Grant) -> bool:
    if is_exchange(promise) or is_being_revoked(ctx, promise):
        return False
    others = (each.booking.allocation for each in ctx.facts.grants_of(promise.booking.request))
    return all(each == promise.booking.allocation or is_gone(ctx, each) for each in others)
