"""A fleet to which everything happens in any order; the engine only asked through its face, judged by `judges`."""

from collections import Counter
from operator import attrgetter

from factories.words import booking_of
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from judges.amounts import amount_of, amounts
from judges.choosing import Chooser
from judges.placements import Truth
from properties.asks import TENANTS, asks, peer
from properties.changing import ChangingFleet
from properties.facts import emptied, smallest_sum
from properties.plans import wrong_with

from sluice.contracts.ids import AllocationId, NodeName, RequestId
from sluice.contracts.messages import Claim, DeviceFilter, GpuReport
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.placement import (
    ClusterState,
    NoPlace,
    Place,
    PlaceRequest,
    find_place,
    find_place_on,
    find_preemption,
    least_usage,
)
from sluice_allocator.core.placement.defragment import plan_moves

GEOMETRIES = {"A100": ("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb"), "A30": ("1g.6gb", "2g.12gb", "4g.24gb")}
"""What HAMi's users may get on the models of these fleets (its device configuration)."""

ASKS = asks()


def machine_settings(*, examples: int, steps: int, derandomize: bool = False) -> settings:
    """How to run it: no phase that traces every line, which would take longer than all others."""
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=derandomize,
        report_multiple_bugs=False,
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


class FleetMachine(ChangingFleet):
    """Requests come and go while nodes change under them."""

    steps = 0
    """Over all examples of this process."""

    def __init__(self) -> None:
        """Begin without a node."""
        super().__init__()
        self.chooser = Chooser(self.truth, GEOMETRIES)
        self.answers: list[Place | NoPlace] = []
        self.numbered = 0
        self.shown: dict[str, GpuReport] = {}
        """GPUs as they were shown last."""
        self.read = 0
        """How much of the history `shown` knows."""
        self.limited: dict[str, None] = {}
        """Every namespace that ever had anything."""
        self.asked: dict[AllocationId, PlaceRequest] = {}
        """What each that was ever booked asked for."""
        self.going: dict[AllocationId, int] = {}
        """Pods that may be evicted, at which priority."""

    # -- requests --------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        """A pod asks; what it is given is booked."""
        self._arrive(data.draw(ASKS))

    @rule(data=st.data())
    def arrive_several(self, data: st.DataObject) -> None:
        """Equal pods ask one after the other."""
        asking = data.draw(ASKS)
        for _ in range(data.draw(st.integers(2, 5))):
            self._arrive(asking)

    @rule(asking=TENANTS, again=st.integers(1, 8))
    def arrive_tenants(self, asking: PlaceRequest, again: int) -> None:
        """Shares that may live together fill their homes."""
        for _ in range(again):
            self._arrive(asking)

    def _arrive(self, asking: PlaceRequest) -> None:
        answer = find_place(self.fleet, asking)
        assert find_place(self.fleet, asking) == answer, "asking changed something"
        self.history.append(("ask", (asking,)))
        self.answers.append(answer)
        if isinstance(answer, NoPlace):
            missed = self.chooser.some_place(asking)
            assert missed is None, f"{answer.message}, but there is a place on {missed}"
            for name in self.truth.nodes:
                assert find_place_on(self.fleet, asking, NodeName(name)) is None
            self._check_reasons(answer)
            self._check_never(asking, answer)
            return
        wrong = self.chooser.wrong_with(asking, answer.node, answer.devices)
        assert not wrong, wrong
        assert find_place_on(self.fleet, asking, answer.node) is not None
        self._check_least(asking, answer)
        self.numbered += 1
        names = {"request": f"r{self.numbered}", "namespace": asking.namespace}
        booking = booking_of(f"a{self.numbered}", answer.node, answer.devices, room=asking.host.room, **names)
        self.truth.bookings[booking.allocation] = booking
        self.truth.pods[booking.allocation] = (booking.node, asking)
        self._tell("peers.know", booking.request, peer(asking))
        self.asked[booking.allocation] = asking
        self._tell("book", booking)

    def _check_least(self, asking: PlaceRequest, answer: Place) -> None:
        """What is sure before a place is looked for is never more than what the place takes."""
        least = least_usage(self.fleet, asking.claims)
        reports = {gpu.uuid: gpu for gpu in self._reports()}
        parts = [amount_of(device, reports[device.gpu]) for device in answer.devices]
        takes = [sum(part) for part in zip(*parts, strict=True)]
        told = (least.gpus, least.memory_mib, least.compute_permille)
        assert all(sure <= real for sure, real in zip(told, takes, strict=True)), f"{told} are sure, {takes} are taken"

    def _check_reasons(self, answer: NoPlace) -> None:
        """No reason counts more GPUs or nodes than there are, and there is always a reason."""
        assert answer.message
        assert answer.reasons
        there = Counter(gpu.model for gpu in self._reports())
        there["nodes"] = len(self.truth.nodes)
        model_of = {gpu.uuid: gpu.model for gpu in self._reports()}
        devices = [device for booking in self.truth.bookings.values() for device in booking.devices]
        homes = {(d.gpu, d.profile, d.start) for d in devices if d.share is not None and d.gpu in model_of}
        there.update(f"homes on {model_of[gpu]}" for gpu, _, _ in homes)
        counted: Counter[tuple[WaitReason, str]] = Counter()
        for each in answer.reasons:
            counted[each.reason, each.of] += each.count
        for (reason, of), count in counted.items():
            assert count <= there[of], f"{reason}: {count} of {there[of]} {of}"

    def _check_never(self, asking: PlaceRequest, answer: NoPlace) -> None:
        """What is said to fit no node here has no place on them once they are empty, mended and ready either."""
        if answer.reasons[0].reason is not WaitReason.NO_NODE_CAN_FIT:
            return
        calm = {name: emptied(node) for name, node in self.truth.nodes.items()}
        missed = Chooser(Truth(calm, {}, self.truth.overcommit_percent), GEOMETRIES).some_place(asking)
        assert missed is None, f"{answer.message}, but there would be a place on {missed}"

    @precondition(lambda self: self.truth.bookings)
    @rule(data=st.data())
    def depart(self, data: st.DataObject) -> None:
        allocation = data.draw(st.sampled_from(sorted(self.truth.bookings)))
        del self.truth.bookings[allocation]
        self.truth.pods.pop(allocation, None)
        self.going.pop(AllocationId(allocation), None)
        self._tell("unbook", AllocationId(allocation))

    @precondition(lambda self: self.truth.pods)
    @rule(data=st.data())
    def is_withdrawn(self, data: st.DataObject) -> None:
        """A pod has ended, and its slice is there still: it keeps no pod out any more."""
        allocation = data.draw(st.sampled_from(sorted(self.truth.pods)))
        del self.truth.pods[allocation]
        self._tell("peers.know", RequestId(f"r{allocation[1:]}"), None)

    # -- evictions -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.truth.bookings)
    @rule(data=st.data(), priority=st.one_of(st.none(), st.integers(-1, 2)))
    def may_go_or_stays(self, data: st.DataObject, priority: int | None) -> None:
        """A pod may be evicted for others, at this priority; or may not any more."""
        allocation = AllocationId(data.draw(st.sampled_from(sorted(self.truth.bookings))))
        self.fleet.spare(allocation)
        self.going.pop(allocation, None)
        if priority is not None:
            self.fleet.offer_victim(allocation, priority, guarded=data.draw(st.booleans()))
            self.going[allocation] = priority

    @precondition(lambda self: self.going)
    @rule(asking=ASKS, priority=st.integers(0, 3))
    def somebody_more_important(self, asking: PlaceRequest, priority: int) -> None:
        """No pod is evicted that could have stayed, or is as important; and where evictions help, they happen."""
        if self.chooser.some_place(asking) is not None:
            return
        self.history.append(("look", (asking,)))
        found = find_preemption(self.fleet, asking, priority, lambda _devices, _victims: True)
        if found is None:
            evictable = [each for each, at in self.going.items() if at < priority and each in self.truth.bookings]
            missed = self._without(evictable).some_place(asking)
            assert missed is None, f"no pod is evicted, but there would be a place on {missed}"
            return
        node, devices = found.place.node, found.place.devices
        gone = [victim.allocation for victim in found.victims]
        assert all(self.going[each] < priority for each in gone)
        wrong = self._without(gone).wrong_with(asking, node, devices)
        assert not wrong, wrong
        for each in gone:
            others = [other for other in gone if other != each]
            assert self._without(others).wrong_with(asking, node, devices), f"{each} could have stayed"

    def _without(self, gone: list[AllocationId]) -> Chooser:
        left = {each: booking for each, booking in self.truth.bookings.items() if each not in gone}
        truth = self.truth  # for what pods say of each other every pod counts until it is gone
        return Chooser(Truth(truth.nodes, left, truth.overcommit_percent, truth.pods, truth.elsewhere), GEOMETRIES)

    # -- making room -----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.truth.bookings)
    @rule(asking=ASKS, data=st.data(), most=st.integers(1, 3))
    def making_room(self, asking: PlaceRequest, data: st.DataObject, most: int) -> None:
        """A plan to move some says what it gains and costs, can be carried out, and then there is room; else none."""
        there = st.sampled_from(sorted(self.truth.bookings))
        chosen = self.truth.bookings if data.draw(st.booleans()) else data.draw(st.lists(there, max_size=4))
        movable = {AllocationId(each) for each in chosen}
        ways = {each: asking for each, asking in self.asked.items() if each in movable}
        before = self.fleet.booked()
        self.history.append(("look", (asking,)))
        shown = {NodeName(name): node.snapshot for name, node in self.truth.nodes.items()}
        plan = plan_moves(self.fleet, asking, shown=shown, may_move=ways.get, moves_max=most)
        assert self.fleet.booked() == before
        if plan is None:
            return
        assert self.chooser.some_place(asking) is None, "a move is planned, and there is room"
        gone = [move.allocation for move in plan.moves]
        assert set(gone) <= movable
        assert 0 < len(gone) == len(set(gone)) <= most
        wrong = wrong_with(plan, asking, self.chooser, ways)
        assert not wrong, wrong

    # -- what must hold --------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_given_twice(self) -> None:
        """No illegal layout, no home of two domains or over its size."""
        type(self).steps += 1
        wrong = self.truth.violations()
        assert not wrong, wrong

    @invariant()
    def what_namespaces_have_is_what_is_booked(self) -> None:
        """Added up booking by booking, it is what a second count of all bookings says, whatever became of the GPUs."""
        for name, (shown,) in (step for step in self.history[self.read :] if step[0] == "show"):
            assert name == "show"
            self.shown |= {gpu.uuid: gpu for gpu in shown.gpus}
        self.read = len(self.history)
        due = amounts(self.truth.bookings.values(), self.shown)
        for namespace in {*due, *self.limited}:
            used = self.fleet.namespace_usage.used(namespace)
            told = (used.gpus, used.memory_mib, used.compute_permille)
            assert told == due.get(namespace, (0, 0, 0)), f"{namespace} has {due.get(namespace)}, and counts as {told}"
        self.limited |= dict.fromkeys(due)

    def teardown(self) -> None:
        """The same history gives the same answers, and an empty fleet is as at the start."""
        self._replay()
        for allocation in sorted(self.truth.bookings):
            self._tell("unbook", AllocationId(allocation))
        self.truth.bookings.clear()
        self.truth.pods.clear()
        for name, node in self.truth.nodes.items():
            for gpu in node.snapshot.gpus:
                if gpu.mig_enabled and gpu.profiles and node.may_give(gpu):
                    self._fill(name, gpu)

    def _pods_on(self, name: str) -> int:
        return sum(booking.node == name for booking in self.fleet.booked().values())

    def _replay(self) -> None:
        fleet, answers = ClusterState(self.rules), []
        for what, args in self.history:
            if what == "ask":
                answers.append(find_place(fleet, args[0]))
            elif what == "look":
                find_place(fleet, args[0])  # nodes are named apart, by the labels that some request has asked for
            else:
                attrgetter(what)(fleet)(*args)
        assert answers == self.answers

    def _fill(self, name: str, gpu: GpuReport) -> None:
        smallest = min(gpu.profiles, key=lambda p: (p.compute_slices, p.memory_mib, len(p.name), p.name))
        claim = Claim(container="main", profile=smallest.name, only=DeviceFilter(uuids=(gpu.uuid,)))
        expected = smallest_sum(gpu, self.truth.board(gpu.uuid))
        if self.rules.pods_per_node_max is not None:
            expected = min(expected, self.rules.pods_per_node_max - self._pods_on(name))
        if self.truth.nodes[name].host is not None:
            self._tell("set_host", NodeName(name), None)
        for number in range(expected):
            place = find_place_on(self.fleet, PlaceRequest((claim,)), NodeName(name))
            assert place is not None, f"{gpu.uuid} takes only {number} of {expected} {smallest.name}"
            booking = booking_of(f"fill-{gpu.uuid}-{number}", place.node, place.devices, request="fill")
            self._tell("book", booking)
        assert find_place_on(self.fleet, PlaceRequest((claim,)), NodeName(name)) is None
