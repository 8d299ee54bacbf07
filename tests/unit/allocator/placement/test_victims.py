"""The place that a request of higher priority gets, held against every set of tenants that could go instead."""

import itertools

from factories.scheduling.placement import Shop, claim, node
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st
from judges.choosing import Chooser
from judges.placements import NodeTruth, Truth

from sluice.contracts.ids import AllocationId, NodeName
from sluice.contracts.messages import HostNeeds, HostRoom
from sluice_allocator.core.placement import Place, PlaceRequest, PreemptionPlan, find_preemption

HIGH = 10


class Contest(Shop):
    """A shop whose tenants may be evicted at their priority; None: they stay."""

    def __init__(self, *nodes, rules=None) -> None:
        super().__init__(*nodes, rules=rules)
        self.snapshots = {each.node: each for each in nodes}
        self.priorities: dict[str, int] = {}

    def tenant(self, priority: int | None, *claims, guarded: bool = False, **rest) -> str | None:
        host = HostNeeds(room=rest.get("room", HostRoom()))
        name = self.take(*claims, host=host, **rest) if rest.get("room") else self.take(*claims, **rest)
        if name is not None:
            self.may_go(name, priority, guarded=guarded)
        return name

    def may_go(self, name: str, priority: int | None, *, guarded: bool = False) -> None:
        if priority is not None:
            self.priorities[name] = priority
            self.cluster.offer_victim(AllocationId(name), priority, guarded=guarded)

    def displace(self, *claims, priority: int = HIGH, allows=lambda _devices, _victims: True, **rest):
        return find_preemption(self.cluster, PlaceRequest(claims, **rest), priority, allows)

    def names(self, found: PreemptionPlan | None) -> list[str]:
        return sorted(victim.allocation for victim in found.victims) if found is not None else []

    def truth_of(self, name: str, gone: tuple[str, ...]) -> Truth:
        host = self.cluster.nodes[NodeName(name)].facts
        left = {each: booking for each, booking in self.booked.items() if booking.node == name and each not in gone}
        return Truth({name: NodeTruth(self.snapshots[name], host)}, left)

    def loss(self, names: tuple[str, ...]) -> tuple[int, int, int]:
        memory = 0
        for device in (device for name in names for device in self.booked[name].devices):
            gpu = self.reports[device.gpu]
            sizes = {profile.name: profile.memory_mib for profile in gpu.profiles}
            own = device.share.memory_mib if device.share is not None else None
            memory += own if own is not None else sizes.get(device.profile, gpu.memory_mib)
        return max(self.priorities[name] for name in names), len(names), memory

    def losses(
        self, asking: PlaceRequest, priority: int = HIGH
    ) -> dict[tuple[str, tuple[str, ...]], tuple[int, int, int]]:
        """Every node and set of tenants whose going makes room, with what is lost."""
        found = {}
        for name in self.snapshots:
            going = [
                each
                for each, at in self.priorities.items()
                if each in self.booked and self.booked[each].node == name and at < priority
            ]
            for size in range(1, len(going) + 1):
                for gone in itertools.combinations(going, size):
                    if Chooser(self.truth_of(name, gone)).some_place(asking) is not None:
                        found[name, gone] = self.loss(gone)
        return found


def fits_without(contest: Contest, asking: PlaceRequest, node_name: str, gone: list[str]) -> bool:
    """Whether the request fits a node when exactly these have gone."""
    return Chooser(contest.truth_of(node_name, tuple(gone))).some_place(asking) is not None


def wrong_without(contest: Contest, asking: PlaceRequest, place: Place, gone: list[str]) -> list[str]:
    """What is wrong with this very place when exactly these have gone."""
    return Chooser(contest.truth_of(place.node, tuple(gone))).wrong_with(asking, place.node, place.devices)


A30_PROFILES = ("1g.6gb", "2g.12gb", "4g.24gb")
PRIORITY = st.one_of(st.none(), st.integers(0, 3))


def filled(draw, contest: Contest) -> None:
    """Tenants until nothing fits, some of whom have left again."""
    for _ in range(draw(st.integers(2, 9))):
        contest.tenant(draw(PRIORITY), claim(profile=draw(st.sampled_from(A30_PROFILES))))
    for name in list(contest.booked):
        if draw(st.integers(0, 5)) == 0:
            contest.give_back(name)


def test_a_node_that_a_pod_only_goes_to_last_is_made_free_where_there_is_no_other():
    shop = Contest(node("node-a", 1))
    small = shop.tenant(0, claim(profile="7g.40gb"))
    found = shop.displace(claim(profile="7g.40gb"), host=HostNeeds(shun=(NodeName("node-a"),)))
    assert shop.names(found) == [small]


@settings(max_examples=120, deadline=None)
@for_all(st.data())
def test_one_slice_costs_as_little_as_it_can(data):
    """No other set of tenants, on any node, would have been missed less; and no pod of equal priority goes."""
    contest = Contest(node("a", 2, model="a30-24gb"), node("b", 1, model="a30-24gb"))
    filled(data.draw, contest)
    priority = data.draw(st.integers(0, 4))
    asked = claim(profile=data.draw(st.sampled_from(A30_PROFILES)))
    if data.draw(st.booleans()):
        contest.host("a", cpu_cores=4.0)
    found = contest.displace(asked, priority=priority)
    possible = contest.losses(PlaceRequest((asked,)), priority)
    without_anybody = any(fits_without(contest, PlaceRequest((asked,)), name, []) for name in contest.snapshots)
    if without_anybody:
        return  # it is not asked then
    assert (found is None) == (not possible)
    if found is not None:
        assert found.cost == min(possible.values())
        assert contest.loss(tuple(contest.names(found))) == found.cost
        assert (found.place.node, tuple(n for n in contest.priorities if n in contest.names(found))) in possible
        assert all(victim.priority < priority for victim in found.victims)


@settings(max_examples=80, deadline=None)
@for_all(st.data())
def test_several_slices_never_cost_a_tenant_too_many(data):
    """The most important victim is as unimportant as it can be, and no victim could have stayed."""
    contest = Contest(node("a", 2, model="a30-24gb"), node("b", 2, model="a30-24gb"))
    filled(data.draw, contest)
    priority = data.draw(st.integers(1, 4))
    asked = claim(profile=data.draw(st.sampled_from(A30_PROFILES)), gpus=2)
    asking = PlaceRequest((asked,))
    if any(fits_without(contest, asking, name, []) for name in contest.snapshots):
        return
    found = contest.displace(asked, priority=priority)
    possible = contest.losses(asking, priority)
    assert (found is None) == (not possible)
    if found is None:
        return
    gone = contest.names(found)
    place = found.place
    assert found.cost[0] == min(loss[0] for loss in possible.values())
    assert not wrong_without(contest, asking, place, gone)
    for each in gone:
        others = [other for other in gone if other != each]
        assert wrong_without(contest, asking, place, others), "it could have stayed, and the place had all the same"
        assert len(gone) > 4 or not fits_without(contest, asking, place.node, others)


@settings(max_examples=80, deadline=None)
@for_all(st.data())
def test_a_share_takes_the_place_of_as_few_shares_as_it_can(data):
    """In a home of its own trust domain, or by emptying one of others; no victim could have stayed."""
    contest = Contest(node("a", 2, mig=data.draw(st.booleans()), modes=("mps", "fractional", "exclusive")))
    for _ in range(data.draw(st.integers(2, 7))):
        gib = data.draw(st.sampled_from((4, 8, 16, 30)))
        people = data.draw(st.sampled_from(("default", "others")))
        mode = data.draw(st.sampled_from(("mps", "fractional")))
        half = {"sm_partition": 40} if mode == "fractional" else {}
        contest.tenant(data.draw(PRIORITY), claim(modes=(mode,), memory_mib=gib * 1024, **half), namespace=people)
    asked = claim(modes=("mps",), memory_mib=data.draw(st.sampled_from((4, 20, 36))) * 1024)
    asking = PlaceRequest((asked,))
    if fits_without(contest, asking, "a", []):
        return
    found = contest.displace(asked)
    possible = contest.losses(asking)
    assert (found is None) == (not possible)
    if found is None:
        return
    gone = contest.names(found)
    assert found.cost[0] == min(loss[0] for loss in possible.values())
    assert fits_without(contest, asking, "a", gone)
    for each in gone:
        assert not fits_without(contest, asking, "a", [other for other in gone if other != each])
