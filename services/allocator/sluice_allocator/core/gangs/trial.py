"""Finds places for a whole gang: booked in this process one after the other, and ordered when all are found, else
undone. A trial takes several events; one runs at a time. It begins at its gang's turn, or when something was freed
that the member without a place could use; after a failure it pauses in proportion to its cost."""

from collections import deque

from sluice.contracts.bus import subjects
from sluice.contracts.ids import NodeName, RequestId
from sluice.contracts.messages import AllocationRequested, DeviceGrant
from sluice.contracts.quotas.usage import total
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice_allocator.core.gangs.gang import Gang, GangContext, Party, StuckMember, Trial
from sluice_allocator.core.gangs.reconcile import say_why_gang_waits
from sluice_allocator.core.placement import (
    NoPlace,
    Place,
    PlaceRequest,
    alternative_place_requests,
    find_free,
    find_place,
    find_place_on,
    place_request_of,
    too_few_gpus,
)
from sluice_allocator.core.queue.pending_queue import shape_of
from sluice_allocator.core.quotas.alternatives import find_other, nor_other
from sluice_allocator.core.quotas.quota import forbids_asking, never_allows, within_limits
from sluice_allocator.core.quotas.retry import least_of


def offer_to_gang(ctx: GangContext, leader: RequestId, node: NodeName) -> None:
    """Something was freed on a node: a trial is worth it if the member without a place would have one there."""
    gang, party = _of(ctx, leader)
    stuck = gang.stuck.get(party.number)
    if stuck is not None and stuck.heard == ctx.offers.heard:
        return  # it is what its own trial had found and released
    asked = ctx.facts.wanted(stuck.member) if stuck is not None else None
    if stuck is not None and asked is not None:
        avoid = ctx.backoff.avoided(stuck.member, ctx.now)
        askings = (place_request_of(asked), *alternative_place_requests(asked))
        if all(find_place_on(ctx.cluster, asking, node, avoid) is None for asking in askings):
            return
    begin_trial(ctx, leader)


def begin_trial(ctx: GangContext, leader: RequestId) -> None:
    gang, party = _of(ctx, leader)
    tried_before = party.number in gang.stuck
    is_busy = any(ctx.outbox.busy(subjects.binding(request)) for request in party.members)  # its result comes first
    unsure = gang.key in ctx.gangs.put_off or is_busy
    if ctx.gangs.trial is not None or unsure or (tried_before and _rests(ctx)):
        ctx.gangs.owed[leader] = None
        return
    ctx.gangs.owed.pop(leader, None)
    ctx.queue.pending_shape(leader).searched_at = ctx.now
    asked = {request: ctx.facts.live(request) for request in party.members}
    revisions = {request: each.revision for request, each in asked.items()}
    ctx.gangs.trial = Trial(gang.key, party, revisions, deque(_in_order(ctx, asked)), heard=ctx.offers.heard)
    _go_on(ctx, ctx.gangs.trial)


def go_on_with_trials(ctx: GangContext) -> None:
    gangs = ctx.gangs
    if gangs.trial is not None:
        gangs.trial.in_one_event = False
        _go_on(ctx, gangs.trial)
    elif gangs.owed and not _rests(ctx):
        leader, _ = gangs.owed.popitem(last=False)
        if leader in ctx.queue and gangs.leads(leader):
            begin_trial(ctx, leader)


def _go_on(ctx: GangContext, trial: Trial) -> None:
    for _ in range(ctx.rules.group_steps):
        if not trial.left:
            break
        request = trial.left[0]
        asked = ctx.facts.live(request)
        found = _find(ctx, request, asked)
        if not isinstance(found, Place):
            _end_in_vain(ctx, trial, request, found)
            return
        booking = ctx.booking_of(request, asked, found)
        trial.left.popleft()
        trial.found[request] = booking
        ctx.assume(booking)
    if not trial.left and not _forget_unusable(ctx, trial):
        _grant_all(ctx, trial)


def _find(ctx: GangContext, request: RequestId, asked: AllocationRequested) -> Place | NoPlace:
    """A place for its first claims, or else for an alternative: each member takes its own."""
    avoid = ctx.backoff.avoided(request, ctx.now)
    over = forbids_asking(ctx, request, asked.namespace, asked.claims)
    found = over or within_limits(ctx, request, asked, find_place(ctx.cluster, place_request_of(asked), avoid))
    if isinstance(found, Place) or not asked.alternatives:
        return found
    other = find_other(ctx, request, asked, lambda asking: find_free(ctx.cluster, asking, avoid))
    return other if other is not None else nor_other(asked, found)


def _forget_unusable(ctx: GangContext, trial: Trial) -> bool:
    def is_usable(device: DeviceGrant) -> bool:
        gpu = ctx.cluster.gpus.get(device.gpu)
        return gpu is not None and ctx.cluster.why_unusable(gpu) is None

    lost = [booking for booking in trial.found.values() if not all(map(is_usable, booking.devices))]
    for booking in lost:
        ctx.untry(booking)
    return bool(lost)


def _grant_all(ctx: GangContext, trial: Trial) -> None:
    """Order all slices at once. Each Grant may still be refused under its node's guard: that member then joins."""
    ctx.gangs.trial = None
    gang = ctx.gangs.of[trial.key]
    gang.stuck.pop(trial.party.number, None)
    for request, booking in trial.found.items():
        ctx.queue.remove(request)
        ctx.grant(booking)
    ctx.changed_requests |= dict.fromkeys(trial.found)


def _end_in_vain(ctx: GangContext, trial: Trial, request: RequestId, found: NoPlace) -> None:
    """One member has no place: the gang gets none, and all members show which one and why."""
    placed = len(trial.found)
    ctx.drop_trial()
    gang, party = ctx.gangs.of[trial.key], trial.party
    asked = ctx.facts.live(request)
    nth = placed + 1
    last = "th" if nth % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(nth % 10, "th")
    message = f"{placed} of {party.size} pods of group {gang.key[1]} have a place; the {nth}{last}"
    message += f" ({asked.name}): {found.message}"
    if placed and found.reasons and found.reasons[0].reason is WaitReason.QUOTA_EXCEEDED:
        message += " (including the places found for the others)"
    never = _never(ctx, [ctx.facts.live(member) for member in party.members])
    if never:
        message += f"; {never}"
    missing = ReasonCount(reason=WaitReason.GROUP_NOT_FIT, count=party.size - placed, of=f"pods of group {gang.key[1]}")
    party.why = NoPlace(message, (missing, *found.reasons))
    gang.stuck[party.number] = StuckMember(request, party.why, trial.heard)
    ctx.gangs.rest_until = max(ctx.gangs.rest_until, ctx.now) + ctx.rules.group_pause_s * placed
    for member in party.members:
        ctx.gangs.waiting[member] = None
    if party.leader is not None:
        say_why_gang_waits(ctx, party.leader, ctx.facts.live(party.leader), party.why)


def _rests(ctx: GangContext) -> bool:
    return ctx.gangs.rest_until - ctx.now > ctx.rules.group_burst_s


def _in_order(ctx: GangContext, asked: dict[RequestId, AllocationRequested]) -> list[RequestId]:
    """Members that fit one node only come first, then the largest: small ones fit into what is left."""

    def key(request: RequestId) -> tuple[bool, int, int]:
        each = asked[request]
        least = least_of(ctx, each.claims)
        is_pinned = bool(each.host.node_name) or any(claim.only.uuids for claim in each.claims)
        return not is_pinned, -least.compute_permille, -least.memory_mib

    return sorted(asked, key=key)


def _of(ctx: GangContext, leader: RequestId) -> tuple[Gang, Party]:
    gang = ctx.gangs.of[ctx.gangs.member_of[leader]]
    return gang, gang.party_of[leader]


def _never(ctx: GangContext, asked: list[AllocationRequested]) -> str:
    """Why these pods could not start together even on an empty fleet; empty where that is uncertain."""
    members = len(asked)
    asked = [each for each in asked if not each.alternatives]  # what the others will take is not known
    if not asked:
        return ""
    over = never_allows(ctx, asked[0].namespace, total(least_of(ctx, each.claims) for each in asked))
    if over is not None:
        return f"they can run together only if the quota is raised: {over.sentence_of_all()}"
    alike: dict[bytes, tuple[PlaceRequest, int]] = {}
    for each in asked:
        shape = shape_of(each)
        alike[shape] = place_request_of(each), alike[shape][1] + 1 if shape in alike else 1
    few = too_few_gpus(ctx.cluster, alike.values())
    if few is None:
        return ""
    who, whom = ("it takes", "it") if few.pods == members else (f"{few.pods} of its pods take", "them")
    there = f"{few.there} could serve {whom}" if few.of == "GPUs" else f"there is room for {few.there}"
    return f"even an empty fleet could not hold it: {who} {few.takes} {few.of} at least, and {there}"
