"""A place for later: what it waits for, that no pod is waited for in vain, and that it is really to be had then."""

from random import Random

import msgspec
import pytest
from factories.scheduling.allocator import gpu_report, snapshot
from factories.words import booking_of
from hypothesis import given, settings
from hypothesis import strategies as st
from perf.packing.others import SPANS

from sluice.contracts import messages as msg
from sluice.contracts.ids import AllocationId, GpuUuid, NodeName
from sluice_allocator.core.placement import (
    ClusterState,
    NoPlace,
    Place,
    PlaceRequest,
    ReservedPlace,
    find_place,
    find_place_on,
    reserve,
)
from sluice_allocator.core.placement.reserve import find_reservation

PROFILES = tuple(SPANS)


class Yard:
    def __init__(self, *nodes: msg.NodeSnapshot, facts: msg.HostFacts | None = None) -> None:
        self.cluster = ClusterState()
        self.shown = {seen.node: seen for seen in nodes}
        self.fixed: set[str] = set()
        """Allocations that may not be waited for."""
        self.leaving: set[str] = set()
        for seen in nodes:
            self.cluster.set_host(seen.node, facts)
            self.cluster.show(seen)
            self.cluster.set_usable(seen.node)

    def book(self, name: str, node: str, *devices: msg.DeviceGrant, room: msg.HostRoom = msg.HostRoom()) -> None:  # noqa: B008
        self.cluster.book(booking_of(name, node, devices, room=room))

    def take(self, name: str, *claims: msg.Claim, room: msg.HostRoom = msg.HostRoom()) -> Place:  # noqa: B008
        place = find_place(self.cluster, PlaceRequest(claims, host=msg.HostNeeds(room=room)))
        self.book(name, place.node, *place.devices, room=room)
        return place

    def promise(self, *claims: msg.Claim, host: msg.HostNeeds = msg.HostNeeds()) -> ReservedPlace | None:  # noqa: B008
        return find_reservation(
            self.cluster,
            PlaceRequest(claims, host=host),
            shown=self.shown,
            wait_for=lambda each: None if each in self.fixed else int(each not in self.leaving),
            open_to=lambda _: True,
        )

    def waits_for(self, *claims: msg.Claim, **rest: msg.HostNeeds) -> tuple[str, ...] | None:
        """The tenants that such a pod would wait for; None without a promise."""
        promise = self.promise(*claims, **rest)
        return promise.after if promise is not None else None


def at(gpu: str, profile: str | None, start: int) -> msg.DeviceGrant:
    size = SPANS[profile][0] if profile is not None else 8
    return msg.DeviceGrant(container="main", gpu=GpuUuid(gpu), profile=profile, start=start, size=size)


def exactly(profile: str | None, gpus: int = 1) -> msg.Claim:
    """So many instances of this profile, or whole GPUs."""
    return msg.Claim(container="main", profile=profile, gpus=gpus)


def two_gpus(mig: bool = True) -> Yard:
    """One node with two A100-40GB, which may be shared."""
    gpus = tuple(gpu_report("node-a", index, mig=mig) for index in range(2))
    return Yard(snapshot("node-a", gpus, modes=("exclusive", "mps", "fractional")))


def test_a_node_that_a_pod_only_goes_to_last_is_promised_where_there_is_no_other():
    """On a single node it would wait for as long as others come, and be passed over by each of them."""
    yard = Yard(snapshot("node-a", (gpu_report("node-a", 0),)))
    yard.take("a", exactly("7g.40gb"))
    assert yard.waits_for(exactly("7g.40gb"), host=msg.HostNeeds(shun=(NodeName("node-a"),))) == ("a",)


@pytest.mark.parametrize(
    ("booked", "leaving", "fixed", "after"),
    [
        # Of two single tenants the smaller: more of its span is free already, and others would take that bit by bit.
        ({"large": (0, "3g.20gb", 0), "small": (1, "1g.5gb", 6)}, (), (), {"small"}),
        # Two that are being taken away are sooner gone than one that stays.
        (
            {"leaves": (0, "3g.20gb", 0), "leaves-too": (0, "3g.20gb", 4), "stays": (1, "7g.40gb", 0)},
            ("leaves", "leaves-too"),
            (),
            {"leaves", "leaves-too"},
        ),
        # One that waits for others itself, or is not in the ledger, can be in no promise: it would have no end.
        ({"first": (0, "1g.5gb", 0), "second": (1, "3g.20gb", 0)}, (), ("first",), {"second"}),
        ({"first": (0, "1g.5gb", 0), "second": (1, "3g.20gb", 0)}, (), ("first", "second"), None),
    ],
)
def test_a_pod_waits_for_those_who_are_gone_soonest(booked, leaving, fixed, after):
    yard = two_gpus()
    for name, (index, profile, start) in booked.items():
        yard.book(name, "node-a", at(f"GPU-node-a-{index}", profile, start))
    yard.leaving, yard.fixed = set(leaving), set(fixed)
    found = yard.waits_for(exactly("7g.40gb"))
    assert (set(found) if found is not None else None) == after


def test_engines_that_are_used_beside_the_span_are_waited_for():
    """Only one +me instance fits on a GPU: one whose span is free waits for the tenant that has the engines."""
    yard = Yard(snapshot("node-a", (gpu_report("node-a", 0),)))
    yard.book("engines", "node-a", msgspec.structs.replace(at("GPU-node-a-0", "1g.5gb", 0), profile="1g.5gb+me"))
    yard.book("beside", "node-a", at("GPU-node-a-0", "1g.5gb", 1))
    assert yard.waits_for(exactly("1g.5gb+me")) == ("engines",)


def test_a_cordoned_gpu_is_not_promised():
    """A new slice never lands where an operator wants nothing new, not even later."""
    yard = two_gpus()
    yard.book("first", "node-a", at("GPU-node-a-0", "1g.5gb", 0))
    yard.book("second", "node-a", at("GPU-node-a-1", "3g.20gb", 0))
    yard.cluster.cordon(NodeName("node-a"), frozenset({GpuUuid("GPU-node-a-0")}))
    assert yard.waits_for(exactly("7g.40gb")) == ("second",)


def test_a_whole_gpu_without_mig_waits_for_its_tenant():
    """Full GPUs without MIG are on no shelf; they are promised all the same."""
    yard = two_gpus(mig=False)
    yard.take("first", exactly(None))
    yard.take("second", exactly(None))
    yard.fixed = {"first"}
    assert yard.waits_for(exactly(None)) == ("second",)


def test_several_gpus_of_one_node_wait_only_for_those_in_the_way():
    """Two free GPUs and two full ones: a pod of three waits for one of the full ones, not for all of the node."""
    yard = Yard(snapshot("node-a", tuple(gpu_report("node-a", index) for index in range(4))))
    for number in range(4):
        yard.book(f"crowd-{number}", "node-a", at("GPU-node-a-0", "1g.5gb", number))
    yard.book("alone", "node-a", at("GPU-node-a-3", "7g.40gb", 0))
    promise = yard.promise(exactly("7g.40gb", gpus=3))
    assert promise.after == (AllocationId("alone"),)
    assert {device.gpu for device in promise.place.devices} == {f"GPU-node-a-{index}" for index in (1, 2, 3)}


def test_a_share_waits_for_a_tenant_of_its_home():
    """A home that is full of its own trust domain: one of them must end, not all."""
    yard = two_gpus(mig=False)
    half = msg.Claim(container="main", modes=("fractional",), sm_partition=50)
    for number in range(4):
        yard.take(f"half-{number}", half)
    assert len(yard.waits_for(half)) == 1


def test_cpu_that_others_hold_is_waited_for():
    """The GPU is free and the node's CPU is not: a promise without it could never be kept."""
    facts = msg.HostFacts(cpu_cores=8.0, memory_mib=65536, pods_free=110)
    yard = Yard(snapshot("node-a", tuple(gpu_report("node-a", index) for index in range(2))), facts=facts)
    yard.take("busy", exactly("1g.5gb"), room=msg.HostRoom(cpu_milli=6000))
    yard.take("light", exactly("1g.5gb"), room=msg.HostRoom(cpu_milli=500))
    need = msg.HostNeeds(room=msg.HostRoom(cpu_milli=6000))
    assert yard.waits_for(exactly("7g.40gb"), host=need) == ("busy",)
    assert yard.promise(exactly("7g.40gb"), host=msg.HostNeeds(room=msg.HostRoom(cpu_milli=9000))) is None


def test_a_named_node_and_a_named_gpu_are_kept_to():
    """A pod that may run on one node only is promised a place there or none."""
    yard = Yard(*(snapshot(f"node-{letter}", (gpu_report(f"node-{letter}", 0),)) for letter in "ab"))
    yard.book("small", "node-a", at("GPU-node-a-0", "1g.5gb", 0))
    yard.book("large", "node-b", at("GPU-node-b-0", "7g.40gb", 0))
    there = yard.promise(exactly("7g.40gb"), host=msg.HostNeeds(node_name="node-b"))
    named = msg.Claim(container="main", profile="7g.40gb", only=msg.DeviceFilter(uuids=(GpuUuid("GPU-node-b-0"),)))
    assert there.after == (AllocationId("large"),)
    assert yard.promise(named) == there
    assert yard.promise(exactly("7g.40gb"), host=msg.HostNeeds(node_name="node-c")) is None


def test_asking_changes_nothing():
    """A promise that is looked for leaves the fleet as it was: lanes of shares, layouts, room."""
    yard = two_gpus(mig=False)
    for number, percent in enumerate((30, 40, 25)):
        yard.take(f"share-{number}", msg.Claim(container="main", modes=("fractional",), sm_partition=percent))
    ask = PlaceRequest((msg.Claim(container="main", modes=("fractional",), sm_partition=60),))
    before = find_place(yard.cluster, ask), yard.cluster.booked()
    assert yard.promise(msg.Claim(container="main", gpus=2)) is not None
    assert (find_place(yard.cluster, ask), yard.cluster.booked()) == before


def test_the_cost_does_not_grow_with_the_fleet(monkeypatch: pytest.MonkeyPatch):
    """Of a thousand GPUs in one state some are looked at, and one node is tried out."""
    nodes = [
        snapshot(f"node-{n:03}", tuple(gpu_report(f"node-{n:03}", index) for index in range(8))) for n in range(125)
    ]
    yard = Yard(*nodes)
    for seen in nodes:
        for gpu in seen.gpus:
            yard.book(f"tenant-{gpu.uuid}", seen.node, at(gpu.uuid, "3g.20gb", 0))
    looked, search = [], reserve._ReservationSearch
    spot_on = search._spot_on
    monkeypatch.setattr(search, "_spot_on", lambda self, gpu, name: looked.append(gpu) or spot_on(self, gpu, name))
    assert yard.promise(exactly("7g.40gb")) is not None
    assert len(looked) <= reserve.GPUS_LOOKED_AT_MAX + 1


def fewest(yard: Yard, profile: str) -> int | None:
    """How many tenants stand in the way of the best span in the fleet: a second way to count, by the GPU's manual."""
    size, starts = SPANS[profile]
    best: int | None = None
    for gpu in (each.uuid for seen in yard.shown.values() for each in seen.gpus):
        spans = [
            (name, device.start, device.start + device.size)
            for name, booking in yard.cluster.booked().items()
            for device in booking.devices
            if device.gpu == gpu
        ]
        for start in starts:
            there = {name for name, first, end in spans if first < start + size and start < end}
            if not there & yard.fixed and (best is None or len(there) < best):
                best = len(there)
    return best


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 30), gpus=st.integers(1, 4), crowd=st.integers(3, 30), asked=st.sampled_from(PROFILES))
def test_a_promise_can_be_kept_and_waits_for_no_pod_in_vain(seed: int, gpus: int, crowd: int, asked: str):
    """When those are gone the place is free; as long as one of them is there it is not; and no fewer would do."""
    random = Random(seed)
    yard = Yard(*(snapshot(f"node-{n}", (gpu_report(f"node-{n}", 0),)) for n in range(gpus)))
    for number in range(crowd):
        found = find_place(yard.cluster, PlaceRequest((exactly(random.choice(PROFILES)),), gpu_policy="spread"))
        if isinstance(found, Place):
            yard.book(f"t{number}", found.node, *found.devices)
            if random.random() < 0.2:
                yard.fixed.add(f"t{number}")
    asking = PlaceRequest((exactly(asked),))
    if isinstance(find_place(yard.cluster, asking), Place):
        return
    promise, least = yard.promise(exactly(asked)), fewest(yard, asked)
    if promise is None:
        assert least is None
        return
    assert not yard.fixed & set(promise.after)
    assert len(promise.after) == least
    bookings = {each: yard.cluster.booking(each) for each in promise.after}
    for each in bookings:
        yard.cluster.unbook(each)
    assert find_place_on(yard.cluster, asking, promise.place.node) is not None
    for booking in bookings.values():
        assert booking is not None
        yard.cluster.book(booking)
        assert isinstance(find_place(yard.cluster, asking), NoPlace)
        yard.cluster.unbook(booking.allocation)
