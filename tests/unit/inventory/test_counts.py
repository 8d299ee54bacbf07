"""The numbers that people read: per GPU and over the fleet."""

from types import SimpleNamespace

import msgspec
import pytest
from factories.inventory import AT, EMPTY_A100, NODE, gpu_report, news, snapshot
from factories.words import booking_of

from sluice.contracts import messages as msg
from sluice.contracts.ids import GpuUuid, NodeName
from sluice.runtime.prometheus.metrics import MetricRegistry
from sluice_inventory.core.counts import GpuUse, NodeUse, SlotState, fleet_use, gpu_uses
from sluice_inventory.core.events import PullSucceeded
from sluice_inventory.shell.metrics import FleetMetrics

GPU = GpuUuid("GPU-1")


def booked(allocation: str, profile: str, start: int, size: int, *, state="ready", revoked=False) -> msg.SliceReport:
    """A slice of the journal."""
    device = msg.DeviceGrant(container="main", gpu=GPU, profile=profile, start=start, size=size)
    return msg.SliceReport(booking=booking_of(allocation, NODE, (device,)), revision=1, state=state, revoked=revoked)


def instance(profile: str, start: int, size: int, allocation: str | None) -> msg.InstanceReport:
    place = {"gi_id": start, "profile": profile, "start": start, "size": size, "uuid": f"MIG-{start}"}
    return msg.InstanceReport(**place, allocation=allocation)


def use(*slices: msg.SliceReport, **gpu) -> GpuUse:
    (found,) = gpu_uses(snapshot(gpus=(gpu_report(**gpu),), slices=slices))
    return found


def shared(report: msg.SliceReport, *, devices: int = 1) -> msg.SliceReport:
    """The same slice as a share of its place, for so many containers."""
    share = msg.Share(mode="mps", uid=1000, memory_mib=4096)
    (device,) = report.booking.devices
    parts = tuple(msgspec.structs.replace(device, container=f"c{at}", share=share) for at in range(devices))
    return msgspec.structs.replace(report, booking=msgspec.structs.replace(report.booking, devices=parts))


def test_shares_of_one_instance_take_its_slices_once():
    """Each tenant is a slot of its own with its share; none looks broken for lack of an own instance."""
    first, second = shared(booked("a", "3g.20gb", 4, 4)), shared(booked("b", "3g.20gb", 4, 4), devices=2)
    found = use(first, second, instances=(instance("3g.20gb", 4, 4, "a"),))
    assert (found.slices_in_use, found.created) == (4, {"3g.20gb": 1})
    assert [(slot.allocation, slot.container, slot.state, slot.uuid) for slot in found.slots] == [
        ("a", "c0", SlotState.IN_USE, "MIG-4"),
        ("b", "c0", SlotState.IN_USE, "MIG-4"),
        ("b", "c1", SlotState.IN_USE, "MIG-4"),
    ]
    assert all(slot.share is not None for slot in found.slots)


def test_a_share_whose_instance_is_lost_is_told():
    (slot,) = use(shared(booked("a", "3g.20gb", 4, 4))).slots
    assert (slot.state, slot.uuid) == (SlotState.BROKEN, "")


def test_an_empty_a100_offers_19():
    """The sum of what fits on an empty A100-40GB, and nothing in use."""
    found = use()
    assert found.creatable_total == 19
    assert (found.slices_in_use, found.slices_total, found.allocated_fraction) == (0, 8, 0.0)
    assert (found.slots, found.created, found.foreign, found.quarantined) == ((), {}, 0, 0)


def test_a_gpu_given_whole_offers_nothing():
    found = use(booked("a", "7g.40gb", 0, 8), instances=(instance("7g.40gb", 0, 8, "a"),), creatable={})
    assert (found.creatable_total, found.allocated_fraction, found.created) == (0, 1.0, {"7g.40gb": 1})


def test_each_slot_has_its_owner():
    """Ours with owner and container, foreign ones without."""
    report = booked("a", "1g.5gb", 6, 1)
    found = use(report, instances=(instance("1g.5gb", 6, 1, "a"), instance("3g.20gb", 0, 4, None)))
    foreign, ours = found.slots
    assert (foreign.state, foreign.owner, foreign.allocation) == (SlotState.FOREIGN, None, "")
    assert (ours.state, ours.owner, ours.container, ours.uuid) == (SlotState.IN_USE, report, "main", "MIG-6")
    assert (found.created, found.foreign, found.slices_in_use) == ({"1g.5gb": 1}, 1, 5)


def test_a_place_that_is_booked_but_not_made_yet_is_not_shown_as_free():
    """Planned slices and slices being created count as in use."""
    found = use(booked("a", "3g.20gb", 4, 4, state="making"))
    assert [(slot.state, slot.uuid) for slot in found.slots] == [(SlotState.ORDERED, "")]
    assert (found.slices_in_use, found.created) == (4, {})


def test_a_slice_booked_behind_one_that_is_leaving_counts_once():
    """Two on the same memory slices are not more than the GPU has."""
    leaving = booked("a", "7g.40gb", 0, 8, state="unmaking", revoked=True)
    waiting = booked("b", "7g.40gb", 0, 8, state="planned")
    found = use(leaving, waiting, instances=(instance("7g.40gb", 0, 8, "a"),))
    assert [slot.state for slot in found.slots] == [SlotState.RETURNING, SlotState.ORDERED]
    assert found.allocated_fraction == 1.0


def test_a_ready_slice_without_its_instance_is_shown_as_broken():
    assert use(booked("a", "2g.10gb", 4, 2)).slots[0].state is SlotState.BROKEN


def test_a_quarantined_place_is_counted_once():
    held = booked("a", "1g.5gb", 6, 1, state="quarantined")
    places = (msg.PlacementReport(start=6, size=1), msg.PlacementReport(start=4, size=2))
    found = use(held, instances=(instance("1g.5gb", 6, 1, "a"),), quarantined=places)
    assert [(slot.start, slot.state) for slot in found.slots] == [(at, SlotState.QUARANTINED) for at in (4, 6)]
    assert (found.quarantined, found.slices_in_use) == (2, 3)


def test_tenants_of_a_closed_shared_device_keep_their_shares():
    """Their MPS daemon is in trouble: as quarantined slices they would seem to be given up."""
    tenants = [shared(booked(name, "3g.20gb", 4, 4)) for name in ("a", "b")]
    closed = (msg.PlacementReport(start=4, size=4),)
    found = use(*tenants, instances=(instance("3g.20gb", 4, 4, "a"),), quarantined=closed)
    assert [(slot.allocation, slot.state) for slot in found.slots] == [("a", SlotState.IN_USE), ("b", SlotState.IN_USE)]
    assert (found.quarantined, found.slices_in_use) == (1, 4)


def node(name: str, *, stale: bool = False, **gpu) -> NodeUse:
    inventory = msg.NodeInventory(snapshot=snapshot(gpus=(gpu_report(**gpu),)), stale=stale, observed_at=AT)
    return NodeUse(NodeName(name), inventory, gpu_uses(inventory.snapshot))


def test_stale_nodes_and_unhealthy_gpus_offer_nothing():
    total = fleet_use([node("a"), node("b"), node("c", stale=True), node("d", healthy=False)])
    assert (total.nodes, total.nodes_stale, total.gpus, total.gpus_unhealthy) == (4, 1, 4, 1)
    assert (total.slices_total, total.slices_in_use) == (32, 0)
    assert total.creatable == {profile: 2 * count for profile, count in sorted(EMPTY_A100.items())}
    assert total.creatable_total == 38


def test_a_free_instance_of_a_fixed_layout_is_neither_foreign_nor_in_use():
    """An administrator's GPUs would look full of foreign instances before the first pod comes."""
    free, taken = instance("3g.20gb", 0, 4, None), instance("2g.10gb", 4, 2, "a1")
    broken = msgspec.structs.replace(instance("1g.5gb", 6, 1, None), unusable="it has no compute instance")
    found = use(booked("a1", "2g.10gb", 4, 2), fixed_layout=True, instances=(free, taken, broken))
    assert [(slot.start, slot.state, slot.message) for slot in found.slots] == [
        (0, SlotState.OFFERED, ""),
        (4, SlotState.IN_USE, ""),
        (6, SlotState.UNUSABLE, "it has no compute instance"),
    ]
    assert (found.slices_in_use, found.foreign, found.created) == (3, 0, {"2g.10gb": 1})


def test_an_instance_that_is_booked_is_not_offered_any_more():
    """The same place would be counted as free and as ordered."""
    free = instance("3g.20gb", 0, 4, None)
    found = use(booked("a1", "3g.20gb", 0, 4, state="making"), fixed_layout=True, instances=(free,))
    assert [(slot.start, slot.state) for slot in found.slots] == [(0, SlotState.ORDERED)]


def shown(fleet: FleetMetrics) -> dict[tuple[str, ...], float]:
    counts = MetricRegistry()
    with counts.collecting_from(fleet.now):
        return {(m.name, *labels): value for m, series in counts.samples().items() for labels, value in series.items()}


def pulled(bench, generation: int, **gpu) -> None:
    bench.hear(news(generation))
    bench.feed(PullSucceeded(NODE, snapshot(generation, gpus=(gpu_report(**gpu),)), AT))


@pytest.fixture
def fleet(bench) -> FleetMetrics:
    return FleetMetrics(bench.core, SimpleNamespace(monotonic=lambda: bench.now))


def test_metrics_show_unhealthy_gpus_and_quarantined_places(bench, fleet):
    assert shown(fleet)["sluice_inventory_nodes", "fresh"] == 0
    pulled(bench, 1)
    model = gpu_report().model
    found = shown(fleet)
    assert found["sluice_inventory_nodes", "fresh"] == 1
    assert found["sluice_gpus", model, "healthy"] == 1
    assert found["sluice_gpu_memory_slices", model, "total"] == gpu_report().memory_slices
    assert ("sluice_gpu_memory_slices", model, "quarantined") not in found

    foreign = msg.InstanceReport(gi_id=9, profile="1g.5gb", start=6, size=1)
    quarantined = (msg.PlacementReport(start=0, size=4),)
    pulled(bench, 2, healthy=False, health_message="Xid 79", quarantined=quarantined, instances=(foreign,))
    found = shown(fleet)
    assert found["sluice_gpus", model, "unhealthy"] == 1
    assert ("sluice_gpus", model, "healthy") not in found
    assert found["sluice_gpu_memory_slices", model, "quarantined"] == 4
    assert found["sluice_gpu_memory_slices", model, "foreign"] == 1


def test_metrics_show_a_silent_node_as_stale(bench, fleet):
    """Otherwise operators would not see that nothing new goes there."""
    pulled(bench, 1)
    began = bench.now
    assert shown(fleet)["sluice_inventory_oldest_answer_seconds",] == 0
    bench.at(1000.0)
    found = shown(fleet)
    assert (found["sluice_inventory_nodes", "fresh"], found["sluice_inventory_nodes", "stale"]) == (0, 1)
    assert found["sluice_inventory_oldest_answer_seconds",] == 1000.0 - began
