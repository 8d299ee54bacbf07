"""
Preemption: a request that finds no place gets the place of pods of lower priority.

It needs two opt-ins: the allocator's rule `preemption`, and each victim's pod (`preemptible`). Only lower priorities
ever go, and no victim that its own namespace's guarantee covers. The place is booked in the same step (a Grant with
`after` and `evict`), so no other request gets it while the victims leave; `ordering` orders their evictions and lifts
the orders, as the ledger's grants require. docs/preemption.md has the whole story.
"""

from collections.abc import Iterable, Sequence

from sluice.contracts.ids import AllocationId, RequestId
from sluice.contracts.messages import (
    AllocationRequested,
    Bound,
    DeviceGrant,
    Grant,
    LedgerEntry,
    Refused,
    Released,
    Revoke,
)
from sluice.contracts.messages.operators import NO_AMOUNTS
from sluice.contracts.quotas.usage import Usage, total
from sluice.contracts.resize import min_sizes, same_places
from sluice_allocator.core.desk import Desk
from sluice_allocator.core.limits.quotas import forbids_place, guaranteed, keeps_guarantee
from sluice_allocator.core.placement import Asking, Avoid, Displacing, Victim, find_displacing, find_displacing_own
from sluice_allocator.core.waiting.promised import (
    is_being_revoked,
    is_gone,
    is_promise,
    look_at_those_who_wait_for,
)


def find_victims(
    desk: Desk,
    request: RequestId | None,
    asking: Asking,
    priority: int,
    avoid: Avoid = frozenset(),
    *,
    at_limit: bool = False,
) -> Displacing | None:
    """
    A place that a request of this priority can have by evicting others; None when that does not help.

    Serves real requests and simulated ones (`request` is None for those). A namespace that is `at_limit` can only
    have the places of its own.
    """
    if not desk.rules.preemption:
        return None

    leaving: dict[str, Usage] = {}

    def allows(devices: Sequence[DeviceGrant], victims: Sequence[Victim]) -> bool:
        if not _keeps_guarantees(desk, asking.namespace, victims, leaving):
            return False
        after = [victim.allocation for victim in victims]
        return not forbids_place(desk, request, asking.namespace, devices, after)

    find = find_displacing_own if at_limit else find_displacing
    return find(desk.fleet, asking, priority, allows, avoid)


def _keeps_guarantees(desk: Desk, namespace: str, victims: Sequence[Victim], leaving: dict[str, Usage]) -> bool:
    """
    Whether other namespaces keep their guarantees, also when everything that is leaving has left.

    A grant that the ledger does not have yet does not count: it may be refused, and the victims would be gone; nor
    does a place that others still have. Shares that are being resized count their certain size. `leaving` is the sum
    of all that, by namespace: added up once for a search, which changes nothing.
    """
    for other in {victim.namespace: None for victim in victims if victim.guarded and victim.namespace != namespace}:
        if other not in leaving:
            leaving[other] = _leaving(desk, other)
        going = [victim.allocation for victim in victims if victim.namespace == other]
        if not keeps_guarantee(desk, other, leaving[other] + _lost_with(desk, other, going)):
            return False
    return True


def _leaving(desk: Desk, namespace: str) -> Usage:
    """What is booked of a namespace and not certain to stay."""
    usage = desk.fleet.usage_of
    leaving = ((desk.fleet.booking(each), keeps) for each, keeps in desk.sparing.leaving(namespace).items())
    return total(usage(booking.devices) - usage(keeps) for booking, keeps in leaving if booking is not None)


def _lost_with(desk: Desk, namespace: str, allocations: Iterable[AllocationId]) -> Usage:
    """What a namespace loses besides when these of it go."""
    leaving = desk.sparing.leaving(namespace)
    bookings = ((desk.fleet.booking(each), leaving.get(each)) for each in allocations)
    sure = (keeps if keeps is not None else booking.devices for booking, keeps in bookings if booking is not None)
    return total(desk.fleet.usage_of(devices) for devices in sure)


# -- who may go ---------------------------------------------------------------------------------------------------


def note_victim(desk: Desk, allocation: AllocationId, entry: LedgerEntry | None) -> None:
    """
    An allocation changed: look at it again if that can matter to an eviction.

    That is so if its pod is evictable, or may have been; if it is moving, was, waits for others, or has shares that
    are being resized, and its namespace may have a guarantee: then it does not count for that.
    """
    concerned = False
    if isinstance(entry, Grant):
        asked = desk.world.requests.get(entry.booking.request)
        concerned = isinstance(asked, AllocationRequested) and asked.leeway.preemptible
        concerned = concerned or bool(entry.after or entry.counts) or allocation in desk.adjustments.on_their_way
    elif isinstance(entry, Revoke):
        concerned = entry.booking.namespace in desk.world.quotas
    if (
        concerned
        or allocation in desk.sparing.leaving_of
        or allocation in desk.fleet.stock.victims.known
        or allocation in desk.world.promises
    ):
        desk.sparing.look[allocation] = None


def look_at_victim(desk: Desk, allocation: AllocationId) -> None:
    """An allocation changed: update whether its pod may be evicted."""
    entry = desk.world.ledger.get(allocation)
    booking = desk.fleet.booking(allocation)
    if booking is None:
        desk.sparing.is_gone(allocation)
        return
    leaves = isinstance(entry, Revoke) or (isinstance(entry, Grant) and is_being_revoked(desk, entry))
    leaves = leaves or allocation in desk.sparing.taken or _is_evicted(desk, allocation)
    if leaves or _may_never_be_had(desk, allocation, entry):
        desk.sparing.leaves(booking.namespace, allocation)
    elif isinstance(entry, Grant) and (sure := _sure_of(desk, entry)) != booking.devices:
        desk.sparing.leaves(booking.namespace, allocation, keeps=sure)
    else:
        desk.sparing.is_gone(allocation)
    priority = _may_go_at(desk, allocation, entry)
    if priority is None:
        desk.fleet.spare(allocation)
    else:
        guarded = guaranteed(desk, booking.namespace) != NO_AMOUNTS
        desk.fleet.offer_victim(allocation, priority, guarded=guarded)


def _may_never_be_had(desk: Desk, allocation: AllocationId, entry: LedgerEntry | None) -> bool:
    """Whether this process's decision is not in the ledger yet, or others still have the reserved place."""
    if entry is None:
        return allocation in desk.assumed
    return isinstance(entry, Grant) and is_promise(desk, entry)


def _sure_of(desk: Desk, grant: Grant) -> tuple[DeviceGrant, ...]:
    """What a pod certainly has: of shares that are being resized the smaller size."""
    on_its_way = desk.adjustments.on_their_way.get(grant.booking.allocation)
    devices = grant.booking.devices
    if on_its_way is None or not same_places(devices, on_its_way.adjusted.booking.devices):
        return devices
    return min_sizes(devices, on_its_way.adjusted.booking.devices)


def _may_go_at(desk: Desk, allocation: AllocationId, entry: LedgerEntry | None) -> int | None:
    """The priority of an allocation whose pod may be evicted; None when it may not."""
    if not desk.rules.preemption or not isinstance(entry, Grant) or is_gone(desk, allocation):
        return None
    if is_being_revoked(desk, entry):
        return None
    request = entry.booking.request
    asked = desk.world.requests.get(request)
    if not isinstance(asked, AllocationRequested) or not asked.leeway.preemptible:
        return None
    binding = desk.world.answer_to(request)
    if isinstance(binding, (Refused, Released)) or (isinstance(binding, Bound) and binding.allocation != allocation):
        return None
    if is_promise(desk, entry) or desk.world.promises.get(allocation) or allocation in desk.sparing.taken:
        return None
    return None if desk.sparing.is_spared(request, desk.now) else desk.priority_of(asked.namespace, asked.priority)


def _is_evicted(desk: Desk, allocation: AllocationId) -> bool:
    """Whether a valid grant evicts its pod."""
    promises = (desk.world.ledger[promise] for promise in desk.world.promises.get(allocation, ()))
    return any(isinstance(promise, Grant) and promise.evict for promise in promises)


def note_revoked(desk: Desk, grant: Grant) -> None:
    """This process is about to revoke a grant: decisions until the ledger has that count without it."""
    allocation = grant.booking.allocation
    namespace = grant.booking.namespace
    if namespace in desk.world.quotas or allocation in desk.fleet.stock.victims.known:
        look_at_victim(desk, allocation)
    has_less(desk, namespace)


def has_less(desk: Desk, namespace: str) -> None:
    """A namespace is about to have less: unsent orders to evict from it are decided again."""
    if desk.sparing.taken and guaranteed(desk, namespace) != NO_AMOUNTS:
        desk.take_back_grants(_evicting_from(desk, namespace))


def _evicting_from(desk: Desk, namespace: str) -> dict[AllocationId, None]:
    """Grants on their way that evict from a namespace: its guarantee was met when they were decided."""
    taken = ((desk.fleet.booking(each), promise) for each, promise in desk.sparing.taken.items())
    return {promise: None for booking, promise in taken if booking is not None and booking.namespace == namespace}


def look_at_victims_of(desk: Desk, request: RequestId) -> None:
    """A request changed: look at what is booked for it."""
    if desk.rules.preemption:
        for allocation in desk.world.allocations_of.get(request, ()):
            note_victim(desk, allocation, desk.world.ledger[allocation])


def look_at_guarantee(desk: Desk, namespace: str) -> None:
    """A namespace's guarantee or ceiling may have changed: look at its evictable pods and at those that are going."""
    desk.sparing.look |= {victim.allocation: None for victim in desk.fleet.stock.victims.of(namespace)}
    desk.sparing.look |= dict.fromkeys(desk.fleet.accounts.opened(namespace))  # what is being revoked is among these


def look_at_evictions(desk: Desk) -> None:
    """Time passed: some evictions have taken too long, and some pods were exempt for long enough."""
    for request in desk.sparing.due(desk.now):
        for allocation in desk.world.allocations_of.get(request, ()):
            desk.sparing.look[allocation] = None
        look_at_those_who_wait_for(desk, request)
