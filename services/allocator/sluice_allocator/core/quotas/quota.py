"""Checks namespaces' quotas (`sluice.quota.<namespace>`) wherever a place is found. A request that would exceed a limit
waits with a reason, at no cost. Bookings count from the grant until the agent reports the slice gone, also before the
limit was set. That is exact with one active allocator; `overcommit` covers the rest."""

from collections.abc import Callable, Iterable, Iterator

import msgspec
from msgspec.structs import replace

from sluice.contracts.ids import AllocationId, RequestId, SourceName
from sluice.contracts.messages import AllocationRequested, Amounts, Claim, DeviceGrant, QuotaSet
from sluice.contracts.messages.operators import NO_AMOUNTS
from sluice.contracts.quotas.usage import NOTHING, PERMILLE, Usage, total
from sluice.contracts.reasons import KNOWN_AS, ReasonCount, WaitReason
from sluice_allocator.core.placement import NoPlace, Place, PlaceRequest, find_free
from sluice_allocator.core.quotas.retry import QuotaContext, least_of, usage_unbooked
from sluice_allocator.core.state.grant_facts import is_promise

DEVICES, MEMORY, COMPUTE = "gpus", "memory_mib", "compute_slices"
_WORDS = {DEVICES: "devices", MEMORY: "MiB of memory", COMPUTE: "compute slices"}


class Exceeded(msgspec.Struct, frozen=True):
    """One limit that would be exceeded. All numbers are in units of `dimension` (devices, MiB, thousandths of compute
    slices). `most` is the most that would fit now. `of_one` tells the limit of one pod from that of all together."""

    namespace: str
    dimension: str
    of_one: bool
    limit: int
    used: int  # by the namespace's other requests
    asked: int
    most: int

    def sentence(self) -> str:
        used, asked, most = (_number(self.dimension, n) for n in (self.used, self.asked, self.most))
        limit = amount_text(self.dimension, self.limit)
        left = f"{most} {'is' if most == '1' else 'are'} left" if self.most else "none is left"
        if self.limit == 0:
            whose = "its limit for one pod" if self.of_one else "its quota"
            return f"namespace {self.namespace} may have no {_WORDS[self.dimension]}: {whose} is 0"
        if self.of_one:
            of_all = f", and {left} of its namespace's quota" if self.most < self.limit else ""
            return f"one pod of namespace {self.namespace} may have {limit}; this one asks for {asked}{of_all}"
        return f"namespace {self.namespace} may have {limit} and has {used}; this one asks for {asked}, and {left}"

    def sentence_of_all(self) -> str:
        """The same for several pods that start together."""
        limit, asked = amount_text(self.dimension, self.limit), _number(self.dimension, self.asked)
        return f"namespace {self.namespace} may have {limit} in all, and they take {asked} at least"

    def reason(self) -> ReasonCount:
        over = self.asked - self.limit if self.of_one else self.used + self.asked - self.limit
        return ReasonCount(
            reason=WaitReason.QUOTA_EXCEEDED,
            count=-(-over // PERMILLE) if self.dimension == COMPUTE else over,
            of=f"{_WORDS[self.dimension]} over the quota of namespace {self.namespace}",
            known_as=KNOWN_AS[WaitReason.QUOTA_EXCEEDED],
        )


def amount_text(dimension: str, number: int) -> str:
    words = _WORDS[dimension]
    one = PERMILLE if dimension == COMPUTE else 1
    return f"{_number(dimension, number)} {words.removesuffix('s') if number == one else words}"


def _number(dimension: str, number: int) -> str:
    return f"{number / PERMILLE:g}" if dimension == COMPUTE else str(number)


def usage(ctx: QuotaContext, namespace: str) -> Usage:
    """The usage of a namespace: granted, reserved, or being revoked."""
    return ctx.cluster.namespace_usage.used(namespace)


def guaranteed(ctx: QuotaContext, namespace: str) -> Amounts:
    """A namespace's guarantee. None: no guarantee in a dimension."""
    quota = ctx.facts.quotas.get(namespace)
    return quota.guaranteed if quota is not None else NO_AMOUNTS


def keeps_guarantee(ctx: QuotaContext, namespace: str, lost: Usage) -> bool:
    """Whether a namespace that loses so much still has its guarantee in the dimensions that it loses."""
    left = usage(ctx, namespace) - lost
    sure = guaranteed(ctx, namespace)
    return all(
        limit is None or taken == 0 or rest >= limit
        for (_, limit, rest), (_, _, taken) in zip(_by_dimension(sure, left), _by_dimension(sure, lost), strict=True)
    )


def forbids(
    ctx: QuotaContext, namespace: str, counts: Usage, after: Usage, *, granted: Usage | None = None
) -> Exceeded | None:
    """Whether a booking that `counts` so much may not become `after`: the first limit that this would exceed.
    `granted`: the target of an earlier change. Shrinking is never forbidden."""
    quota = ctx.facts.quotas.get(namespace)
    if quota is None:
        return None
    others = usage(ctx, namespace) - counts + usage_unbooked(ctx, namespace, None)
    before = granted if granted is not None else counts
    rows = zip(_by_dimension(NO_AMOUNTS, before), _by_dimension(NO_AMOUNTS, after), strict=True)
    grows = {name for (name, _, had), (_, _, has) in rows if has > had}
    return next((each for each in _exceeded(quota, others, after) if each.dimension in grows), None)


def forbids_place(
    ctx: QuotaContext,
    request: RequestId | None,
    namespace: str,
    devices: Iterable[DeviceGrant],
    after: Iterable[AllocationId] = (),
) -> tuple[Exceeded, ...]:
    """The limits that a namespace would exceed with these devices too; empty where none. Not counted: what goes first
    (`after`) of the same namespace, and what is reserved for `request`."""
    quota = ctx.facts.quotas.get(namespace)
    if quota is None:
        return ()
    return _exceeded(quota, _used_by_others(ctx, request, namespace, after), ctx.cluster.usage_of(devices))


def _used_by_others(
    ctx: QuotaContext, request: RequestId | None, namespace: str, after: Iterable[AllocationId] = ()
) -> Usage:
    grants = ctx.facts.grants_of(request) if request is not None else ()
    instead = {*after, *(grant.booking.allocation for grant in grants if is_promise(ctx, grant))}
    used = usage(ctx, namespace) + usage_unbooked(ctx, namespace, request)
    return used - total(_booked(ctx, namespace, instead))


def why_waits(ctx: QuotaContext, request: RequestId | None, asking: PlaceRequest) -> NoPlace | None:
    """Why a namespace's limits allow no place for these claims now; None where they do not forbid it."""
    over = forbids_asking(ctx, request, asking.namespace, asking.claims)
    if over is not None or asking.namespace not in ctx.facts.quotas:
        return over
    free = find_free(ctx.cluster, asking)
    return no_place(forbids_place(ctx, request, asking.namespace, free.devices)) if free is not None else None


def forbids_asking(
    ctx: QuotaContext, request: RequestId | None, namespace: str, claims: tuple[Claim, ...]
) -> NoPlace | None:
    """The limits that any place for these claims would certainly exceed; None where one may fit."""
    quota = ctx.facts.quotas.get(namespace)
    if quota is None:
        return None
    unknown = why_unknown(ctx, request, namespace)
    if unknown is not None:
        return unknown
    return no_place(_exceeded(quota, _used_by_others(ctx, request, namespace), least_of(ctx, claims)))


def why_unknown(ctx: QuotaContext, request: RequestId | None, namespace: str) -> NoPlace | None:
    """Until its source has synced in this incarnation of the broker, what a limited namespace has is unknown."""
    quota = ctx.facts.quotas.get(namespace)
    asked = ctx.facts.wanted(request) if request is not None else None
    if quota is None or quota.total == NO_AMOUNTS or asked is None or asked.source in ctx.facts.sources:
        return None
    message = (
        f"namespace {namespace} has limits, and its source {asked.source!r} has not reported all slices of its pods yet"
    )
    reason = WaitReason.QUOTA_EXCEEDED
    of = "sources that have not reported yet"
    return NoPlace(message, (ReasonCount(reason=reason, count=1, of=of, known_as=KNOWN_AS[reason]),))


def never_allows(ctx: QuotaContext, namespace: str, least: Usage) -> Exceeded | None:
    """The first limit that would exclude so much even if the namespace had nothing else."""
    quota = ctx.facts.quotas.get(namespace)
    found = _exceeded(replace(quota, request=NO_AMOUNTS), NOTHING, least) if quota is not None else ()
    return next(iter(found), None)


def no_place(over: tuple[Exceeded, ...]) -> NoPlace | None:
    return None if not over else NoPlace(over[0].sentence(), tuple(each.reason() for each in over))


def within_limits(
    ctx: QuotaContext, request: RequestId, asked: AllocationRequested, found: Place | NoPlace
) -> Place | NoPlace:
    if not isinstance(found, Place) or asked.namespace not in ctx.facts.quotas:
        return found
    return no_place(forbids_place(ctx, request, asked.namespace, found.devices)) or found


def beyond(limits: Amounts, used: Usage) -> str:
    """The first dimension in which a usage exceeds these limits; empty where none."""
    rows = _by_dimension(limits, used)
    return next((_WORDS[name] for name, limit, has in rows if limit is not None and has > limit), "")


def _exceeded(quota: QuotaSet, others: Usage, asked: Usage) -> tuple[Exceeded, ...]:
    found = []
    whole, one = quota.total, quota.request
    rows = zip(_by_dimension(whole, others), _by_dimension(one, asked), strict=True)
    for (name, in_all, used), (_, in_one, asks) in rows:
        left = [limit for limit in (in_one, in_all - used if in_all is not None else None) if limit is not None]
        most = max(0, min(left, default=0))
        if in_one is not None and asks > in_one:
            found.append(Exceeded(quota.namespace, name, True, in_one, used, asks, most))
        elif in_all is not None and asks > 0 and used + asks > in_all:
            found.append(Exceeded(quota.namespace, name, False, in_all, used, asks, most))
    return tuple(found)


def _by_dimension(limits: Amounts, usage_: Usage) -> Iterator[tuple[str, int | None, int]]:
    slices = limits.compute_slices
    yield DEVICES, limits.gpus, usage_.gpus
    yield MEMORY, limits.memory_mib, usage_.memory_mib
    yield COMPUTE, slices * PERMILLE if slices is not None else None, usage_.compute_permille


def _booked(ctx: QuotaContext, namespace: str, allocations: Iterable[AllocationId]) -> Iterator[Usage]:
    for allocation in allocations:
        booking = ctx.cluster.booking(allocation)
        if booking is not None and booking.namespace == namespace:
            yield ctx.cluster.usage_of(booking.devices)


def limits_changed(ctx: QuotaContext, namespace: str) -> None:
    """A namespace's limits changed or are gone: its waiting requests are looked at again."""
    _try_again(ctx, lambda asked: asked.namespace == namespace)
    ctx.over_quota.wake(namespace)


def source_has_spoken(ctx: QuotaContext, source: SourceName) -> None:
    """A source published all of its requests: look again at those that waited for that."""
    was_complete = ctx.over_quota.complete.pop(source, False) is not False
    if source not in ctx.facts.sources:
        return
    ctx.over_quota.complete[source] = None
    if was_complete or not ctx.facts.quotas:
        return
    _try_again(ctx, lambda asked: asked.source == source and asked.namespace in ctx.facts.quotas)
    for namespace in ctx.facts.quotas:
        ctx.over_quota.wake(namespace)


def _try_again(ctx: QuotaContext, concerns: Callable[[AllocationRequested], bool]) -> None:
    """Not only requests set aside: others had a place that takes too much, and gangs are tried as one."""
    found = ((request, ctx.facts.wanted(request)) for request in ctx.queue.in_turn())
    waiting = {request: None for request, asked in found if asked is not None and concerns(asked)}
    ctx.changed_requests |= waiting
    ctx.to_try |= waiting


def look_at_given_back(ctx: QuotaContext) -> None:
    """Namespaces have less than before: their requests that wait for that are tried again."""
    for namespace in ctx.cluster.namespace_usage.given_back:
        if ctx.queue.aside_after(namespace, None) is not None:
            ctx.over_quota.wake(namespace)
    ctx.cluster.namespace_usage.given_back.clear()
