"""At rest each pod waits for something true, with a published reason: by `tests/judges` and by a fresh core."""

from judges.choosing import Chooser
from judges.placements import NodeTruth, Truth
from msgspec.structs import replace
from pairs.judge import Judge, ViolationError, brief
from pairs.source import Pod, Source

from sluice.contracts import messages as msg
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.placement import Place, find_free, find_reservation, place_request_of
from sluice_allocator.core.preemption.candidates import find_victims
from sluice_allocator.core.quotas.quota import forbids_asking, forbids_place
from sluice_allocator.core.reservations.reserve import _Limits
from sluice_allocator.core.state.grant_facts import standing_promise


class Waiting:
    """All waiting pods of one world at rest."""

    def __init__(self, judge: Judge, source: Source, fresh: Allocator) -> None:
        """`fresh` has read everything, and decided nothing."""
        self.judge = judge
        self.source = source
        self.ctx = fresh.ctx
        self.world = fresh.ctx.facts
        self.rules = fresh.ctx.rules

    def who_waits(self) -> None:
        """Each living pod has its slice, or waits for something true, with a published reason."""
        groups: dict[tuple[str, str], list[Pod]] = {}
        for pod in self.source.alive():
            if self._waits(pod):
                if pod.spec.group:
                    groups.setdefault((pod.spec.namespace, pod.spec.group), []).append(pod)
                elif self.rules.waiting_max >= len(self.source.alive()):
                    self._waits_for_something(pod)
        for members in groups.values():
            self._group_waits_for_something(members)

    def _waits(self, pod: Pod) -> bool:
        bound = self.world.bindings.get(pod.uid)
        if isinstance(bound, msg.Refused):
            return False
        if isinstance(bound, msg.Bound) and pod.held is not None and bound.allocation == pod.held.allocation:
            return False
        if isinstance(bound, msg.Released) or pod.held is not None:
            raise ViolationError("lost its slice", f"{pod.uid}: {pod.held} and {bound}")
        if not isinstance(self.world.waiting.get(pod.uid), msg.Pending):
            raise ViolationError("not told", f"{pod.uid}: {bound} and {self.world.waiting.get(pod.uid)}")
        return True

    def _waits_for_something(self, pod: Pod) -> None:
        asked, said = self.world.requests[pod.uid], self.world.waiting[pod.uid]
        promise = standing_promise(self.ctx, pod.uid)
        story = f"{pod.uid} {asked.claims}: {said.message}; {brief(promise) if promise is not None else 'no promise'}"
        if not self.world.quotas:
            found = Chooser(self._truth(promise)).some_place(place_request_of(asked))
            if found is not None:
                raise ViolationError("waits for nothing", f"{found}; {story}")
        if forbids_asking(self.ctx, pod.uid, asked.namespace, asked.claims):
            return
        place = self._free_but_for(promise, asked)
        if place is not None and not forbids_place(self.ctx, pod.uid, asked.namespace, place.devices):
            raise ViolationError("waits for nothing", f"{place.node} {place.devices}; {story}")
        if promise is not None:
            return
        if asked.preempts and find_victims(self.ctx, pod.uid, place_request_of(asked), asked.priority) is not None:
            raise ViolationError("evicts no pod", story)
        if self._could_be_promised(pod, asked):
            raise ViolationError("promised nothing", story)
        if said.reasons and said.reasons[0].reason == WaitReason.PLACE_BEING_FREED:
            raise ViolationError("told of a promise", story)

    def _truth(self, without: msg.Grant | None) -> Truth:
        nodes, bookings = {}, {}
        for name, snapshot in self.ctx.shown.items():
            cordon = self.world.cordons.get(name)
            gpus = cordon.gpus or [gpu.uuid for gpu in snapshot.gpus] if isinstance(cordon, msg.Cordoned) else ()
            nodes[name] = NodeTruth(snapshot, cordoned=frozenset(gpus))
            bookings |= self.judge.truth(name).bookings
        if without is not None:
            bookings.pop(without.booking.allocation, None)
        return Truth(nodes, bookings)

    def _free_but_for(self, promise: msg.Grant | None, asked: msg.AllocationRequested) -> Place | None:
        booked = self.ctx.cluster.booking(promise.booking.allocation) if promise is not None else None
        if booked is not None:
            self.ctx.cluster.unbook(booked.allocation)
        place = find_free(self.ctx.cluster, place_request_of(asked))
        if booked is not None:
            self.ctx.cluster.book(booked)
        return place

    def _could_be_promised(self, pod: Pod, asked: msg.AllocationRequested) -> bool:
        """Whether it is first in the queue, or nothing is promised yet, and there is a place it could wait for."""
        if self.rules.promises_percent == 0 or (any(self.ctx.promised.of_model.values()) and not self._is_first(pod)):
            return False
        limits = _Limits(self.ctx, (0, 0, pod.uid))
        found = find_reservation(
            self.ctx.cluster,
            place_request_of(asked),
            frozenset(),
            shown=self.ctx.shown,
            wait_for=limits.wait_for,
            open_to=limits.open_to,
        )
        return found is not None and not forbids_place(
            self.ctx, None, asked.namespace, found.place.devices, found.after
        )

    def _is_first(self, pod: Pod) -> bool:
        turns = [
            (-each.spec.priority, self.world.came_at(each.uid), each.uid)
            for each in self.source.alive()
            if each.held is None
            and not each.spec.group
            and isinstance(self.world.waiting.get(each.uid), msg.Pending)
            and standing_promise(self.ctx, each.uid) is None
            and not forbids_asking(self.ctx, each.uid, each.spec.namespace, each.spec.claims)
        ]
        return min(turns)[2] == pod.uid

    def _group_waits_for_something(self, members: list[Pod]) -> None:
        """There are no places for all who are there, one after the other, those that are hardest to place first."""
        of = members[0].spec
        members = [each for each in self.source.alive() if each.spec.group == of.group]
        if len(members) != of.group_size or any(each.held is not None for each in members):
            return
        booked, fits = [], True
        for pod in sorted(members, key=lambda each: -sum(claim.gpus for claim in each.spec.claims)):
            asked = self.world.requests[pod.uid]
            place = find_free(self.ctx.cluster, place_request_of(asked))
            fits = (
                place is not None
                and not forbids_asking(self.ctx, pod.uid, asked.namespace, asked.claims)
                and not forbids_place(self.ctx, pod.uid, asked.namespace, place.devices)
            )
            if not fits or place is None:
                break
            booking = self.ctx.booking_of(pod.uid, asked, place)
            self.ctx.cluster.book(booking)
            booked.append(booking.allocation)
        for allocation in booked:
            self.ctx.cluster.unbook(allocation)
        if fits:
            raise ViolationError("job waits for nothing", f"{of.group}: {self.world.waiting[members[0].uid].message}")

    def who_is_on_a_larger_one(self) -> None:
        """A pod with a larger profile returns where the one it asked for is free, and that is less."""
        for request, bound in self.world.bindings.items():
            asked = self.world.requests.get(request)
            if (
                not isinstance(bound, msg.Bound)
                or not isinstance(asked, msg.AllocationRequested)
                or asked.group is not None
            ):
                continue
            grant = self.world.ledger[bound.allocation]
            is_there = isinstance(self.world.slices.get(bound.allocation), msg.SliceReady)
            if asked.leeway.substitute == "return" and grant.booking.instead_of and is_there:
                self._returns(asked, grant)

    def _returns(self, asked: msg.AllocationRequested, grant: msg.Grant) -> None:
        place = find_free(self.ctx.cluster, replace(place_request_of(asked), substitute=False))
        if place is None:
            return
        then, now = (self.ctx.cluster.usage_of(each) for each in (place.devices, grant.booking.devices))
        is_less = (then.memory_mib, then.compute_permille) < (now.memory_mib, now.compute_permille)
        after = (grant.booking.allocation,)
        if is_less and not forbids_place(self.ctx, None, asked.namespace, place.devices, after):
            raise ViolationError("never returns", f"{grant.booking.request} {brief(grant)} to {place.devices}")
