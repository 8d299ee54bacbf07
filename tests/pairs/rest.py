"""At rest nothing is left over: bus, pods and agents agree, and each core with one that has just read everything."""

from collections import Counter
from collections.abc import Iterator

from pairs.judge import Judge, Landed, ViolationError, brief
from pairs.source import Source

from sluice.contracts.ids import AllocationId, RequestId
from sluice.contracts.messages import AllocationRequested, Bound, Grant, Revoke
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.state.grant_facts import is_promise

WORDS_MAX = 12
"""So often the reasons of one waiting request may be written while nothing happens: they are looked at again."""
EVICTED_MAX = 3
"""So often one pod may be evicted once nothing happens any more."""
IN_VAIN_MAX = 2
"""So often others may be evicted for a pod that gets no slice of it."""
EVICTING_S = 25.0
"""A pod that was evicted for one that ended sooner was not evicted in vain."""


class Rest:
    """One world at rest."""

    def __init__(self, judge: Judge, source: Source, fresh: Allocator) -> None:
        """`fresh` has read everything, and decided nothing."""
        self.judge = judge
        self.source = source
        self.ctx: SchedulerContext = fresh.ctx
        self.world = fresh.ctx.facts

    # -- no process goes on --------------------------------------------------------------------------------------------

    def nothing_is_written(self, since: float, evicted_before: int) -> None:
        """Nothing is decided any more, and reasons to wait are published seldom."""
        late = [each for each in self.judge.written if each.at > since]
        decided = [each for each in late if not each.subject.startswith("sluice.waiting")]
        if decided:
            raise ViolationError("no end", _lines(decided))
        words = Counter(each.subject for each in late)
        if words and max(words.values()) > WORDS_MAX:
            subject, count = words.most_common(1)[0]
            said = _lines([each for each in late if each.subject == subject])
            raise ViolationError("repeated without end", f"{count} times: {said}")
        often = Counter(name for _, _, name in self.judge.evicted[evicted_before:])
        if often and max(often.values()) > EVICTED_MAX:
            raise ViolationError("evicted again and again", f"{often.most_common(1)}")

    def no_pod_is_evicted_in_vain(self) -> None:
        """A pod that others are evicted for gets a slice of it, or ends, or was just unlucky a few times."""
        vain: Counter[RequestId] = Counter()
        for each in self.judge.written:
            grant = each.message
            if isinstance(grant, Grant) and grant.revision == 1 and grant.evict and self._is_in_vain(each.at, grant):
                vain[grant.booking.request] += 1
        if vain and max(vain.values()) > IN_VAIN_MAX:
            raise ViolationError("evicted in vain", f"for {vain.most_common(1)}")

    def _is_in_vain(self, at: float, grant: Grant) -> bool:
        booking = grant.booking
        pod = self.source.pods.get(booking.request)
        of = self.judge.of_allocation
        if booking.allocation in self.judge.made or pod is None or pod.over_at <= at + EVICTING_S:
            return False
        victims = {of[each] for each in grant.after if each in of}
        until = self.judge.revoked_at.get(booking.allocation, float("inf")) + 1.5
        is_edited = any(at < when < until and who == booking.request for when, who in self.judge.edited)
        if booking.allocation in self.judge.failed or is_edited:
            return False  # nor is it the allocators' fault where its GPU, or its owner, thinks better of it
        if booking.request in victims or any(at < when < until and who in victims for when, who in self.judge.blocked):
            return False  # a budget came in between: no allocator could know that beforehand
        return any(at < when < until and who in victims for when, who, _ in self.judge.evicted)

    # -- nothing is left over --------------------------------------------------------------------------------------

    def who_has_what(self) -> None:
        """A bound request has one slice and nothing else, a waiting one at most a promise; no other pod has any."""
        entries: dict[RequestId, list[Grant]] = {}
        for entry in self.world.ledger.values():
            if isinstance(entry, Revoke):
                raise ViolationError("never closed", f"{entry.booking.allocation}: {entry.cause}")
            if isinstance(entry, Grant):
                entries.setdefault(entry.booking.request, []).append(entry)
        for request, grants in entries.items():
            self._has_what_it_may(request, grants)

    def _has_what_it_may(self, request: RequestId, grants: list[Grant]) -> None:
        said = f"{request}: {[(each.booking.allocation, brief(each)) for each in grants]}"
        if not isinstance(self.world.requests.get(request), AllocationRequested):
            raise ViolationError("held without a request", said)
        if len(grants) != 1:
            raise ViolationError("more than one", said)
        bound = self.world.bindings.get(request)
        if isinstance(bound, Bound):
            if grants[0].booking.allocation != bound.allocation:
                raise ViolationError("bound elsewhere", said)
        elif not is_promise(self.ctx, grants[0]):
            raise ViolationError("never bound", said)
        elif grants[0].evict:
            raise ViolationError("never evicted", said)

    def nothing_is_made_without_a_request(self, there: Iterator[AllocationId]) -> None:
        left = [each for each in there if not isinstance(self.world.ledger.get(each), Grant)]
        if left:
            raise ViolationError("made without a request", f"{left}")

    # -- the cores agree -------------------------------------------------------------------------------------------

    def agrees(self, core: Allocator) -> None:
        """What an allocator has in mind is what is on the bus, and nothing is under way."""
        ctx = core.ctx
        if ctx.gangs.trial is not None:
            return
        mine = {each: ctx.cluster.booking(each) for each in ctx.cluster.booked()}
        its = {each: self.ctx.cluster.booking(each) for each in self.ctx.cluster.booked()}
        if mine != its:
            differ = sorted(each for each in mine.keys() | its.keys() if mine.get(each) != its.get(each))
            raise ViolationError("books differ", f"{differ}")
        left = {key: getattr(ctx, key) for key in ("committing", "assumed", "undecided") if getattr(ctx, key)}
        left |= {"taken": ctx.sparing.taken} if ctx.sparing.taken else {}
        if left:
            raise ViolationError("never decided", f"{left}")
        if dict(ctx.promised.of_model) != dict(self.ctx.promised.of_model):
            text = f"{ctx.promised.of_model}, and there are {self.ctx.promised.of_model}"
            raise ViolationError("promises counted", text)
        if core.unfinished and not ctx.sparing.look:
            raise ViolationError("never finished", "")


def _lines(landed: list[Landed]) -> str:
    return "; ".join(str(each) for each in landed[:8])
