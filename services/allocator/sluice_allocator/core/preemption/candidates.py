"""Preemption (docs/preemption.md): a request without a place gets that of pods of lower priority, if the rule
`preemption` and each victim (`preemptible`) allow it and no guarantee covers the victim. The place is booked at once (a
Grant with `after` and `evict`); `eviction_orders` follows from that."""

from collections.abc import Iterable, Sequence

from sluice.contracts import messages as msg
from sluice.contracts.ids import AllocationId, RequestId
from sluice.contracts.messages.operators import NO_AMOUNTS
from sluice.contracts.quotas.usage import Usage, total
from sluice.contracts.resize import min_sizes, same_places
from sluice_allocator.core.placement import (
    Avoid,
    PlaceRequest,
    PreemptionPlan,
    Victim,
    find_own_preemption,
    find_preemption,
)
from sluice_allocator.core.preemption.eviction_backoff import PreemptionContext
from sluice_allocator.core.quotas.quota import forbids_place, guaranteed, keeps_guarantee
from sluice_allocator.core.state.bus_cache import request_of
from sluice_allocator.core.state.grant_facts import is_being_revoked, is_gone, is_promise


def find_victims(
    ctx: PreemptionContext,
    request: RequestId | None,
    asking: PlaceRequest,
    priority: int,
    avoid: Avoid = frozenset(),
    *,
    at_limit: bool = False,
) -> PreemptionPlan | None:
    """A place that a request of this priority (None: a simulated one) can have by evicting others; None when that does
    not help. A namespace that is `at_limit` can only have the places of its own."""
    if not ctx.rules.preemption:
        return None

    leaving: dict[str, Usage] = {}

    def allows(devices: Sequence[msg.DeviceGrant], victims: Sequence[Victim]) -> bool:
        after = [victim.allocation for victim in victims]
        keeps_all = _keeps_guarantees(ctx, asking.namespace, victims, leaving)
        return keeps_all and not forbids_place(ctx, request, asking.namespace, devices, after)

    find = find_own_preemption if at_limit else find_preemption
    return find(ctx.cluster, asking, priority, allows, avoid)


def _keeps_guarantees(
    ctx: PreemptionContext, namespace: str, victims: Sequence[Victim], leaving: dict[str, Usage]
) -> bool:
    """Whether other namespaces keep their guarantees, also when everything that is leaving has left. A grant that the
    ledger does not have yet does not count: it may be refused, and the victims would be gone; nor does a place that
    others still have. Shares that are being resized count their certain size. `leaving` is the sum of all that, by
    namespace: added up once for a search, which changes nothing."""
    for other in {victim.namespace: None for victim in victims if victim.guarded and victim.namespace != namespace}:
        if other not in leaving:
            leaving[other] = _leaving(ctx, other)
        going = [victim.allocation for victim in victims if victim.namespace == other]
        if not keeps_guarantee(ctx, other, leaving[other] + _lost_with(ctx, other, going)):
            return False
    return True


def _leaving(ctx: PreemptionContext, namespace: str) -> Usage:
    usage = ctx.cluster.usage_of
    leaving = ((ctx.cluster.booking(each), keeps) for each, keeps in ctx.sparing.leaving(namespace).items())
    return total(usage(booking.devices) - usage(keeps) for booking, keeps in leaving if booking is not None)


def _lost_with(ctx: PreemptionContext, namespace: str, allocations: Iterable[AllocationId]) -> Usage:
    leaving = ctx.sparing.leaving(namespace)
    bookings = ((ctx.cluster.booking(each), leaving.get(each)) for each in allocations)
    sure = (keeps if keeps is not None else booking.devices for booking, keeps in bookings if booking is not None)
    return total(ctx.cluster.usage_of(devices) for devices in sure)


def note_victim(ctx: PreemptionContext, allocation: AllocationId, entry: msg.LedgerEntry | None) -> None:
    """An allocation changed: look at it again if its pod is evictable or was; or if it is moving, waits for others or
    is resized, and its namespace may have a guarantee, for which it then does not count."""
    concerned = allocation in ctx.sparing.leaving_of or allocation in ctx.cluster.index.victims.known
    concerned |= allocation in ctx.facts.promises
    if isinstance(entry, msg.Grant):
        asked = ctx.facts.wanted(entry.booking.request)
        concerned |= bool(entry.after or entry.counts) or allocation in ctx.resizing
        concerned |= asked is not None and asked.leeway.preemptible
    elif isinstance(entry, msg.Revoke):
        concerned |= entry.booking.namespace in ctx.facts.quotas
    if concerned:
        ctx.sparing.look[allocation] = None


def look_at_victim(ctx: PreemptionContext, allocation: AllocationId) -> None:
    """An allocation changed: update whether its pod may be evicted."""
    entry = ctx.facts.ledger.get(allocation)
    booking = ctx.cluster.booking(allocation)
    if booking is None:
        ctx.sparing.settle(allocation)
        return
    leaves = isinstance(entry, msg.Revoke) or (isinstance(entry, msg.Grant) and is_being_revoked(ctx, entry))
    leaves = leaves or allocation in ctx.sparing.taken
    leaves = leaves or any(each.evict for each in ctx.facts.grants(ctx.facts.promises.get(allocation, ())))
    if leaves or _may_never_be_had(ctx, allocation, entry):
        ctx.sparing.leaves(booking.namespace, allocation)
    elif isinstance(entry, msg.Grant) and (sure := _sure_of(ctx, entry)) != booking.devices:
        ctx.sparing.leaves(booking.namespace, allocation, keeps=sure)
    else:
        ctx.sparing.settle(allocation)
    priority = _may_go_at(ctx, allocation, entry)
    if priority is None:
        ctx.cluster.spare(allocation)
    else:
        guarded = guaranteed(ctx, booking.namespace) != NO_AMOUNTS
        ctx.cluster.offer_victim(allocation, priority, guarded=guarded)


def _may_never_be_had(ctx: PreemptionContext, allocation: AllocationId, entry: msg.LedgerEntry | None) -> bool:
    if entry is None:
        return allocation in ctx.assumed
    return isinstance(entry, msg.Grant) and is_promise(ctx, entry)


def _sure_of(ctx: PreemptionContext, grant: msg.Grant) -> tuple[msg.DeviceGrant, ...]:
    """What a pod certainly has: of shares that are being resized the smaller size."""
    resizing, devices = ctx.resizing.get(grant.booking.allocation), grant.booking.devices
    is_same = resizing is not None and same_places(devices, resizing.booking.devices)
    return min_sizes(devices, resizing.booking.devices) if resizing is not None and is_same else devices


def _may_go_at(ctx: PreemptionContext, allocation: AllocationId, entry: msg.LedgerEntry | None) -> int | None:
    """The priority of an allocation whose pod may be evicted; None when it may not."""
    if not ctx.rules.preemption or not isinstance(entry, msg.Grant) or is_gone(ctx, allocation):
        return None
    if is_being_revoked(ctx, entry):
        return None
    request = entry.booking.request
    asked, binding = ctx.facts.wanted(request), ctx.facts.answer_to(request)
    if asked is None or not asked.leeway.preemptible or isinstance(binding, (msg.Refused, msg.Released)):
        return None
    if ctx.facts.bound_to(request) not in {None, allocation}:
        return None
    if is_promise(ctx, entry) or ctx.facts.promises.get(allocation) or allocation in ctx.sparing.taken:
        return None
    return None if ctx.sparing.is_spared(request, ctx.now) else ctx.priority_of(asked.namespace, asked.priority)


def note_revoked(ctx: PreemptionContext, grant: msg.Grant) -> None:
    """This process is about to revoke a grant: decisions until the ledger has that count without it."""
    allocation, namespace = grant.booking.allocation, grant.booking.namespace
    if namespace in ctx.facts.quotas or allocation in ctx.cluster.index.victims.known:
        look_at_victim(ctx, allocation)
    note_loss(ctx, namespace)


def note_loss(ctx: PreemptionContext, namespace: str) -> None:
    """A namespace is about to have less: unsent orders to evict from it are decided again."""
    if ctx.sparing.taken and guaranteed(ctx, namespace) != NO_AMOUNTS:
        taken = ((ctx.cluster.booking(each), promise) for each, promise in ctx.sparing.taken.items())
        ctx.take_back_grants({promise for booking, promise in taken if booking and booking.namespace == namespace})


def look_at_victims_of(ctx: PreemptionContext, request: RequestId) -> None:
    if ctx.rules.preemption:
        for allocation, entry in ctx.facts.entries_of(request).items():
            note_victim(ctx, allocation, entry)


def look_at_guarantee(ctx: PreemptionContext, namespace: str) -> None:
    """A namespace's guarantee or ceiling may have changed: look at its evictable pods and at those that are going."""
    ctx.sparing.look |= {victim.allocation: None for victim in ctx.cluster.index.victims.of(namespace)}
    ctx.sparing.look |= dict.fromkeys(ctx.cluster.namespace_usage.opened(namespace))  # with what is being revoked


def look_at_evictions(ctx: PreemptionContext) -> None:
    """Time passed: some evictions have taken too long, and some pods were exempt for long enough."""
    for request in ctx.sparing.due(ctx.now):
        for allocation in ctx.facts.allocations_of.get(request, ()):
            ctx.sparing.look[allocation] = None
        look_at_those_who_wait_for(ctx, request)


def look_at_those_who_wait_for(ctx: PreemptionContext, request: RequestId) -> None:
    """A pod's eviction changed, or time passed: look again at the requests that wait for its places."""
    for allocation in ctx.facts.allocations_of.get(request, ()):
        for promise in ctx.facts.promises.get(allocation, ()):
            ctx.changed_requests[request_of(ctx.facts.ledger[promise])] = None
