"""`sluice gpus`: what a script or a person reads about each GPU."""

import pytest
from msgspec.structs import replace

from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, GpuUuid, NodeName
from sluice.contracts.messages import Cordoned
from sluice_console.core.fleet import gpus
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.fleet.gpus import WHOLE_GPU, gpus_document
from sluice_console.core.fleet.nodes import nodes_document
from sluice_console.core.output.gpu_picture import picture, plain


def test_a_booking_and_its_instance_are_one_not_two(make):
    inventory = make.inventory(make.gpu_report(instances=(make.made(),)), make.slice())
    assert len(gpus_document(make.fleet_state(inventory=inventory, ledger=make.grant())).gpus[0].instances) == 1


def test_a_whole_gpu_without_mig_shows_its_owner(make):
    booking = make.booking(profile=None, start=0, size=8)
    inventory = make.inventory(make.gpu_report(mig=False, creatable={}), make.slice(booking))
    (gpu,) = gpus_document(make.fleet_state(inventory=inventory)).gpus
    assert [(place.profile, place.owner) for place in gpu.instances] == [(WHOLE_GPU, "default/train")]
    assert gpu.allocated_fraction == 1.0


def test_a_shared_instance_shows_all_its_tenants(make):
    """One home, two tenants: one made, one still ordered."""
    ready, ordered = make.shared("a_1", "train"), make.shared("b_1", "serve", uid=1000)
    inventory = make.inventory(make.gpu_report(instances=(make.made("a_1"),)), make.slice(ready))
    fleet_state = make.fleet_state(inventory=inventory, ledger=make.grant(ordered))
    (gpu,) = gpus_document(fleet_state).gpus
    (home,) = gpu.instances
    assert (home.profile, home.state, home.owner, home.uuid) == ("3g.20gb", "ready", "", "MIG-1")
    tenants = [(tenant.owner, tenant.state) for tenant in home.tenants]
    assert tenants == [("default/train", "ready"), ("default/serve", "making")]
    assert gpu.allocated_fraction == 0.5


def test_a_home_that_is_only_ordered_takes_nothing_yet(make):
    inventory, ordered = make.inventory(make.gpu_report()), make.grant(make.shared("a_1", "train"))
    (gpu,) = gpus_document(make.fleet_state(inventory=inventory, ledger=ordered)).gpus
    assert ([place.state for place in gpu.instances], gpu.allocated_fraction) == (["making"], 0.0)


def test_a_daemon_without_tenants_is_not_hidden(make):
    """It should not be there: a search for what holds the GPU must find it."""
    whole = make.daemon(profile=None, start=0, size=8, device=str(make.gpu), state="stopping")
    inventory = make.inventory(make.gpu_report(mig=False, creatable={}, daemons=(whole,)))
    (gpu,) = gpus_document(make.fleet_state(inventory=inventory)).gpus
    (place,) = gpu.instances
    assert (place.profile, place.state, place.tenants, place.uuid) == (WHOLE_GPU, "ending", (), make.gpu)
    assert (place.daemon.state, place.daemon.pid, gpu.allocated_fraction) == ("stopping", 4711, 1.0)


def test_tenants_of_one_home_and_their_daemon_are_one_place(make):
    tenants = [make.slice(make.shared("a_1", "train")), make.slice(make.shared("b_1", "serve"))]
    gpu = make.gpu_report(instances=(make.made("a_1"),), daemons=(make.daemon(clients=2),))
    (place,) = gpus_document(make.fleet_state(inventory=make.inventory(gpu, *tenants))).gpus[0].instances
    assert [tenant.owner for tenant in place.tenants] == ["default/train", "default/serve"]
    assert (place.daemon.uid, place.daemon.clients, place.uuid, place.gi_id) == (1000, 2, "MIG-1", 2)


def test_scripts_find_what_a_node_is_and_warns_of(make):
    """Modes, versions and warnings are of the node; a script reads them without parsing the picture."""
    inventory = make.inventory(make.gpu_report(), modes=("exclusive", "mps"), toolkit_version="1.17.8", warnings=("w",))
    (node,) = gpus_document(make.fleet_state(inventory=inventory)).nodes
    assert (node.node, node.modes) == (make.node, ("exclusive", "mps"))
    assert (node.toolkit_version, node.warnings) == ("1.17.8", ("w",))


def test_of_a_fixed_layout_everything_is_shown_and_what_is_free_is_not_in_use(make):
    free = replace(make.made(None), start=0)
    used = replace(make.made(None), start=4, unusable="it is used by python 7, which Sluice did not start")
    report = make.gpu_report(instances=(free, used), creatable={"3g.20gb": 1}, fixed_layout=True)
    fleet_state = make.fleet_state(inventory=make.inventory(report))
    (gpu,) = gpus_document(fleet_state).gpus
    assert [(place.start, place.state) for place in gpu.instances] == [(0, "free"), (4, "unusable")]
    assert (gpu.fixed_layout, gpu.allocated_fraction) == (True, 0.5)
    shown = plain(picture(gpus_document(fleet_state), unicode=False))
    assert "layout is fixed, 1 free" in shown
    assert "available: 1x3g.20gb" in shown
    assert "free: available as it is  3g.20gb at 0 of GPU 0" in shown
    assert "unavailable  3g.20gb at 4 of GPU 0" in shown
    assert "(it is used by python 7, which Sluice did not start)" in shown


def test_a_free_instance_that_is_booked_is_shown_as_ordered(make):
    report = make.gpu_report(instances=(make.made(None),), fixed_layout=True)
    (gpu,) = gpus_document(make.fleet_state(inventory=make.inventory(report), ledger=make.grant())).gpus
    assert [(place.state, place.owner) for place in gpu.instances] == [("making", "default/train")]


@pytest.mark.parametrize(("gpus", "is_cordoned"), [((), True), (("GPU-another",), False)])
def test_a_cordoned_gpu_is_shown_as_such(make, gpus, is_cordoned):
    """`fits 7x1g.5gb`, and no pod gets one: a person would look for a fault."""
    fleet_state = make.fleet_state(inventory=make.inventory(make.gpu_report()))
    fleet_state.values[subjects.cordon(make.node).subject] = Cordoned(node=make.node, gpus=gpus, why="new fans")
    assert [gpu.cordoned for gpu in gpus_document(fleet_state).gpus] == [is_cordoned]
    assert ("cordoned: new fans" in plain(picture(gpus_document(fleet_state), unicode=False))) == is_cordoned


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
    fleet_state = fleet(make)
    assert len(nodes_document(fleet_state, {}).nodes) == NODES
    assert fleet_state.looks < NODES
