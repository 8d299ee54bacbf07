"""Pods that are granted together or not at all (`group`, `group-size`): how each gang stands, and what follows.

    fewer than its size have asked       -> all wait; places that some have, since another left, are kept for a time
    all have asked, none has a place     -> one of them waits in the queue for all (`gangs.trial` finds the places)
    some have a place, some have none    -> those without search at once
    all have a place, and all are ready  -> all may be bound, and the first one starts the job
    one is bound                         -> the rest is served as single pods
    as many as its size are bound        -> further pods are, too
    no progress for too long             -> all unbound places are waived, and released

All of it is derived from the requests, the ledger and the bindings, so that a restart in the middle and a second
allocator come to the same. Waiving is written under the binding's guard: either `Bound` or `Waived` is the last
message about an allocation, so no place is revoked while another process binds it."""

from collections.abc import Iterator

from sluice.contracts.bus import subjects
from sluice.contracts.ids import RequestId
from sluice.contracts.messages import AllocationRequested, Bound, Pending, Refused, Released
from sluice.contracts.reasons import ReasonCount, WaitReason
from sluice_allocator.core.gangs.gang import (
    Gang,
    GangContext,
    GangKey,
    Member,
    Party,
    PartyStatus,
    PatienceTimer,
    member_of_gang,
)
from sluice_allocator.core.key_index import in_turn
from sluice_allocator.core.placement import NoPlace
from sluice_allocator.core.state.bus_cache import RequestFact
from sluice_allocator.core.state.context import publish_wait

LARGEST = 1000  # A look at a gang costs a look at each of its members. Larger gangs are looked at once per tick.


def know_gang(ctx: GangContext, request: RequestId, asked: RequestFact | None) -> None:
    group = asked.group if isinstance(asked, AllocationRequested) else None
    if group is None and request not in ctx.gangs.member_of:
        return
    key = (asked.namespace, group.name) if group is not None and isinstance(asked, AllocationRequested) else None
    ctx.gangs.know(request, key)


def turn_of(ctx: GangContext, request: RequestId, asked: AllocationRequested) -> tuple[int, int]:
    """Rank and sequence by which a request waits: its own, or its gang's while that comes together."""
    party = ctx.gangs.party_of(request)
    if party is None or ctx.gangs.status_of(request) is PartyStatus.ALONE:
        return -ctx.priority_of(asked.namespace, asked.priority), ctx.facts.came_at(request)
    return party.turn


def shape_of_gang(ctx: GangContext, leader: RequestId) -> bytes:
    """The queue shape of a gang's leader: a gang fits where no other does."""
    namespace, name = ctx.gangs.member_of[leader]
    return f"group\0{namespace}\0{name}\0{leader}".encode()


def why_leave(ctx: GangContext, member: RequestId) -> str:
    key = ctx.gangs.member_of[member]
    size = ctx.gangs.of[key].party_of[member].size
    return f"group {key[1]} could not get all of its {size} pods a ready slice, and releases those it has"


def tell_gang_reason(ctx: GangContext, request: RequestId, asked: AllocationRequested) -> bool:
    """Whether a pod waits for its gang; publishes why: at once the first time, then at a bounded rate."""
    if isinstance(ctx.facts.answer_to(request), (Bound, Refused, Released)):
        return False
    if ctx.gangs.is_unknown(request):
        return True  # it is looked at again when its gang was
    party = ctx.gangs.party_of(request)
    status = ctx.gangs.status_of(request)
    told_otherwise = status is PartyStatus.JOINS and request in ctx.queue
    if party is None or party.why is None or status.may_start or told_otherwise:
        ctx.gangs.waiting.pop(request, None)
        return False
    ctx.gangs.waiting[request] = None
    say_why_gang_waits(ctx, request, asked, _why_now(ctx, party, party.why))
    return True


def tell_gang(ctx: GangContext, leader: RequestId) -> bool:
    """A gang's leader is now outside the queue: all members get that reason. False where it leads no gang."""
    party = ctx.gangs.party_of(leader) if ctx.gangs.leads(leader) else None
    if party is not None:
        ctx.changed_requests |= dict.fromkeys(party.members)
    return party is not None


def _why_now(ctx: GangContext, party: Party, why: NoPlace) -> NoPlace:
    """Why a party waits: nothing is searched while its leader is outside the queue."""
    return why if party.leader not in ctx.queue.outside else ctx.queue.why_outside()


def why_gang_waits(ctx: GangContext, request: RequestId) -> tuple[RequestId | None, NoPlace] | None:
    """The leader in the queue for a pod, and why its gang waits; None where it searches by itself."""
    party = ctx.gangs.party_of(request)
    if party is None or party.why is None:
        return None
    is_stuck = ctx.gangs.status_of(request) in {PartyStatus.WAITS, PartyStatus.LEAVES}
    return (party.leader, _why_now(ctx, party, party.why)) if is_stuck else None


def why_not_begun(ctx: GangContext, request: RequestId) -> str:
    party = ctx.gangs.party_of(request)
    return party.why.message if party is not None and party.why is not None else ""


def say_why_gang_waits(ctx: GangContext, request: RequestId, asked: AllocationRequested, why: NoPlace) -> None:
    """Publish why a member's gang waits, at a bounded rate: there are many, and each changes it for all. Another
    allocator, which remembers other trials, may name another reason for as long as both work."""
    kept = ctx.outbox.kept(subjects.waiting(request))
    if isinstance(kept, Pending):
        is_news = [each.reason for each in kept.reasons[:1]] != [why.reasons[0].reason]
    else:
        is_news = kept is not None or request not in ctx.facts.waiting
    publish_wait(ctx, request, asked, why, is_news=is_news)


def time_passed_for_gangs(ctx: GangContext) -> None:
    """Clocks may have run out, and large gangs are due: some are looked at, in turn, within one event's budget."""
    gangs = ctx.gangs
    for key in in_turn(gangs.timed, max(1, ctx.rules.settle_batch // 3)):
        gangs.dirty[key] = None
    for key in in_turn(gangs.put_off, max(1, ctx.rules.settle_batch // 3)):
        gangs.of[key].is_due = True
        gangs.dirty[key] = None


def refresh_gangs(ctx: GangContext) -> None:
    """Publish a few members' gang reasons again, in turn, since they may be outdated."""
    for request in in_turn(ctx.gangs.waiting, ctx.rules.pending_refresh_batch):
        asked = ctx.facts.wanted(request)
        if asked is not None:
            tell_gang_reason(ctx, request, asked)


def reconcile_gang(ctx: GangContext, key: GangKey) -> None:
    gangs = ctx.gangs
    gang = gangs.of.get(key)
    if gang is None:
        return
    if len(gang.members) > LARGEST and not gang.is_due:
        _put_off(ctx, key)
        return
    gang.is_due = False
    gangs.put_off.pop(key, None)
    touched, gang.touched = gang.touched, {}
    for request in touched:
        member = member_of_gang(ctx, request) if request in gang.members else None
        if member is None:
            gang.known.pop(request, None)
        else:
            gang.known[request] = member
    before = {party.leader for party in gang.parties if party.leader is not None}
    statuses = gang.statuses
    gang.statuses, gang.party_of = {}, {}
    gang.parties = tuple(_parties(ctx, gang))
    gang.clocks = {each: party.clock for party in gang.parties if party.clock is not None for each in party.members}
    gang.stuck = {number: stuck for number, stuck in gang.stuck.items() if number < len(gang.parties)}
    for leader in before - {party.leader for party in gang.parties}:
        gangs.owed.pop(leader, None)
        ctx.queue.remove(leader)
        ctx.changed_requests[leader] = None
    changed = [request for request, status in gang.statuses.items() if status is not statuses.get(request)]
    ctx.changed_requests |= dict.fromkeys(changed) | gang.looked
    gang.looked = {}
    _drop_stale_trial(ctx, gang)
    if gang.clocks:
        gangs.timed[key] = None
    else:
        gangs.timed.pop(key, None)
    if not gang.members:
        del gangs.of[key]


def _put_off(ctx: GangContext, key: GangKey) -> None:
    """Look at a gang with the next tick; a trial for it ends, since its members are unknown until then."""
    ctx.gangs.put_off[key] = None
    if ctx.gangs.trial is not None and ctx.gangs.trial.key == key:
        ctx.put_trial_off()


def _parties(ctx: GangContext, gang: Gang) -> Iterator[Party]:
    """The members as parties of the gang's size, each with what it means for its members. Bound members come first,
    then those with a place, then by age: so a running job is one party, and its restarted members belong to it. Surplus
    members wait as the next party while the first comes together. When that runs completely, the size is fulfilled and
    further pods are single: they replace one that is about to go, or are extra (ADR 0054)."""
    members = sorted(gang.known.values(), key=_order)
    if not members:
        return
    size, others = members[0].size, []
    if any(member.size != size for member in members):
        others = [member for member in members if member.size != size]
        members = [member for member in members if member.size == size]
    number = 0
    if not others or members[0].started:
        beside = members[size:] if _runs_whole(members, size) else []
        for at in range(0, len(members) - len(beside), size):
            yield _party(ctx, gang, number, members[at : at + size])
            number += 1
        if beside:
            yield _all(gang, _new_party(gang, number, size, beside), PartyStatus.ALONE)
            number += 1
        members = []
    running = [member for member in others if member.started]
    if running:  # whatever the sizes say: a running member is not to lose its slice for it
        yield _party(ctx, gang, number, running)
        number += 1
        others = [member for member in others if not member.started]
    if others:
        yield _party_at_odds(ctx, gang, number, (size, others[0].size), [*members, *others])


def _runs_whole(members: list[Member], size: int) -> bool:
    """Whether as many members as the size says are bound; bound ones come first."""
    return len(members) >= size and all(member.started for member in members[:size])


def _order(member: Member) -> tuple[bool, bool, int, RequestId]:
    return not member.started, not member.placed, member.sequence, member.request


def _party(ctx: GangContext, gang: Gang, number: int, members: list[Member]) -> Party:
    size = members[0].size
    party = _new_party(gang, number, size, members)
    placed = [member for member in members if member.placed]
    if any(member.started for member in members):
        return _all(gang, party, PartyStatus.ALONE)
    if len(placed) == size and all(member.ready for member in placed):
        return _all(gang, party, PartyStatus.STARTS)
    if not placed:
        _all(gang, party, PartyStatus.WAITS)
        if len(members) < size:
            party.why = _incomplete(gang, party, len(members))
        else:
            if number in gang.stuck and gang.stuck[number].member not in party.members:
                del gang.stuck[number]  # of another party that had this number
            message = f"all {size} pods of group {gang.key[1]} have asked; searching for places for all of them"
            party.why = gang.stuck[number].why if number in gang.stuck else _why(gang, size, message)
            # the first of a party waits in the queue, at the party's turn, for all of them
            party.leader = party.members[0]
            rank, sequence = party.turn
            if ctx.queue.add(party.leader, shape_of_gang(ctx, party.leader), rank, sequence):
                ctx.to_try[party.leader] = None
        return party
    progress = sum(member.placed + member.ready for member in members)
    clock = _clock_of(gang, party)
    if clock is None or progress > clock.progress:
        clock = PatienceTimer(progress, ctx.now)
    party.clock = clock
    if _is_given_up(ctx, gang, party, clock.since, members):
        _all(gang, party, PartyStatus.LEAVES)
    else:
        _all(gang, party, PartyStatus.JOINS if len(members) == size else PartyStatus.WAITS)
    ready = sum(member.ready for member in members)
    message = f"group {gang.key[1]} starts when all of its {size} pods have a ready slice"
    party.why = _why(gang, size - ready, f"{message}: {len(placed)} have a place, {ready} a ready slice")
    return party


def _clock_of(gang: Gang, party: Party) -> PatienceTimer | None:
    known = (gang.clocks[request] for request in party.members if request in gang.clocks)
    return max(known, key=lambda clock: clock.since, default=None)


def _new_party(gang: Gang, number: int, size: int, members: list[Member]) -> Party:
    party = Party(number, size, tuple([member.request for member in members]))
    party.turn = (max([-each.priority for each in members]), max([each.sequence for each in members]))
    gang.party_of |= dict.fromkeys(party.members, party)
    return party


def _party_at_odds(ctx: GangContext, gang: Gang, number: int, sizes: tuple[int, int], members: list[Member]) -> Party:
    """Members that disagree on a size: they wait until that is fixed, and hold nothing for long."""
    party = _new_party(gang, number, len(members), members)
    named = [next((each.name for each in gang.known.values() if each.size == size), "") for size in sizes]
    said = " and ".join(f"{name} says {size}" for name, size in zip(named, sizes, strict=True))
    message = f"the pods of group {gang.key[1]} disagree on its size: {said}; write the same group-size in all"
    party.why = _why(gang, len(members), message)
    if any(member.placed for member in members):
        party.clock = _clock_of(gang, party) or PatienceTimer(0, ctx.now)
        if _is_given_up(ctx, gang, party, party.clock.since, members):
            return _all(gang, party, PartyStatus.LEAVES)
    return _all(gang, party, PartyStatus.WAITS)


def _all(gang: Gang, party: Party, status: PartyStatus) -> Party:
    gang.statuses |= dict.fromkeys(party.members, status)
    return party


def _is_given_up(ctx: GangContext, gang: Gang, party: Party, since: float, members: list[Member]) -> bool:
    """Whether a party with places releases them: a member published so, or it made no progress for long. Of several
    blocking each other the one with the earliest turn has twice the time."""
    adopted_for = {member.adopted_for for member in members} - {None}
    if any(source not in ctx.facts.sources for source in adopted_for):
        return False  # it may run: the last message was lost with the broker, and its source publishes again
    waived_at = max(member.waived_at for member in members)
    if any(member.placed and member.granted_at < waived_at for member in members):
        return True
    others = (ctx.gangs.of[key] for key in ctx.gangs.timed if key != gang.key and key in ctx.gangs.of)
    later = any(each.turn > party.turn for other in others for each in other.parties if each.clock is not None)
    return ctx.now - since >= ctx.rules.group_patience_s * (2 if later else 1)


def _drop_stale_trial(ctx: GangContext, gang: Gang) -> None:
    """A trial is of a party as it was: a member that comes, goes or changes its request ends it."""
    trial = ctx.gangs.trial
    if trial is None or trial.key != gang.key:
        return
    now = next((party for party in gang.parties if party.members == trial.party.members and party.leader), None)
    asked = {request: ctx.facts.wanted(request) for request in trial.revisions}
    same = {request: each.revision for request, each in asked.items() if each is not None} == trial.revisions
    if now is None or not same:
        ctx.drop_trial()
        if now is not None and now.leader is not None:
            ctx.to_try[now.leader] = None
    else:
        trial.party = now


def _why(gang: Gang, missing: int, message: str) -> NoPlace:
    of = f"pods of group {gang.key[1]}"
    return NoPlace(message, (ReasonCount(reason=WaitReason.GROUP_INCOMPLETE, count=missing, of=of),))


def _incomplete(gang: Gang, party: Party, there: int) -> NoPlace:
    message = f"{there} of {party.size} pods of group {gang.key[1]} have asked"
    if party.number:
        message = f"group {gang.key[1]} has all of its {party.size} pods already; of the surplus, {message}"
    return _why(gang, party.size - there, message)
