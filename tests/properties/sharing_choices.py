"""Was it right to give that to that one? Asked when nothing is on its way, of one allocator that knows all there is.

What was booked since it was last asked was decided on what still stands: nothing was freed in between. So whatever is
free now was free then, and every pod that waits now waited then.
"""

from judges.choosing import Chooser
from judges.placements import Truth, why_not_together
from properties.sharing_judge import SharingJudge, most_important, too_much

from sluice.contracts import messages as msg
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.placement import PlaceRequest


def exactly(asked: msg.AllocationRequested) -> PlaceRequest:
    """What it asked for, and nothing larger."""
    return PlaceRequest(asked.claims, asked.namespace, asked.host, asked.node_policy, asked.gpu_policy)


class Choices:
    """Judges grants by who else was there, and orders by what they are for."""

    def __init__(self, judge: SharingJudge) -> None:
        """Look at what `judge` has observed."""
        self.judge = judge
        self.facts = judge.facts

    def since_last_time(self) -> None:
        """All grants that landed since, and every order that stands."""
        grants, self.judge.new_grants = self.judge.new_grants, []
        stands = [grant for grant in grants if grant.booking.allocation in self.facts.live()]
        for grant in stands:
            if not grant.after:
                self._is_exact_if_it_can_be(grant.booking)
                self._is_first_of_its_like(grant.booking, grants)
                self._is_within_limits(grant.booking)
        self._groups_are_whole(stands)
        self._orders_have_reasons()
        self._drained_are_ordered_out()
        self.no_pod_waits_for_nothing()

    # -- grants ----------------------------------------------------------------------------------------------------

    def _is_exact_if_it_can_be(self, booking: msg.Booking) -> None:
        """A larger profile is never less of anything, and is given only where there is no place of the asked one."""
        asked = self.facts.living().get(booking.request)
        if asked is None or not booking.instead_of:
            return
        claim = asked.claims[0]
        rows = {row.name: row for gpu in self.judge.gpus.values() for row in gpu.profiles}
        meant = rows.get(claim.profile or "")
        for device in booking.devices:
            given = rows[device.profile or ""]
            assert device.profile != claim.profile
            assert meant is None or given.memory_mib >= meant.memory_mib, f"{given} instead of {meant}"
            assert meant is None or given.multiprocessors >= meant.multiprocessors, f"{given} instead of {meant}"
        assert asked.leeway.substitute != "no"
        if booking.request not in self.judge.failed:
            free = Chooser(self.judge.truth([booking.allocation])).some_place(exactly(asked))
            assert free is None, f"{booking.request} has more than it asked for, and there was its own on {free}"

    def _is_first_of_its_like(self, booking: msg.Booking, grants: list[msg.Grant]) -> None:
        """Of requests for the same, the one whose turn is first has the place."""
        living = self.facts.living()
        asked = living.get(booking.request)
        if asked is None or asked.group is not None:
            return
        mine = most_important(asked, self.judge.asked_at[booking.request])
        served = {each.booking.request for each in grants}
        for other, theirs in living.items():
            not_judged = other in served or other in self.judge.failed
            if not_judged or not _alike(asked, theirs) or self._has_answer(other):
                continue
            if self._is_told(other) is WaitReason.QUEUE_FULL:
                continue  # a new pod for which there is room is served, also where others stand outside (docs/queue.md)
            turn = most_important(theirs, self.judge.asked_at[other])
            assert turn > mine, f"{booking.request} has a place before {other}, whose turn is before"

    def _has_answer(self, request: str) -> bool:
        return isinstance(self.facts.of["binding"].get(request), msg.Bound) or bool(self.facts.granted(request))

    def _is_within_limits(self, booking: msg.Booking) -> None:
        """One allocator never books more than a namespace may have, all and one."""
        quota = self.facts.of["quota"].get(booking.namespace)
        if not isinstance(quota, msg.QuotaSet):
            return
        waiting = [each for each in self.facts.live() if self.judge.waits_for_others(each)]
        live = [entry.booking for each, entry in self.facts.live().items() if each not in waiting]
        takes = self.judge.amounts([booking])
        has = self.judge.amounts([each for each in live if each.namespace == quota.namespace])
        over = too_much(quota.total, has, takes)
        assert not over, f"{quota.namespace} has {over} booked with {booking.allocation}"
        over = too_much(quota.request, takes, takes)
        assert not over, f"one pod of {quota.namespace} has {over}"

    def _groups_are_whole(self, grants: list[msg.Grant]) -> None:
        """No pod of a group is granted alone: all of them, unless others have places already."""
        new = {grant.booking.request for grant in grants}
        for request in new:
            asked = self.facts.living().get(request)
            if asked is None or asked.group is None:
                continue
            sisters = [
                each
                for each, other in self.facts.living().items()
                if other.group == asked.group and other.namespace == asked.namespace
            ]
            had = [each for each in sisters if each not in new and (self.facts.granted(each) or self._has_answer(each))]
            together = [each for each in sisters if each in new]
            assert had or len(together) >= asked.group.size, f"{together} are granted of {sisters}"

    # -- evictions -------------------------------------------------------------------------------------------------

    def _orders_have_reasons(self) -> None:
        """No pod is evicted that is not preemptible, or for nothing."""
        for request, order in self.facts.of["eviction"].items():
            asked = self.facts.living().get(request)
            if isinstance(order, msg.EvictionOrdered) and asked is not None:
                assert self._why(request, asked), f"{order} for no reason"

    def _why(self, request: str, asked: msg.AllocationRequested) -> str:
        if self._is_drained(request):
            return "drained"
        mine = [each.booking.allocation for each in self.facts.granted(request)]
        for promise in self.judge.promises():
            if not promise.evict or not set(promise.after) & set(mine):
                continue
            for_whom = self.facts.living().get(promise.booking.request)
            if promise.booking.request == request:
                return "moved" if asked.leeway.movable or asked.leeway.substitute == "return" else ""
            if for_whom is not None and asked.leeway.preemptible and for_whom.priority > asked.priority:
                return "less important"
            if for_whom is not None and (asked.leeway.movable or asked.leeway.substitute == "return"):
                return "its successor has come"
        return ""

    def _is_drained(self, request: str) -> bool:
        grant = self.facts.bound().get(request)
        cordon = self.facts.of["cordon"].get(grant.booking.node) if grant is not None else None
        if grant is None or not isinstance(cordon, msg.Cordoned) or not cordon.drain:
            return False
        return not cordon.gpus or any(device.gpu in cordon.gpus for device in grant.booking.devices)

    def _drained_are_ordered_out(self) -> None:
        for request in self.facts.living():
            if self._is_drained(request) and not isinstance(self.facts.of["evicted"].get(request), msg.EvictionDone):
                assert isinstance(self.facts.of["eviction"].get(request), msg.EvictionOrdered), f"{request} may stay"

    # -- the queue -------------------------------------------------------------------------------------------------

    def queue_is_bounded(self, inside: int, most: int) -> None:
        """As many wait as may, and those who are kept outside come after them."""
        assert inside <= most, f"{inside} wait, {most} may"
        living = self.facts.living().items()
        waits = {each: asked for each, asked in living if self._is_told(each)}
        outside = [each for each in waits if self._is_told(each) is WaitReason.QUEUE_FULL]
        if not outside:
            return
        assert inside == most, f"{outside} are kept outside, and only {inside} of {most} wait"
        told = [each for each, _ in living if isinstance(self.facts.of["waiting"].get(each), msg.Pending)]
        assert inside + len(outside) <= len(told), f"{outside} show that they are outside, and not all of them are"
        turns = {each: most_important(asked, self.judge.asked_at[each]) for each, asked in waits.items()}
        single = [each for each in waits if waits[each].group is None]  # who leads a group has the turn of all of it
        first = min((turns[each] for each in single if each in outside), default=None)
        late = [each for each in single if each not in outside and first is not None and turns[each] > first]
        assert not late, f"{late} wait inside, and earlier turns of {outside} outside"

    def _is_told(self, request: str) -> WaitReason | None:
        said = self.facts.of["waiting"].get(request)
        return said.reasons[0].reason if isinstance(said, msg.Pending) and not self._has_answer(request) else None

    # -- waiting ---------------------------------------------------------------------------------------------------

    def no_pod_waits_for_nothing(self) -> None:
        """No waiting pod would fit where nothing is promised: what is freed is granted in the same moment."""
        truth, looked_at = self._nothing_promised(), []
        for asked in self._who_might_fit().values():
            asking = exactly(asked)
            if asked.group is None and asking not in looked_at:
                looked_at.append(asking)
                place = Chooser(truth).some_place(asking)
                assert place is None, f"{asked.name} waits, and there is a place on {place}"

    def no_group_waits_for_nothing(self) -> None:
        """At rest: one that would fit whole has begun; it may pause between two trials."""
        truth = self._nothing_promised()
        for asked in self._who_might_fit().values():
            if asked.group is not None:
                self._group_does_not_fit(asked, truth)

    def _who_might_fit(self) -> dict[str, msg.AllocationRequested]:
        """Requests without a place, but with other possible reasons than places."""
        return {
            request: asked
            for request, asked in self.facts.living().items()
            if not isinstance(self.facts.of["quota"].get(asked.namespace), msg.QuotaSet)
            and self._is_told(request) is not WaitReason.QUEUE_FULL
            and request not in self.judge.failed
            and not self._has_answer(request)
        }

    def _nothing_promised(self) -> Truth:
        """All that is booked, and no GPU to be had on which a request is promised a place."""
        truth = self.judge.truth()
        for promise in self.judge.promises():
            for device in promise.booking.devices:
                truth.nodes[promise.booking.node].cordoned |= {device.gpu}
        return truth

    def _group_does_not_fit(self, asked: msg.AllocationRequested, truth: Truth) -> None:
        sisters = {
            each: other
            for each, other in self.facts.living().items()
            if other.group == asked.group and other.namespace == asked.namespace
        }
        if any(self._has_answer(each) or each in self.judge.failed for each in sisters):
            return
        if len(sisters) != asked.group.size or len({other.claims for other in sisters.values()}) > 1:
            return  # who is too many, and which of them are placed first, is not for the judge to say
        name = asked.claims[0].profile
        room = sum(
            _how_many(gpu, truth.board(gpu.uuid).spans(), name)
            for node in truth.nodes.values()
            for gpu in node.snapshot.gpus
            if node.may_give(gpu)
        )
        assert room < len(sisters), f"{sorted(sisters)} wait for {name}, and there are {room}"


def _alike(one: msg.AllocationRequested, other: msg.AllocationRequested) -> bool:
    """Whether two fit the same places and limits, and neither has to wait for others of its group."""
    same = (one.claims, one.namespace) == (other.claims, other.namespace)
    return same and one.leeway.substitute == other.leeway.substitute and other.group is None


def _how_many(gpu, there: list, name: str | None) -> int:
    """How many more instances of a profile fit on a GPU, one beside the other from its end: never too many."""
    row = next((each for each in gpu.profiles if each.name == name), None)
    found = 0
    for place in sorted(row.placements, key=lambda each: -each.start) if row is not None else ():
        if why_not_together(gpu, [*there, (row.name, place.start, place.size)]) is None:
            there = [*there, (row.name, place.start, place.size)]
            found += 1
    return found
