"""Resizes the shares of a bound pod in place (docs/adjust.md). `adjust` computes the outcome: a dry run shows it, the
real one books it, as a Grant with the next revision. Until the agent reports it done, a share counts as the larger of
both sizes. Places never move; the request keeps its size, and the allocation's ends with it."""

from collections.abc import Iterator

from msgspec.structs import replace

from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId
from sluice.contracts.kube.quantities import MEMORY_MIB_MAX
from sluice.contracts.messages import Booking, Bound, DeviceGrant, Grant
from sluice.contracts.reasons import WaitReason, shorten
from sluice.contracts.resize import is_resize_done, max_sizes, min_sizes
from sluice_allocator.core.placement.nodes.shared_device import SharedDevice
from sluice_allocator.core.preemption.candidates import note_loss
from sluice_allocator.core.quotas.quota import forbids, why_unknown
from sluice_allocator.core.resize.pending import (
    ASKED_MAX,
    FIELDS,
    TRIES_MAX,
    Adjusted,
    AdjustReason,
    AdjustRefused,
    Asked,
    Change,
    Effect,
    Field,
    FieldChange,
    Outcome,
    ResizeContext,
)
from sluice_allocator.core.state.context import Resizing
from sluice_allocator.core.state.facts import is_open

Devices = tuple[DeviceGrant, ...]
WORDS: dict[Field, str] = {
    "memory_mib": "memory (MiB)",
    "sm_partition": "SM partition (percent)",
    "quota_request_permille": "quota request (thousandths)",
    "quota_limit_permille": "quota limit (thousandths)",
}
_HIGHEST: dict[Field, int] = {
    "memory_mib": MEMORY_MIB_MAX,
    "sm_partition": 100,
    "quota_request_permille": 1000,
    "quota_limit_permille": 1000,
}
"""For memory only a sanity bound; what fits is decided by the home."""
_OF_PROCESSES: tuple[Field, ...] = ("memory_mib", "sm_partition")
"""What an MPS server gives a client when it connects, and never changes for it (NVIDIA MPS documentation,
"nvidia-cuda-mps-control", `set_active_thread_percentage` and `set_device_pinned_mem_limit`)."""
_MEANS = {
    WaitReason.GPU_INSUFFICIENT_MEMORY: "its device has less memory left beside the other pods",
    WaitReason.GPU_INSUFFICIENT_SMS: "its device has fewer SMs left beside the other pods",
    WaitReason.GPU_TIME_USED_UP: "the pods that share time with it leave less time",
    WaitReason.GPU_OTHER_TRUST_DOMAIN: "its device is booked for two trust domains at once, which resolves itself",
}


def adjust(ctx: ResizeContext, change: Change) -> Outcome:
    grant = _why_wrong(change) or _grant_of(ctx, change)
    if isinstance(grant, AdjustRefused):
        return grant
    container = _container_of(grant.booking, change)
    if isinstance(container, AdjustRefused):
        return container
    becomes = _with_values(grant.booking.devices, container, change.values)
    if isinstance(becomes, AdjustRefused):
        return becomes
    fields = tuple(_field_change(each, grant.booking.devices, becomes, container) for each in FIELDS)
    if becomes == grant.booking.devices:
        under_way = not is_resize_done(grant, ctx.facts.slices.get(grant.booking.allocation))
        message = f"container {container!r} already has exactly that"
        return AdjustRefused(AdjustReason.UNCHANGED, message, under_way=under_way)
    now = ctx.counted(grant).devices
    refused = _why_not(ctx, grant.booking, now, becomes)
    if refused is not None and refused.reason is AdjustReason.NOT_NOW:
        return refused
    if refused is not None:
        return _with_most(refused, tuple(_most(ctx, grant.booking, now, becomes, container)))
    booking = replace(grant.booking, devices=becomes)
    counted = replace(booking, devices=max_sizes(now, becomes))
    return Adjusted(booking, counted, container, grant.revision + 1, fields)


def ask(ctx: ResizeContext, number: int, change: Change) -> None:
    """Change the shares, or refuse; the answer comes in `Adjustments.answers`, when the ledger has it."""
    state = ctx.adjustments
    if len(state.on_their_way) + len(state.again) >= ASKED_MAX:
        state.refuse(number, f"{ASKED_MAX} adjustments are being booked already")
    else:
        _decide(ctx, Asked(number, change))


def ask_again(ctx: ResizeContext) -> None:
    """Decide again, on current facts, where another write was first; or give up."""
    again, ctx.adjustments.again = ctx.adjustments.again, []
    for asked in again:
        if asked.tries >= TRIES_MAX:
            ctx.adjustments.refuse(asked.number, f"the ledger of its node changed meanwhile, {asked.tries} times")
        else:
            _decide(ctx, asked)


def landed(ctx: ResizeContext, grant: Grant) -> None:
    """A Grant is in the ledger: if it is a resize, answer its caller."""
    allocation = grant.booking.allocation
    asked, adjusted = ctx.adjustments.on_their_way.get(allocation, (None, None))
    if asked is not None and adjusted is not None and adjusted.revision == grant.revision:
        del ctx.adjustments.on_their_way[allocation], ctx.resizing[allocation]
        ctx.adjustments.answers.append((asked.number, adjusted))


def about_adjusting(ctx: ResizeContext, allocation: AllocationId) -> str:
    """What a user should know about a bound pod whose shares are being resized; empty otherwise."""
    grant = ctx.facts.ledger.get(allocation)
    slice_ = ctx.facts.slices.get(allocation)
    if not isinstance(grant, Grant) or grant.revision == 1 or is_resize_done(grant, slice_):
        return ""
    if grant.counts:
        return "; its shares are shrinking, and count at the old size until containers that may use more have ended"
    return "; its shares are being changed by its node agent"


def _why_wrong(change: Change) -> AdjustRefused | None:
    if not change.values:
        return AdjustRefused(AdjustReason.INVALID_VALUE, "no field is named, so there is nothing to change")
    for name, value in change.values.items():
        if not 1 <= value <= _HIGHEST[name]:
            message = f"{WORDS[name]} = {value}: from 1 to {_HIGHEST[name]}"
            return AdjustRefused(AdjustReason.INVALID_VALUE, message, name)
    return None


def _grant_of(ctx: ResizeContext, change: Change) -> Grant | AdjustRefused:
    facts, request = ctx.facts, change.request
    binding = facts.bindings.get(request)
    if binding is None and request not in facts.requests and request not in facts.allocations_of:
        return AdjustRefused(AdjustReason.NOT_FOUND, f"there is no request {shorten(request)!r}")
    if facts.wanted(request) is None or not isinstance(binding, Bound):
        return AdjustRefused(AdjustReason.NOT_BOUND, "it has no slice now, so there is nothing to change")
    grant = facts.granted(binding.allocation)
    if grant is None:
        return AdjustRefused(AdjustReason.NOT_BOUND, f"its slice on {binding.node} is being revoked, or was lost")
    node = grant.booking.node
    if ctx.outbox.busy(subjects.ledger(node, binding.allocation)):
        return AdjustRefused(AdjustReason.NOT_NOW, f"another order for its slice on {node} is being written; retry")
    if not is_open(ctx, node) or grant.incarnation != facts.incarnation:
        removed = facts.removed.get(node)
        message = f"{node} is not open yet, so its slices are not all known; retry"
        if removed is not None:
            message = f"{node} was removed: {removed.cause}; retry when its node agent has reported"
        return AdjustRefused(AdjustReason.NOT_NOW, message)
    return grant


def _container_of(booking: Booking, change: Change) -> str | AdjustRefused:
    """The container to resize: the named one, or the only one with shares."""
    sharing = dict.fromkeys(device.container for device in booking.devices if device.share is not None)
    known = dict.fromkeys(device.container for device in booking.devices)
    if not sharing:
        return AdjustRefused(AdjustReason.NOT_A_SHARE, "its devices are not shared: only shares can be changed")
    named = change.container or (next(iter(sharing)) if len(sharing) == 1 else "")
    if named in sharing:
        return named
    if named in known:
        message = f"the devices of container {named!r} are not shared: only shares can be changed"
        return AdjustRefused(AdjustReason.NOT_A_SHARE, message, "container")
    message = f"it has no devices for a container {shorten(named)!r}; it has some for {', '.join(known)}"
    if not named:
        message = f"several containers have shares, so one must be named: {', '.join(sharing)}"
    return AdjustRefused(AdjustReason.INVALID_VALUE, message, "container")


def _with_values(devices: Devices, container: str, values: dict[Field, int]) -> Devices | AdjustRefused:
    found = []
    for device in devices:
        share = device.share
        if device.container != container or share is None:
            found.append(device)
            continue
        strange = next((name for name in values if share.mode == "mps" and name != "memory_mib"), None)
        if strange is not None:
            message = f"a share in mode mps has only memory, and no {WORDS[strange]}"
            return AdjustRefused(AdjustReason.INVALID_VALUE, message, strange)
        changed = replace(share, **values)
        if changed.quota_request_permille > changed.quota_limit_permille:
            least, most = changed.quota_request_permille, changed.quota_limit_permille
            message = f"a quota request of {least} thousandths cannot exceed the quota limit of {most}"
            named = "quota_request_permille" if "quota_request_permille" in values else "quota_limit_permille"
            return AdjustRefused(AdjustReason.INVALID_VALUE, message, named)
        found.append(replace(device, share=changed))
    return tuple(found)


def _field_change(name: Field, before: Devices, after: Devices, container: str) -> FieldChange:
    was, becomes = _values_of(name, before, container), _values_of(name, after, container)
    effect: Effect = "unchanged"
    if was != becomes:
        effect = "next process start" if name in _OF_PROCESSES else "now"
    return FieldChange(name, max(was), max(becomes), effect)


def _values_of(name: Field, devices: Devices, container: str) -> list[int]:
    shares = (device.share for device in devices if device.container == container)
    return [getattr(share, name) for share in shares if share is not None]


def _why_not(ctx: ResizeContext, booking: Booking, now: Devices, becomes: Devices) -> AdjustRefused | None:
    """Why shares that count `now` may not become others; None when they may. Shrinking always may."""
    after = max_sizes(now, becomes)
    short = _short_of(ctx, booking, becomes, after)
    if short is not None:
        return short
    usage_of = ctx.cluster.usage_of
    counts, will_count = usage_of(now), usage_of(after)
    granted, will_be_granted = usage_of(booking.devices), usage_of(becomes)
    grows = will_count != counts or usage_of(max_sizes(booking.devices, becomes)) != granted
    unknown = why_unknown(ctx, booking.request, booking.namespace) if grows else None
    if unknown is not None:
        return AdjustRefused(AdjustReason.NOT_NOW, f"{unknown.message}; retry")
    exceeded = forbids(ctx, booking.namespace, counts, will_count)
    if exceeded is None:  # it may count more than it was last granted, and a limit be below all of that by now
        exceeded = forbids(ctx, booking.namespace, counts, will_be_granted, granted=granted)
    return AdjustRefused(AdjustReason.QUOTA_EXCEEDED, exceeded.sentence()) if exceeded is not None else None


def _short_of(ctx: ResizeContext, booking: Booking, becomes: Devices, after: Devices) -> AdjustRefused | None:
    """What the homes lack for shares that grow, and then count as in `after`. Several of one home are tried together. A
    share grows against what is booked, also where it counts more than that: another allocator may have admitted others
    into the larger size, having read that it shrank. Not in a home that is closed: a process may be there whose use
    journal and ledger have forgotten."""
    trials: dict[tuple[object, ...], SharedDevice] = {}
    for number, (booked, wanted, counted) in enumerate(zip(booking.devices, becomes, after, strict=True)):
        if booked.share is None or counted.share is None or max_sizes((booked,), (wanted,)) == (booked,):
            continue
        gpu = ctx.cluster.gpus.get(booked.gpu)
        place = (booked.profile, booked.start, booked.size)
        at_home = gpu.homes.get(place) if gpu is not None else None
        if at_home is None or not at_home.gpu.knows(booked.profile):
            how = "not shown" if gpu is None else "not read"
            message = f"{booked.gpu} is {how} by its node, so what is left of it is unknown; retry"
            return AdjustRefused(AdjustReason.NOT_NOW, message)
        if not at_home.gpu.stands(place):
            message = f"its device on {booked.gpu} is unavailable, or used by an unknown process; retry"
            return AdjustRefused(AdjustReason.NOT_NOW, message)
        key = (booking.allocation, number)
        trial = trials.setdefault((booked.gpu, *place), at_home.home.copy())
        trial.add(key, booked.share)
        reason = trial.why_not_become(key, counted.share)
        if reason is not None:
            why = _MEANS.get(reason, str(reason))
            return AdjustRefused(AdjustReason.CAPACITY_EXCEEDED, f"{why} on {booked.gpu} ({reason})")
        trial.add(key, counted.share)
    return None


def _most(
    ctx: ResizeContext, booking: Booking, now: Devices, becomes: Devices, container: str
) -> Iterator[tuple[Field, int]]:
    """Per field that grows, the most it could be now, the others as booked, by bisection (some dozen looks)."""
    for name in FIELDS:
        fits = min(_values_of(name, booking.devices, container))
        too_much = max(_values_of(name, becomes, container))
        if fits >= too_much or (name == "sm_partition" and fits == 0):
            continue  # a share without a bound of its SMs has them all
        too_much += 1
        while too_much - fits > 1:
            middle = (fits + too_much) // 2
            tried = _with_values(booking.devices, container, {name: middle})
            if isinstance(tried, AdjustRefused) or _why_not(ctx, booking, now, tried) is not None:
                too_much = middle
            else:
                fits = middle
        yield name, fits


def _with_most(refused: AdjustRefused, most: tuple[tuple[Field, int], ...]) -> AdjustRefused:
    """The same refusal with what would fit, in its sentence too."""
    fitting = ", ".join(f"{WORDS[name]} {value}" for name, value in most)
    words = f"{refused.message}; the most that fits now, with the rest unchanged: {fitting}"
    return AdjustRefused(refused.reason, words, most=most)


def _decide(ctx: ResizeContext, asked: Asked) -> None:
    if ctx.outbox.paused or not ctx.facts.settled:
        ctx.adjustments.refuse(asked.number, "this allocator is on standby or still loading")
        return
    outcome = adjust(ctx, asked.change)
    if isinstance(outcome, AdjustRefused):
        ctx.adjustments.answers.append((asked.number, outcome))
        return
    asked.tries += 1
    allocation = outcome.booking.allocation
    before = ctx.facts.ledger[allocation]
    assert isinstance(before, Grant), "only a standing grant is adjusted"
    counts = outcome.counted.devices if outcome.counted.devices != outcome.booking.devices else ()
    # it still comes after the former tenant, which may be gone and not reported yet
    fresh = replace(before, revision=outcome.revision, incarnation=ctx.facts.incarnation, adopted=False)
    grant = replace(fresh, booking=outcome.booking, counts=counts)
    ctx.adjustments.on_their_way[allocation] = (asked, outcome)
    ctx.resizing[allocation] = Resizing(outcome.booking, outcome.counted)
    ctx.cluster.book(outcome.counted)
    ctx.sparing.look[allocation] = None
    ctx.commit(subjects.ledger(outcome.booking.node, allocation), grant, outcome.booking.request)
    if min_sizes(before.booking.devices, grant.booking.devices) != before.booking.devices:
        note_loss(ctx, grant.booking.namespace)
