"""The judge of places must be able to judge: each fault is shown to it once, and a good fleet is not blamed."""

import pytest
from factories.scheduling.placement import claim, node
from factories.words import booking_of
from judges.agreement import Runs, disagreements
from judges.choosing import Chooser
from judges.placements import NodeTruth, Truth, fits_side_by_side
from msgspec.structs import replace

from sluice.contracts.ids import GpuUuid
from sluice.contracts.messages import DeviceFilter, DeviceGrant, HostFacts, HostNeeds, HostRoom, Share
from sluice_allocator.core.placement import PlaceRequest

GPU, PLAIN = GpuUuid("GPU-node-a-0"), GpuUuid("GPU-node-b-0")
PERCENT_50 = Share(mode="fractional", uid=0, memory_mib=1000, sm_partition=50)


def on(profile: str | None, start: int, size: int, share: Share | None = None, gpu: GpuUuid = GPU) -> DeviceGrant:
    return DeviceGrant(container="main", gpu=gpu, profile=profile, start=start, size=size, share=share)


def whole(share: Share | None = None) -> DeviceGrant:
    return on(None, 0, 8, share, PLAIN)


def truth(*grants: DeviceGrant, namespaces: tuple[str, ...] = ()) -> Truth:
    """A GPU with MIG on node-a and one without on node-b, with these devices given one by one."""
    found = Truth({"node-a": NodeTruth(node("node-a", 1)), "node-b": NodeTruth(node("node-b", 1, mig=False))})
    for number, grant in enumerate(grants):
        place = "node-a" if grant.gpu == GPU else "node-b"
        namespace = namespaces[number] if namespaces else "default"
        found.bookings[str(number)] = booking_of(str(number), place, (grant,), namespace=namespace)
    return found


@pytest.mark.parametrize(
    ("grants", "namespaces"),
    [
        ((), ()),
        ((on("3g.20gb", 4, 4), on("2g.10gb", 0, 2), on("1g.5gb", 2, 1), on("1g.5gb", 3, 1)), ()),
        ((whole(),), ()),
        ((whole(PERCENT_50), whole(PERCENT_50)), ()),
        ((on("3g.20gb", 4, 4, replace(PERCENT_50, sm_partition=20)), on("3g.20gb", 0, 4)), ()),
        ((on("1g.5gb", 0, 1, replace(PERCENT_50, sm_partition=7)), on("1g.5gb", 1, 1)), ("a", "b")),
    ],
)
def test_a_good_fleet_is_not_blamed(grants, namespaces):
    assert truth(*grants, namespaces=namespaces).violations() == []


@pytest.mark.parametrize(
    ("grants", "namespaces", "why"),
    [
        ((on("1g.5gb", 0, 1), on("1g.5gb", 0, 1)), (), "overlaps"),
        ((on("3g.20gb", 0, 4), on("1g.5gb", 3, 1)), (), "overlaps"),
        ((on("3g.20gb", 2, 4),), (), "cannot be at"),
        ((on("9g.90gb", 0, 1),), (), "no profile"),
        ((on("1g.5gb+me", 0, 1), on("1g.5gb+me", 1, 1)), (), "2 instances"),
        ((on("1g.5gb", 0, 1, gpu=PLAIN),), (), "no MIG"),
        ((whole(), whole()), (), "beside"),
        ((whole(), whole(PERCENT_50)), (), "beside"),
        ((whole(PERCENT_50), whole(replace(PERCENT_50, sm_partition=51))), (), "wider than"),
        ((whole(PERCENT_50), whole(replace(PERCENT_50, uid=7))), (), "trust domains"),
        ((whole(PERCENT_50), whole(PERCENT_50)), ("a", "b"), "trust domains"),
        ((whole(PERCENT_50), whole(Share(mode="mps", uid=0, memory_mib=1))), (), "several modes"),
        ((whole(replace(PERCENT_50, memory_mib=40000)), whole(PERCENT_50)), (), "MiB of"),
        ((on("1g.5gb", 0, 1, replace(PERCENT_50, sm_partition=15)),), (), "wider than"),
        ((on("1g.5gb", 0, 1, replace(PERCENT_50, sm_partition=1)), on("1g.5gb", 0, 1)), (), "overlaps"),
        (tuple(whole(replace(PERCENT_50, sm_partition=1, memory_mib=1)) for _ in range(49)), (), "49 tenants"),
    ],
)
def test_every_fault_of_what_is_booked_is_seen(grants, namespaces, why):
    assert why in " ".join(truth(*grants, namespaces=namespaces).violations())


def test_shares_that_take_turns_are_as_wide_as_their_lanes():
    """Two halves of a window on the same SMs are one lane; three are too much."""
    half = (100, 500)
    assert fits_side_by_side([half, half], taking_turns=True)
    assert not fits_side_by_side([half, half], taking_turns=False)
    assert not fits_side_by_side([half, half, half], taking_turns=True)
    assert fits_side_by_side([(60, 500), (60, 500), (40, 1000)], taking_turns=True)
    assert not fits_side_by_side([(60, 600), (60, 600)], taking_turns=True)


SMALL, AT_0 = claim(profile="1g.5gb"), on("1g.5gb", 0, 1)
ON_ANOTHER = claim(profile="1g.5gb", only=DeviceFilter(not_uuids=(GPU,)))


@pytest.mark.parametrize(
    ("asked", "more", "device", "why"),
    [
        (SMALL, {}, on("2g.10gb", 0, 2), "expected 1g.5gb"),
        (claim(profile="1g.5gb", gpus=2), {}, AT_0, "1 of 2 devices"),
        (SMALL, {}, on("1g.5gb", 4, 1), "overlaps"),
        (ON_ANOTHER, {}, AT_0, "may not"),
        (SMALL, {"gpu_policy": "mutex"}, AT_0, "may not"),
        (claim(), {}, whole(), "is not on node-a"),
        (claim(modes=("mps",), memory_mib=9), {}, AT_0, "modes"),
        (SMALL, {"host": HostNeeds(node_name="node-b")}, AT_0, "must be on"),
        (SMALL, {"host": HostNeeds(room=HostRoom(cpu_milli=3000))}, AT_0, "CPU"),
    ],
)
def test_every_fault_of_an_answer_is_seen(asked, more, device, why):
    """Wrong size, number, place, device, node: each is blamed before anything is booked."""
    found = truth(on("3g.20gb", 4, 4))
    found.nodes["node-a"].host = HostFacts(cpu_cores=2.0, memory_mib=100, pods_free=9)
    assert why in " ".join(Chooser(found).wrong_with(PlaceRequest((asked,), **more), "node-a", (device,)))


def test_a_place_that_was_overlooked_is_found():
    """Brute force finds the last place of each kind, and none where there is none."""
    full = replace(PERCENT_50, sm_partition=70)
    chooser = Chooser(truth(on("3g.20gb", 4, 4), on("2g.10gb", 0, 2), whole(full)))
    assert chooser.some_place(PlaceRequest((claim(profile="2g.10gb"),)))
    assert chooser.some_place(PlaceRequest((claim(modes=("fractional",), sm_partition=30),)))
    assert not chooser.some_place(PlaceRequest((claim(modes=("fractional",), sm_partition=31),)))
    assert not chooser.some_place(PlaceRequest((claim(profile="2g.10gb", gpus=2),)))
    assert not chooser.some_place(PlaceRequest((claim(modes=("fractional",), shares_percent=31),)))


def entry(request: str, start: int, *, kind: str = "Grant") -> dict:
    device = {"gpu": "GPU-0", "profile": "1g.5gb", "start": start, "size": 1}
    booking = {"node": "n1", "allocation": f"{request}_1", "request": request, "devices": [device]}
    return {"type": kind, "booking": booking}


def machine(**uuids: int) -> dict:
    """The only node's hardware: instances by UUID, and where they start."""
    instances = [{"start": start, "size": 1, "uuid": uuid} for uuid, start in uuids.items()]
    return {"node": "n1", "gpus": [{"uuid": "GPU-0", "instances": instances}]}


def running(*devices: str, node: str = "n1") -> Runs:
    return Runs(node, frozenset(devices))


def test_what_agrees_is_left_alone() -> None:
    ledger = [entry("a", 0), entry("b", 1), {"type": "NodeOpened"}, {"type": "Closed"}]
    assert disagreements(ledger, [machine(one=0, two=1)], {"a": running("one"), "b": running("two")}) == []


@pytest.mark.parametrize(
    ("ledger", "hardware", "pods", "found"),
    [
        ([entry("a", 0)], machine(), {"a": running("one")}, "no instance is there"),
        ([], machine(one=0), {}, "is not booked"),
        ([entry("a", 0)], machine(one=0), {}, "does not run"),
        ([entry("a", 0)], machine(one=0), {"a": running("old")}, "runs on ['old']"),
        ([entry("a", 0)], machine(one=0), {"a": running("one", node="n2")}, "runs on n2"),
        ([], machine(), {"a": running("one")}, "runs on ['one']"),
        ([entry("a", 0), entry("b", 0)], machine(one=0), {"a": running("one"), "b": running("one")}, "booked twice"),
        ([entry("a", 0, kind="Revoke")], machine(one=0), {"a": running("one")}, "being taken back"),
    ],
    ids=["not made", "leaked", "no pod", "old device", "other node", "no grant", "twice", "leaving"],
)
def test_what_differs_is_named(ledger: list[dict], hardware: dict, pods: dict[str, Runs], found: str) -> None:
    """Whatever one of the three says alone is a slice that is leaked, or given twice, or a pod without one."""
    assert found in "; ".join(disagreements(ledger, [hardware], pods))
