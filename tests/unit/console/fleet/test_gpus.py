"""`sluice gpus`: what a script or a person reads about each GPU."""

import pytest
from msgspec.structs import replace

from sluice.contracts.bus import subjects
from sluice.contracts.messages import Cordoned
from sluice_console.core.fleet.gpus import WHOLE_GPU, gpus_document
from sluice_console.core.output.gpu_picture import picture, plain


def test_an_instance_is_shown_with_the_pod_that_owns_it(make):
    """Whose slice it is comes from the agent's own journal."""
    fleet_state = make.fleet_state(inventory=make.inventory(make.gpu_report(instances=(make.made(),)), make.slice()))
    (gpu,) = gpus_document(fleet_state).gpus
    (place,) = gpu.instances
    assert (place.owner, place.state, place.start, place.size) == ("default/train", "ready", 4, 4)
    assert gpu.allocated_fraction == 0.5


def test_a_booking_and_its_instance_are_one_not_two(make):
    """The same place from two sides."""
    inventory = make.inventory(make.gpu_report(instances=(make.made(),)), make.slice())
    assert len(gpus_document(make.fleet_state(inventory=inventory, ledger=make.grant())).gpus[0].instances) == 1


def test_a_whole_gpu_without_mig_shows_its_owner(make):
    """There is no instance on the device; the journal knows."""
    booking = make.booking(profile=None, start=0, size=8)
    fleet_state = make.fleet_state(
        inventory=make.inventory(make.gpu_report(mig=False, creatable={}), make.slice(booking))
    )
    (gpu,) = gpus_document(fleet_state).gpus
    assert [(place.profile, place.owner) for place in gpu.instances] == [(WHOLE_GPU, "default/train")]
    assert gpu.allocated_fraction == 1.0


def test_a_shared_instance_shows_everybody_in_it(make):
    """One home, two tenants: one made, one still ordered."""
    ready, ordered = make.shared("a_1", "train"), make.shared("b_1", "serve", uid=1000)
    inventory = make.inventory(make.gpu_report(instances=(make.made("a_1"),)), make.slice(ready))
    fleet_state = make.fleet_state(inventory=inventory, ledger=make.grant(ordered))
    (gpu,) = gpus_document(fleet_state).gpus
    (home,) = gpu.instances
    assert (home.profile, home.state, home.owner, home.uuid) == ("3g.20gb", "ready", "", "MIG-1")
    assert [(tenant.owner, tenant.state) for tenant in home.tenants] == [
        ("default/train", "ready"),
        ("default/serve", "making"),
    ]
    assert gpu.allocated_fraction == 0.5


def test_a_home_that_is_only_ordered_takes_nothing_yet(make):
    """As an instance that is only ordered."""
    fleet_state = make.fleet_state(
        inventory=make.inventory(make.gpu_report()), ledger=make.grant(make.shared("a_1", "train"))
    )
    (gpu,) = gpus_document(fleet_state).gpus
    assert ([place.state for place in gpu.instances], gpu.allocated_fraction) == (["making"], 0.0)


def test_a_daemon_without_tenants_is_not_hidden(make):
    """It should not be there: who looks for what holds the GPU must find it."""
    whole = make.daemon(profile=None, start=0, size=8, device=str(make.gpu), state="stopping")
    inventory = make.inventory(make.gpu_report(mig=False, creatable={}, daemons=(whole,)))
    (gpu,) = gpus_document(make.fleet_state(inventory=inventory)).gpus
    (place,) = gpu.instances
    assert (place.profile, place.state, place.tenants, place.uuid) == (WHOLE_GPU, "ending", (), make.gpu)
    assert (place.daemon.state, place.daemon.pid, gpu.allocated_fraction) == ("stopping", 4711, 1.0)


def test_tenants_of_one_home_and_their_daemon_are_one_place(make):
    """Shown twice, a home would look like two."""
    tenants = [make.slice(make.shared("a_1", "train")), make.slice(make.shared("b_1", "serve"))]
    gpu = make.gpu_report(instances=(make.made("a_1"),), daemons=(make.daemon(clients=2),))
    (place,) = gpus_document(make.fleet_state(inventory=make.inventory(gpu, *tenants))).gpus[0].instances
    assert [tenant.owner for tenant in place.tenants] == ["default/train", "default/serve"]
    assert (place.daemon.uid, place.daemon.clients, place.uuid, place.gi_id) == (1000, 2, "MIG-1", 2)


def test_scripts_find_what_a_node_is_and_warns_of(make):
    """Modes, versions and warnings are of the node; a script must not parse the picture for them."""
    inventory = make.inventory(make.gpu_report(), modes=("exclusive", "mps"), toolkit_version="1.17.8", warnings=("w",))
    (node,) = gpus_document(make.fleet_state(inventory=inventory)).nodes
    assert (node.node, node.modes, node.toolkit_version, node.warnings) == (
        make.node, ("exclusive", "mps"), "1.17.8", ("w",),
    )  # fmt: skip


def test_of_a_fixed_layout_everything_is_shown_and_what_is_free_is_not_in_use(make):
    """A person could not see what is there to be had, and why some of it is not."""
    free = replace(make.made(None), start=0)
    used = replace(make.made(None), start=4, unusable="it is used by python 7, which Sluice did not start")
    report = replace(make.gpu_report(instances=(free, used), creatable={"3g.20gb": 1}), fixed_layout=True)
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
    """It would be shown twice, or as free although it is promised."""
    report = replace(make.gpu_report(instances=(make.made(None),)), fixed_layout=True)
    (gpu,) = gpus_document(make.fleet_state(inventory=make.inventory(report), ledger=make.grant())).gpus
    assert [(place.state, place.owner) for place in gpu.instances] == [("making", "default/train")]


@pytest.mark.parametrize(("gpus", "is_cordoned"), [((), True), (("GPU-another",), False)])
def test_a_cordoned_gpu_is_shown_as_such(make, gpus, is_cordoned):
    """`fits 7x1g.5gb`, and no pod gets one: a person would look for a fault."""
    fleet_state = make.fleet_state(inventory=make.inventory(make.gpu_report()))
    fleet_state.values[subjects.cordon(make.node).subject] = Cordoned(node=make.node, gpus=gpus, why="new fans")
    assert [gpu.cordoned for gpu in gpus_document(fleet_state).gpus] == [is_cordoned]
    assert ("cordoned: new fans" in plain(picture(gpus_document(fleet_state), unicode=False))) == is_cordoned
