"""Reports of GPUs are reused while nothing of them has changed, and never longer."""

from dataclasses import replace

import msgspec
import pytest
from factories.scheduling.allocator import gpu_report

from sluice.contracts.ids import AllocationId
from sluice.contracts.messages import InstanceReport, MpsDaemonReport, PlacementReport
from sluice_node_agent.core.state.devices import Devices, ShownFacts

GPU = gpu_report("n1", 0, instances=(InstanceReport(gi_id=1, profile="3g.20gb", start=0, size=4, uuid="MIG-1"),))
FIXED = msgspec.structs.replace(GPU, fixed_layout=True)
SEEN = ShownFacts({(GPU.uuid, 1): AllocationId("a")}, {}, {}, ())
DAEMON = MpsDaemonReport(
    profile="3g.20gb", start=0, size=4, device="MIG-1", namespace="lab", uid=1000, state="ready", pid=7
)


def test_a_gpu_of_which_nothing_has_changed_is_not_put_together_again():
    """A node with many GPUs would pay for all of them with every step of one slice."""
    devices = Devices([GPU])
    assert devices.shown(SEEN)[0] is devices.shown(replace(SEEN))[0]


@pytest.mark.parametrize(
    "changed",
    [
        replace(SEEN, claims={}),
        replace(SEEN, claims={(GPU.uuid, 1): AllocationId("b")}),
        replace(SEEN, claims={}, warm=((GPU.uuid, 1),)),
        replace(SEEN, quarantined={GPU.uuid: (PlacementReport(start=4, size=4),)}),
        replace(SEEN, daemons={GPU.uuid: (DAEMON,)}),
        replace(SEEN, daemons={GPU.uuid: (msgspec.structs.replace(DAEMON, clients=2),)}),
    ],
    ids=["left", "another's", "warm", "quarantined", "daemon", "clients"],
)
def test_whatever_changes_on_a_gpu_is_seen_at_once(changed: ShownFacts):
    """Else an allocator books what is taken, or leaves what is free."""
    devices = Devices([GPU])
    before = devices.shown(SEEN)
    assert devices.shown(changed) == Devices([GPU]).shown(changed)
    assert devices.shown(changed) != before
    assert devices.shown(SEEN) == before


def test_a_gpu_that_was_read_anew_is_shown_as_it_is_now():
    """What was told of it before is of another reading."""
    devices = Devices([GPU])
    devices.shown(SEEN)
    devices.add(PlaceAt(), 2)
    assert [each.gi_id for each in devices.shown(SEEN)[0].instances] == [1, 2]
    devices.lose(GPU.uuid, "it fell off the bus")
    assert [(each.lost, each.health_message) for each in devices.shown(SEEN)] == [(True, "it fell off the bus")]
    devices.read(GPU)
    assert devices.shown(SEEN) == Devices([GPU]).shown(SEEN)


def test_who_is_found_on_a_fixed_instance_is_said_although_nothing_was_made_or_given():
    """Else it is given to a pod that finds somebody else's process on it."""
    devices, free = Devices([FIXED]), replace(SEEN, claims={})
    assert devices.shown(free)[0].creatable["3g.20gb"] == 1
    devices.note_users("MIG-1", ("a stranger",))
    assert devices.shown(free)[0].creatable["3g.20gb"] == 0
    assert "a stranger" in devices.shown(free)[0].instances[0].unusable
    devices.note_users("MIG-1", ())
    assert devices.shown(free)[0].creatable["3g.20gb"] == 1


class PlaceAt:
    gpu = GPU.uuid
    profile = "1g.5gb"
    start = 4
    size = 1
