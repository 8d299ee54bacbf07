"""Preemption: a request that finds no place gets the place of pods of lower priority. It needs two opt-ins: the
allocator's rule `preemption`, and each victim's pod (`preemptible`). Only lower priorities ever go, and no victim that
its own namespace's guarantee covers. The place is booked in the same step (a Grant with `after` and `evict`), so no
other request gets it while the victims leave; `ordering` orders their evictions and lifts the orders, as the ledger's
grants require. docs/preemption.md has the whole story."""

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
    """A place that a request of this priority can have by evicting others; None when that does not help. Serves real
    requests and simulated ones (`request` is None for those). A namespace that is `at_limit` can only have the places
    of its own."""
    if not ctx.rules.preemption:
        return None

    leaving: dict[str, Usage] = {}

    def allows(devices: Sequence[msg.DeviceGrant], victims: Sequence[Victim]) -> bool:
        if not _keeps_guarantees(ctx, asking.namespace, victims, leaving):
            return False
        after = [victim.allocation for victim in victims]
        return not forbids_place(ctx, request, asking.namespace, devices, after)

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
    """What is booked of a namespace and not certain to stay."""
    usage = ctx.cluster.usage_of
    leaving = ((ctx.cluster.booking(each), keeps) for each, keeps in ctx.sparing.leaving(namespace).items())
    return total(usage(booking.devices) - usage(keeps) for booking, keeps in leaving if booking is not None)


def _lost_with(ctx: PreemptionContext, namespace: str, allocations: Iterable[AllocationId]) -> Usage:
    """What a namespace loses besides when these of it go."""
    leaving = ctx.sparing.leaving(namespace)
    bookings = ((ctx.cluster.booking(each), leaving.get(each)) for each in allocations)
    sure = (keeps if keeps is not None else booking.devices for booking, keeps in bookings if booking is not None)
    return total(ctx.cluster.usage_of(devices) for devices in sure)


def note_victim(ctx: PreemptionContext, allocation: AllocationId, entry: msg.LedgerEntry | None) -> None:
    """An allocation changed: look at it again if that can matter to an eviction. That is so if its pod is evictable, or
    may have been; if it is moving, was, waits for others, or has shares that are being resized, and its namespace may
    have a guarantee: then it does not count for that."""
    concerned = False
    if isinstance(entry, msg.Grant):
        asked = ctx.facts.requests.get(entry.booking.request)
        concerned = isinstance(asked, msg.AllocationRequested) and asked.leeway.preemptible
        concerned = concerned or bool(entry.after or entry.counts) or allocation in ctx.resizing
    elif isinstance(entry, msg.Revoke):
        concerned = entry.booking.namespace in ctx.facts.quotas
    if (
        concerned
        or allocation in ctx.sparing.leaving_of
        or allocation in ctx.cluster.index.victims.known
        or allocation in ctx.facts.promises
    ):
        ctx.sparing.look[allocation] = None


def look_at_victim(ctx: PreemptionContext, allocation: AllocationId) -> None:
    """An allocation changed: update whether its pod may be evicted."""
    entry = ctx.facts.ledger.get(allocation)
    booking = ctx.cluster.booking(allocation)
    if booking is None:
        ctx.sparing.settle(allocation)
        return
    leaves = isinstance(entry, msg.Revoke) or (isinstance(entry, msg.Grant) and is_being_revoked(ctx, entry))
    leaves = leaves or allocation in ctx.sparing.taken or _is_evicted(ctx, allocation)
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
    if resizing is None or not same_places(devices, resizing.booking.devices):
        return devices
    return min_sizes(devices, resizing.booking.devices)


def _may_go_at(ctx: PreemptionContext, allocation: AllocationId, entry: msg.LedgerEntry | None) -> int | None:
    """The priority of an allocation whose pod may be evicted; None when it may not."""
    if not ctx.rules.preemption or not isinstance(entry, msg.Grant) or is_gone(ctx, allocation):
        return None
    if is_being_revoked(ctx, entry):
        return None
    request = entry.booking.request
    asked = ctx.facts.requests.get(request)
    if not isinstance(asked, msg.AllocationRequested) or not asked.leeway.preemptible:
        return None
    binding = ctx.facts.answer_to(request)
    if isinstance(binding, (msg.Refused, msg.Released)) or (
        isinstance(binding, msg.Bound) and binding.allocation != allocation
    ):
        return None
    if is_promise(ctx, entry) or ctx.facts.promises.get(allocation) or allocation in ctx.sparing.taken:
        return None
    return None if ctx.sparing.is_spared(request, ctx.now) else ctx.priority_of(asked.namespace, asked.priority)


def _is_evicted(ctx: PreemptionContext, allocation: AllocationId) -> bool:
    promises = (ctx.facts.ledger[promise] for promise in ctx.facts.promises.get(allocation, ()))
    return any(isinstance(promise, msg.Grant) and promise.evict for promise in promises)


def note_revoked(ctx: PreemptionContext, grant: msg.Grant) -> None:
    """This process is about to revoke a grant: decisions until the ledger has that count without it."""
    allocation = grant.booking.allocation
    namespace = grant.booking.namespace
    if namespace in ctx.facts.quotas or allocation in ctx.cluster.index.victims.known:
        look_at_victim(ctx, allocation)
    note_loss(ctx, namespace)


def note_loss(ctx: PreemptionContext, namespace: str) -> None:
    """A namespace is about to have less: unsent orders to evict from it are decided again."""
    if ctx.sparing.taken and guaranteed(ctx, namespace) != NO_AMOUNTS:
        ctx.take_back_grants(_evicting_from(ctx, namespace))


def _evicting_from(ctx: PreemptionContext, namespace: str) -> dict[AllocationId, None]:
    """Grants on their way that evict from a namespace: its guarantee was met when they were decided."""
    taken = ((ctx.cluster.booking(each), promise) for each, promise in ctx.sparing.taken.items())
    return {promise: None for booking, promise in taken if booking is not None and booking.namespace == namespace}


def look_at_victims_of(ctx: PreemptionContext, request: RequestId) -> None:
    """A request changed: look at what is booked for it."""
    if ctx.rules.preemption:
        for allocation in ctx.facts.allocations_of.get(request, ()):
            note_victim(ctx, allocation, ctx.facts.ledger[allocation])


def look_at_guarantee(ctx: PreemptionContext, namespace: str) -> None:
    """A namespace's guarantee or ceiling may have changed: look at its evictable pods and at those that are going."""
    ctx.sparing.look |= {victim.allocation: None for victim in ctx.cluster.index.victims.of(namespace)}
    ctx.sparing.look |= dict.fromkeys(
        ctx.cluster.namespace_usage.opened(namespace)
    )  # what is being revoked is among these


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
