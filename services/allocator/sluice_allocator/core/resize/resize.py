"""Resizes the shares of a bound pod in place (docs/adjust.md). One function computes the outcome of a change
(`adjust`): a dry run shows it, the real one books it, as a Grant with the next revision, which the agent carries out
like any order. From the decision until the agent reports it done, a share counts as the larger of both sizes; so no
other share gets what is still used, or what is about to be. Places never move, and the request keeps its size: the
resized one is the allocation's, and ends with it."""

from collections.abc import Iterator

from msgspec.structs import replace

from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId
from sluice.contracts.kube.quantities import MEMORY_MIB_MAX
from sluice.contracts.messages import AllocationRequested, Booking, Bound, DeviceGrant, Grant, Share
from sluice.contracts.reasons import WaitReason, shorten
from sluice.contracts.resize import is_resize_done, max_sizes, min_sizes
from sluice_allocator.core.placement.nodes.shared_device import SharedDevice
from sluice_allocator.core.preemption.candidates import note_loss
from sluice_allocator.core.quotas.quota import forbids, usage_of, why_unknown
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
    OnItsWay,
    Outcome,
    ResizeContext,
)
from sluice_allocator.core.state.context import Resizing
from sluice_allocator.core.state.facts import is_open

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
    wrong = _why_wrong(change)
    if wrong is not None:
        return wrong
    grant = _grant_of(ctx, change)
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
        message = f"{ASKED_MAX} adjustments are being booked already; retry"
        state.answers.append((number, AdjustRefused(AdjustReason.NOT_NOW, message)))
        return
    _decide(ctx, Asked(number, change))


def ask_again(ctx: ResizeContext) -> None:
    """Decide again, on current facts, where another write was first; or give up."""
    again, ctx.adjustments.again = ctx.adjustments.again, []
    for asked in again:
        if asked.tries >= TRIES_MAX:
            message = f"the ledger of its node changed meanwhile, {asked.tries} times; retry"
            ctx.adjustments.answers.append((asked.number, AdjustRefused(AdjustReason.NOT_NOW, message)))
        else:
            _decide(ctx, asked)


def landed(ctx: ResizeContext, grant: Grant) -> None:
    """A Grant is in the ledger: if it is a resize, answer its caller."""
    on_its_way = ctx.adjustments.on_their_way.get(grant.booking.allocation)
    if on_its_way is not None and on_its_way.adjusted.revision == grant.revision:
        del ctx.adjustments.on_their_way[grant.booking.allocation], ctx.resizing[grant.booking.allocation]
        ctx.adjustments.answers.append((on_its_way.asked.number, on_its_way.adjusted))


def about_adjusting(ctx: ResizeContext, allocation: AllocationId) -> str:
    """What a user should know about a bound pod whose shares are being resized; empty otherwise."""
    grant = ctx.facts.ledger.get(allocation)
    slice_ = ctx.facts.slices.get(allocation)
    if not isinstance(grant, Grant) or grant.revision == 1 or is_resize_done(grant, slice_):
        return ""
    if grant.counts:
        return "; its shares are shrinking, and count at the old size until processes that use more have ended"
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
    world, request = ctx.facts, change.request
    asked, binding = world.requests.get(request), world.bindings.get(request)
    if asked is None and binding is None and request not in world.allocations_of:
        return AdjustRefused(AdjustReason.NOT_FOUND, f"there is no request {shorten(request)!r}")
    if not isinstance(asked, AllocationRequested) or not isinstance(binding, Bound):
        return AdjustRefused(AdjustReason.NOT_BOUND, "it has no slice now, so there is nothing to change")
    grant = world.ledger.get(binding.allocation)
    if not isinstance(grant, Grant):
        return AdjustRefused(AdjustReason.NOT_BOUND, f"its slice on {binding.node} is being revoked, or was lost")
    node = grant.booking.node
    if ctx.outbox.busy(subjects.ledger(node, binding.allocation)):
        return AdjustRefused(AdjustReason.NOT_NOW, f"another order for its slice on {node} is being written; retry")
    if not is_open(ctx, node) or grant.incarnation != world.incarnation:
        removed = world.removed.get(node)
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
    if not change.container:
        if len(sharing) == 1:
            return next(iter(sharing))
        message = f"several containers have shares, so one must be named: {', '.join(sharing)}"
        return AdjustRefused(AdjustReason.INVALID_VALUE, message, "container")
    if change.container in sharing:
        return change.container
    if change.container in known:
        message = f"the devices of container {change.container!r} are not shared: only shares can be changed"
        return AdjustRefused(AdjustReason.NOT_A_SHARE, message, "container")
    message = f"it has no devices for a container {shorten(change.container)!r}; it has some for {', '.join(known)}"
    return AdjustRefused(AdjustReason.INVALID_VALUE, message, "container")


def _with_values(
    devices: tuple[DeviceGrant, ...], container: str, values: dict[Field, int]
) -> tuple[DeviceGrant, ...] | AdjustRefused:
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
        changed = _share_with(share, values)
        if changed.quota_request_permille > changed.quota_limit_permille:
            message = (
                f"a quota request of {changed.quota_request_permille} thousandths cannot exceed the quota limit of "
                f"{changed.quota_limit_permille}"
            )
            named = "quota_request_permille" if "quota_request_permille" in values else "quota_limit_permille"
            return AdjustRefused(AdjustReason.INVALID_VALUE, message, named)
        found.append(replace(device, share=changed))
    return tuple(found)


def _share_with(share: Share, values: dict[Field, int]) -> Share:
    changed = share
    for name, value in values.items():
        changed = replace(changed, **{name: value})
    return changed


def _field_change(
    name: Field, before: tuple[DeviceGrant, ...], after: tuple[DeviceGrant, ...], container: str
) -> FieldChange:
    was, becomes = _values_of(name, before, container), _values_of(name, after, container)
    effect: Effect = "unchanged"
    if was != becomes:
        effect = "next process start" if name in _OF_PROCESSES else "now"
    return FieldChange(name, max(was), max(becomes), effect)


def _values_of(name: Field, devices: tuple[DeviceGrant, ...], container: str) -> list[int]:
    shares = (device.share for device in devices if device.container == container)
    return [getattr(share, name) for share in shares if share is not None]


def _why_not(
    ctx: ResizeContext, booking: Booking, now: tuple[DeviceGrant, ...], becomes: tuple[DeviceGrant, ...]
) -> AdjustRefused | None:
    """Why shares that count `now` may not become others; None when they may. Shrinking always may."""
    after = max_sizes(now, becomes)
    short = _short_of(ctx, booking, becomes, after)
    if short is not None:
        return short
    counts, will_count = usage_of(ctx, now), usage_of(ctx, after)
    granted, will_be_granted = usage_of(ctx, booking.devices), usage_of(ctx, becomes)
    grows = will_count != counts or usage_of(ctx, max_sizes(booking.devices, becomes)) != granted
    unknown = why_unknown(ctx, booking.request, booking.namespace) if grows else None
    if unknown is not None:
        return AdjustRefused(AdjustReason.NOT_NOW, f"{unknown.message}; retry")
    exceeded = forbids(ctx, booking.namespace, counts, will_count)
    if exceeded is None:  # it may count more than it was last granted, and a limit be below all of that by now
        exceeded = forbids(ctx, booking.namespace, counts, will_be_granted, granted=granted)
    return AdjustRefused(AdjustReason.QUOTA_EXCEEDED, exceeded.sentence()) if exceeded is not None else None


def _short_of(
    ctx: ResizeContext, booking: Booking, becomes: tuple[DeviceGrant, ...], after: tuple[DeviceGrant, ...]
) -> AdjustRefused | None:
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
    ctx: ResizeContext, booking: Booking, now: tuple[DeviceGrant, ...], becomes: tuple[DeviceGrant, ...], container: str
) -> Iterator[tuple[Field, int]]:
    """Per field that grows, the most that it could be now, with the others as booked. By bisection: more of a field
    never fits where less does not. A few dozen looks at one home."""
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
        message = "this allocator is on standby or still loading; retry"
        ctx.adjustments.answers.append((asked.number, AdjustRefused(AdjustReason.NOT_NOW, message)))
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
    grant = Grant(
        revision=outcome.revision,
        incarnation=ctx.facts.incarnation,
        booking=outcome.booking,
        after=before.after,  # the former tenant may be gone, and not reported yet
        evict=before.evict,
        counts=counts,
    )
    ctx.adjustments.on_their_way[allocation] = OnItsWay(asked, outcome)
    ctx.resizing[allocation] = Resizing(outcome.booking, outcome.counted)
    ctx.cluster.book(outcome.counted)
    ctx.sparing.look[allocation] = None
    ctx.commit(subjects.ledger(outcome.node, allocation), grant, outcome.booking.request)
    if min_sizes(before.booking.devices, grant.booking.devices) != before.booking.devices:
        note_loss(ctx, grant.booking.namespace)
