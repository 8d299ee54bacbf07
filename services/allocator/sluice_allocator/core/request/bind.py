"""Publishes `Bound` for a granted request, and `Released` when its slice is over (PROTOCOL §4)."""

from collections.abc import Iterable, Iterator

import msgspec

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream
from sluice.contracts.driver_capabilities import implied
from sluice.contracts.ids import AllocationId, OperationId, RequestId, operation_parts
from sluice.contracts.messages import Booking, SliceReady
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.quotas.overcommit import await_reading, may_bind
from sluice_allocator.core.request.await_node import await_node
from sluice_allocator.core.state.bus_cache import Entries
from sluice_allocator.core.state.conditions import Condition
from sluice_allocator.core.state.facts import doubtful_ticket, is_unshown
from sluice_allocator.core.state.grant_facts import is_move

Asked = msg.AllocationRequested | msg.RequestRejected


def bindable(grants: dict[AllocationId, msg.Grant], held: msg.Held | None) -> dict[AllocationId, msg.Grant]:
    """Of several grants the one that the source remembers, if any, since the pod is there: ready (again) or not."""
    is_there = held is not None and held.allocation in grants
    return {held.allocation: grants[held.allocation]} if held is not None and is_there else grants


def bound_of(ctx: SchedulerContext, allocation: AllocationId, grant: msg.Grant, revision: int) -> msg.Bound | None:
    """The `Bound` of this slice; None while it is not ready, or may not be bound. One that its agent reported ready
    counts although its node is not open just now: the ledger has its grant, and no other takes its place."""
    slice_ = ctx.facts.slices.get(allocation)
    if not isinstance(slice_, msg.SliceReady) or slice_.revision != grant.revision:
        return None
    if revision == 1 and not may_bind(ctx, grant):
        await_reading(ctx, grant)
        return None
    shown, there = ctx.shown.get(grant.booking.node), subjects.slice_(grant.booking.node, allocation)
    keeps_time = shown is not None and shown.time_quota
    return msg.Bound(
        request=grant.booking.request,
        request_revision=grant.booking.request_revision,
        allocation=allocation,
        node=grant.booking.node,
        revision=revision,
        ticket=slice_.ticket,
        containers=tuple(_containers(ctx, grant, slice_)),
        slice_sequence=ctx.facts.sequences[Stream.STATE].get(there.subject, 0),
        warnings=(*slice_.warnings, *advice(slice_, grant.booking, time_quota=keeps_time)),
        source=grant.booking.source,
        incarnation=ctx.facts.incarnation,
        slice_operation=ctx.facts.slice_operations.get(allocation, OperationId("")),
        waives=_others_of(ctx, grant.booking.request, allocation),
    )


def _others_of(ctx: SchedulerContext, request: RequestId, bound: AllocationId) -> tuple[AllocationId, ...]:
    """The places that a bound request does not need, until they are closed; one that it is being moved to is none."""

    def is_surplus(entry: msg.LedgerEntry) -> bool:
        return isinstance(entry, msg.Revoke) or (isinstance(entry, msg.Grant) and not is_move(entry))

    entries = ctx.facts.entries_of(request)
    return tuple(sorted(each for each, entry in entries.items() if each != bound and is_surplus(entry)))


def _containers(ctx: SchedulerContext, grant: msg.Grant, slice_: msg.SliceReady) -> Iterator[msg.ContainerDevices]:
    asked = ctx.facts.wanted(grant.booking.request)
    sets = (*reversed(asked.alternatives), asked.claims) if asked is not None else ()
    chosen = {claim.container: claim.driver_capabilities for claims in sets for claim in claims}
    for each in slice_.containers:
        profiles = [device.profile for device in grant.booking.devices if device.container == each.container]
        capabilities = chosen.get(each.container) or implied(profiles)
        yield msgspec.structs.replace(each, driver_capabilities=capabilities)


def follow_bound(ctx: SchedulerContext, request: RequestId, binding: msg.Bound, entries: Entries) -> None:
    """Update a bound request: its strings and warnings follow the slice (a reboot changes them); losing it ends it."""
    entry = entries.get(binding.allocation)
    if isinstance(entry, msg.Grant):
        again = bound_of(ctx, binding.allocation, entry, binding.revision + 1)
        if again is None or _told(again) == _told(binding):
            ctx.conditions.clear(Condition.BINDING_DIFFERS, request)
        elif _is_newer(ctx, again, binding) or ctx.conditions.is_mature(Condition.BINDING_DIFFERS, request):
            ctx.commit(subjects.binding(request), again, request)
        else:
            ctx.conditions.observe(Condition.BINDING_DIFFERS, request, due=ctx.now + ctx.rules.rebind_anyway_s)
    elif request in ctx.committing:
        return  # decided before that status was read, and not answered yet: nothing may land for what is released
    elif isinstance(entry, msg.Closed):
        if await_node(ctx, request, None) is None:
            release(ctx, request, f"slice lost: {entry.cause}")
    elif binding.allocation in ctx.facts.lost:
        held = msg.Held(node=binding.node, allocation=binding.allocation)
        if is_unshown(ctx, binding.node):
            ctx.node_waits.hold(request, binding.node, ctx.now)
        elif not doubtful_ticket(ctx, held) and await_node(ctx, request, held) is None:
            release(ctx, request, "slice lost: it is no longer in the ledger")


def bind_again(ctx: SchedulerContext, late: msg.Bound, grant: msg.Grant) -> None:
    again = bound_of(ctx, grant.booking.allocation, grant, late.revision + 1)
    if again is not None:
        ctx.commit(subjects.binding(late.request), again, late.request)


def _told(bound: msg.Bound) -> tuple[object, ...]:
    """The part of a binding that its pod reads: when this differs, the binding is published again."""
    return bound.ticket, bound.containers, bound.warnings


def _is_newer(ctx: SchedulerContext, again: msg.Bound, binding: msg.Bound) -> bool:
    """Whether a slice's status is newer than what its pod read: by the writes of one agent run, by the run for which
    its node is open, or (of an older allocator) by the sequences of STATE."""
    if not (again.slice_operation and binding.slice_operation):
        return again.slice_sequence > binding.slice_sequence
    run, number = operation_parts(again.slice_operation)
    told_by, told = operation_parts(binding.slice_operation)
    if run == told_by:
        return number > told
    head = ctx.facts.heads.get(binding.node)
    return head is not None and head.agent_run == run


def release(ctx: SchedulerContext, request: RequestId, cause: str) -> None:
    released = msg.Released(request=request, cause=cause)
    ctx.commit(subjects.binding(request), released, request, ttl_s=ctx.rules.closing_ttl_s)


def waived(
    ctx: SchedulerContext,
    request: RequestId,
    asked: Asked,
    allocations: list[AllocationId],
    cause: str,
    *,
    alone: bool = False,
) -> msg.Waived:
    """The waiver of these places, and of those waived before that are not revoked yet. Unless `alone`, the whole gang
    releases its places, also where that was published before and is not done yet."""
    before, still = ctx.facts.bindings.get(request), still_waived(ctx, request, but=allocations)
    return msg.Waived(
        request=request,
        request_revision=asked.revision,
        allocations=(*still, *sorted(allocations)),
        cause=cause,
        incarnation=ctx.facts.incarnation,
        source=asked.source,
        alone=alone and not (isinstance(before, msg.Waived) and still and not before.alone),
    )


def still_waived(
    ctx: SchedulerContext, request: RequestId, but: Iterable[AllocationId] = ()
) -> tuple[AllocationId, ...]:
    """What its last answer waives and is not closed: every answer but `Released` repeats that, or another allocator,
    which reads only this one, could bind it before its Revoke lands."""
    others, ledger = (each for each in ctx.facts.waived_by(request) if each not in but), ctx.facts.ledger
    return tuple(each for each in others if isinstance(ledger.get(each), msg.Grant | msg.Revoke))


def waived_for(
    ctx: SchedulerContext, request: RequestId, asked: Asked, causes: dict[AllocationId, str]
) -> msg.Bound | msg.Refused | msg.Waived | None:
    """The answer that also waives these places, each for its cause; None where there are none, or it does already."""
    if causes.keys() <= set(ctx.facts.waived_by(request)):
        return None
    match ctx.facts.answer_to(request):
        case msg.Bound() | msg.Refused() as answer:
            waives = (*still_waived(ctx, request, but=causes), *sorted(causes))
            return msgspec.structs.replace(answer, waives=waives)
        case _:
            return waived(ctx, request, asked, list(causes), "; ".join(dict.fromkeys(causes.values())), alone=True)


WHOLE_PERMILLE = 1000


def advice(slice_: SliceReady, booking: Booking, *, time_quota: bool) -> tuple[str, ...]:
    """Warnings per container: more devices than one process can use, a time quota that its node does not enforce
    (`time_quota`: whether it does), or a larger profile than requested. CUDA picks one MIG device per process (NVIDIA
    MIG user guide, "CUDA visible devices"), and a process connects to the one MPS daemon of its CUDA_MPS_PIPE_DIRECTORY
    (NVIDIA MPS, "Environment variables")."""
    homes: dict[str, dict[tuple[str, int], None]] = {}
    for device in booking.devices:
        if device.share is not None:
            homes.setdefault(device.container, {})[device.gpu, device.start] = None
    found = []
    for devices in slice_.containers:
        name = devices.container
        if len(homes.get(name, ())) > 1:
            found.append(
                f"container {name!r} has shares of several devices; a process can talk to one MPS daemon only, "
                "so it uses only the first"
            )
        elif devices.visible_devices.count("MIG-") > 1:
            found.append(f"container {name!r} has several MIG devices; one CUDA process uses only the first")
    if booking.instead_of:
        given = ", ".join(dict.fromkeys(device.profile for device in booking.devices if device.profile is not None))
        found.append(f"asked for {booking.instead_of} and got {given}: nothing smaller was free")
    return (*found, *(() if time_quota else _not_enforced(booking)))


def _not_enforced(booking: Booking) -> tuple[str, ...]:
    """Warnings of time quotas that nothing enforces; the shares' SMs are added up instead (docs/sharing.md), so that no
    two shares are promised the same ones."""
    quotas: dict[str, tuple[int, int]] = {}
    for device in booking.devices:
        share = device.share
        if share is not None and min(share.quota_request_permille, share.quota_limit_permille) < WHOLE_PERMILLE:
            quotas[device.container] = (share.quota_request_permille, share.quota_limit_permille)
    return tuple(
        f"QuotaNotEnforced: container {name!r} asks for {least / 10:g} % to {most / 10:g} % of the time, and nothing "
        "on its node enforces that: it may use its SMs all the time, and they are reserved for it"
        for name, (least, most) in quotas.items()
    )
