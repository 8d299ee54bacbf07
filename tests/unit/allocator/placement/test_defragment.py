"""Plans to make room: gain and cost are true, every pod that is moved has somewhere to go, and few are moved."""

import msgspec
import pytest
from factories.scheduling.placement import Shop, claim, node
from hypothesis import given, settings
from hypothesis import strategies as st
from judges.layouts import Layouts
from perf.packing.ours import CATALOG

from sluice.contracts.ids import AllocationId
from sluice.contracts.messages import HostNeeds, HostRoom
from sluice_allocator.core.placement import NoPlace, PlaceRequest
from sluice_allocator.core.placement.defragment import MovePlan, plan_moves

LITTLE = ("1g.5gb", "1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb")
MOSTLY = st.sampled_from((True, True, True, False))
PROFILES = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")


class Room(Shop):
    def __init__(self, *nodes) -> None:
        super().__init__(*nodes)
        self.shown = {each.node: each for each in nodes}
        self.movable: dict[str, PlaceRequest] = {}

    def put(self, uuid: str, profile: str, *, movable: bool, **rest) -> str:
        name = self.take_on(uuid, claim(profile=profile), **rest)
        if movable:
            self.movable[name] = PlaceRequest((claim(profile=profile),))
        return name

    def plan(self, *claims, moves_max: int = 3, **rest) -> MovePlan | None:
        return plan_moves(
            self.cluster, PlaceRequest(claims, **rest), shown=self.shown, may_move=self.movable.get, moves_max=moves_max
        )


@pytest.mark.parametrize(
    ("there", "elsewhere"),
    [
        # A restart that its owner did not agree to is lost work.
        ([("1g.5gb", False)], "3g.20gb"),
        # It would wait in the stead of the one that it makes room for.
        ([("1g.5gb", True)], "7g.40gb"),
        # Each fits somewhere alone; both must fit together, and beside the one that they make room for.
        ([("3g.20gb", True)] * 2, "3g.20gb"),
    ],
)
def test_no_pod_is_moved_that_may_not_or_has_nowhere_to_go(there, elsewhere):
    room = Room(node("node-a", 1), node("node-b", 1))
    for profile, movable in there:
        room.put("GPU-node-a-0", profile, movable=movable)
    room.put("GPU-node-b-0", elsewhere, movable=False)
    assert room.plan(claim(profile="7g.40gb")) is None


def test_who_makes_room_for_one_that_wants_an_idle_gpu_goes_to_another():
    """Beside its new place it would be in the way again, and a restart was for nothing."""
    alone = claim(modes=("fractional",), sm_partition=20, memory_mib=1000)
    room = Room(node("node-a", 1))
    room.put("GPU-node-a-0", "1g.5gb", movable=True)
    assert room.plan(alone, gpu_policy="mutex", moves_max=1) is None
    room = Room(node("node-a", 1), node("node-b", 1))
    room.put("GPU-node-a-0", "1g.5gb", movable=True)
    room.put("GPU-node-b-0", "1g.5gb", movable=False)
    plan = room.plan(alone, gpu_policy="mutex", moves_max=1)
    assert [move.to.devices[0].gpu for move in plan.moves] == ["GPU-node-b-0"]


def test_no_pod_is_moved_for_one_that_has_room():
    """It may wait for something else, its quota say: a restart would not help it."""
    room = Room(node("node-a", 1), node("node-b", 1, mig=False), node("node-c", 1))
    room.put("GPU-node-a-0", "1g.5gb", movable=True)
    room.put("GPU-node-c-0", "1g.5gb", movable=True)
    assert not isinstance(room.ask(claim()), NoPlace)
    assert room.plan(claim()) is None


def test_the_fewest_are_moved():
    room = Room(node("node-a", 1), node("node-b", 1), node("node-c", 1))
    for _ in range(3):
        room.put("GPU-node-a-0", "1g.5gb", movable=True)
    room.put("GPU-node-b-0", "2g.10gb", movable=True)
    room.put("GPU-node-c-0", "3g.20gb", movable=False)
    plan = room.plan(claim(profile="7g.40gb"))
    assert (plan.place.node, len(plan.moves)) == ("node-b", 1)


def test_no_more_are_moved_than_the_rule_says():
    """A plan with ten restarts is not what an operator wants."""
    room = Room(node("node-a", 1), node("node-b", 1))
    for _ in range(3):
        room.put("GPU-node-a-0", "1g.5gb", movable=True)
    room.put("GPU-node-b-0", "3g.20gb", movable=False)
    assert room.plan(claim(profile="7g.40gb"), moves_max=2) is None
    assert room.plan(claim(profile="7g.40gb"), moves_max=3) is not None


def test_a_pod_may_move_aside_on_its_own_gpu():
    """A 1g in the middle of a GPU is in the way of a 4g, and needs no other GPU to go to."""
    room = Room(node("node-a", 1))
    kept = [room.put("GPU-node-a-0", "1g.5gb", movable=True) for _ in range(7)]
    low = {name: room.devices(name)[0].start for name in kept}
    for name in sorted(kept, key=lambda each: low[each])[1:5]:
        room.give_back(name)
        del room.movable[name]
    assert isinstance(room.ask(claim(profile="4g.20gb")), NoPlace)
    plan = room.plan(claim(profile="4g.20gb"))
    assert [(each.to.devices[0].gpu, each.to.devices[0].start >= 4) for each in plan.moves] == [("GPU-node-a-0", True)]


def test_the_room_on_the_node_counts_for_those_who_are_moved():
    room = Room(node("node-a", 1), node("node-b", 1))
    room.host("node-a", cpu_cores=8.0)
    room.host("node-b", cpu_cores=1.0)
    room.put("GPU-node-b-0", "1g.5gb", movable=False)
    small = room.put("GPU-node-a-0", "1g.5gb", movable=True, room=HostRoom(cpu_milli=4000))
    host = HostNeeds(room=HostRoom(cpu_milli=4000))
    room.movable[small] = PlaceRequest((claim(profile="1g.5gb"),), host=host)
    assert room.plan(claim(profile="7g.40gb")) is None
    room.host("node-b", cpu_cores=8.0)
    assert room.plan(claim(profile="7g.40gb")) is not None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(LITTLE), MOSTLY), min_size=5, max_size=14), st.data())
def test_every_plan_can_be_carried_out(tenants: list[tuple[int, str, bool]], data: st.DataObject):
    """Each step is possible as written: the new places beside the old ones, then the large one when they are gone."""
    room = Room(*(node(f"node-{number}", 1) for number in range(4)))
    layouts = Layouts.of_catalog(CATALOG)
    for number in range(4):
        layouts.has_model(f"GPU-node-{number}-0", "a100-40gb", mig=True)
    for number, profile, movable in tenants:
        try:
            name = room.put(f"GPU-node-{number}-0", profile, movable=movable)
        except AssertionError:
            continue
        assert layouts.grant(name, "default", msgspec.to_builtins(room.devices(name))) == []
    wanted = data.draw(st.sampled_from(PROFILES[3:]))
    before = room.cluster.booked()
    plan = room.plan(claim(profile=wanted))
    assert room.cluster.booked() == before
    if plan is None:
        return
    assert 0 < len(plan.moves) <= 3
    for move in plan.moves:
        assert move.allocation in room.movable
        assert layouts.grant(f"new {move.allocation}", "default", msgspec.to_builtins(move.to.devices)) == []
    for move in plan.moves:
        layouts.release(move.allocation)
    assert layouts.grant("large", "default", msgspec.to_builtins(plan.place.devices)) == []
    assert all(AllocationId(move.allocation) in before for move in plan.moves)
