"""What people look at costs by what there is, once: not by every GPU times every slice of the fleet."""

from msgspec.structs import replace

from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, GpuUuid, NodeName
from sluice_console.core.fleet import gpus
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.fleet.nodes import nodes_document

NODES = 20


class CountingWorld(FleetState):
    looks = 0

    def of(self, kind, type_):
        self.looks += 1
        return FleetState.of(self, kind, type_)


def fleet(make) -> CountingWorld:
    values = {}
    for number in range(NODES):
        node, gpu, allocation = NodeName(f"gpu-{number}"), GpuUuid(f"GPU-{number}"), AllocationId(f"a-{number}")
        device = replace(make.booking().devices[0], gpu=gpu)
        booking = replace(make.booking(), node=node, allocation=allocation, devices=(device,))
        inventory = make.inventory(replace(make.gpu_report(), uuid=gpu))
        values[subjects.ledger(node, allocation).subject] = make.grant(booking)
        values[subjects.guarded("inventory", node).subject] = inventory
    return CountingWorld(values)


def test_each_gpu_looks_at_its_own_slices_alone(make, monkeypatch):
    """`sluice top` over 200 nodes stood still for seconds at every change."""
    seen = []
    homes_on = gpus.homes_on

    def counted(gpu, slices, ordered):
        bookings = list(ordered)
        seen.append(len(bookings))
        return homes_on(gpu, slices, bookings)

    monkeypatch.setattr(gpus, "homes_on", counted)
    document = gpus.gpus_document(fleet(make))
    assert [len(gpu.instances) for gpu in document.gpus] == [1] * NODES
    assert seen == [1] * NODES


def test_no_node_goes_through_all_values_for_itself(make):
    """Likewise `sluice nodes`."""
    fleet_state = fleet(make)
    assert len(nodes_document(fleet_state, {}).nodes) == NODES
    assert fleet_state.looks < NODES
