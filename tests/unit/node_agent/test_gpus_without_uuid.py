"""GPUs that cannot say which they are, and reports of those that have not changed."""

from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest
from factories.gpus.shared_devices import KINDS, SMALL, booked
from factories.scheduling.allocator import gpu_report

from sluice.contracts import messages as msg
from sluice.contracts.ids import AllocationId
from sluice_node_agent.core.events import GpuTroubled
from sluice_node_agent.core.instructions import CreateGpuInstance
from sluice_node_agent.core.state.devices import Devices, ShownFacts


def _cannot_tell(node, gpu):
    node.nameless = {gpu: f"GPU {gpu}: the driver did not answer in time"}
    node.fault(gpu_lost=gpu)


def _can_tell(node):
    node.nameless = {}
    node.fault(gpu_lost=-1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lost", ["nothing", "journal", "journal and what tickets say"])
@pytest.mark.parametrize("again", [False, True], ids=["answers", "answers at the next start"])
def test_a_running_pod_keeps_what_it_has_on_it(node, kind, lost, again):
    """Its daemon would be stopped, or its ticket removed, or its slice be said never to have been made."""
    booking = node.ready(booked(node, kind))
    before, there = node.word("a1"), (node.instances(0), [each.pid for each in node.mps.living()])
    if lost == "journal":
        node.remove_journal()
    elif lost != "nothing":
        node.lose_journal()
    _cannot_tell(node, node.gpus.index(booking.devices[0].gpu))
    node.live()
    node.tick(60.0, times=3)
    assert not isinstance(node.word("a1"), (msg.SliceFailed, msg.SliceGone))
    assert node.tickets.names() == (before.ticket,)
    assert (node.instances(0), [each.pid for each in node.mps.living()]) == there
    _can_tell(node)
    if again:
        node.live()
    node.tick(60.0, times=3)
    assert node.word("a1") == before
    assert (node.instances(0), [each.pid for each in node.mps.living()]) == there


@pytest.mark.parametrize("shared", [False, True], ids=["exclusive", "shared"])
@pytest.mark.parametrize("again", [False, True], ids=["answers", "answers at the next start"])
def test_what_was_being_made_on_it_when_its_agent_was_killed_is_not_forgotten(node, shared, again):
    """The slice would fail and be gone, and its instance orphaned for good."""
    booking = node.share("a1", SMALL) if shared else node.booking("a1", SMALL)
    node.order(node.grant(booking))
    node.carry_out(node.up_to(CreateGpuInstance))  # and its result is lost
    assert node.instances(0)
    _cannot_tell(node, 0)
    node.live()
    node.tick(60.0, times=3)
    node.take_back(booking)
    node.tick(60.0, times=3)
    assert not isinstance(node.word("a1"), msg.SliceGone)
    _can_tell(node)
    if again:
        node.live()
    node.tick(60.0, times=3)
    assert isinstance(node.word("a1"), msg.SliceGone)
    assert node.instances(0) == []


def test_it_is_shown_as_lost_with_the_reason_where_something_is_known_of_it(node):
    """An operator would see a node with a GPU less, and no reason."""
    node.serve(node.booking("a1", SMALL))
    _cannot_tell(node, 0)
    node.live()
    snapshot = node.agent.snapshot()
    shown = {gpu.uuid: gpu for gpu in snapshot.gpus}
    assert [gpu.uuid for gpu in snapshot.gpus] == node.gpus
    assert shown[node.gpus[0]].lost
    assert "did not answer in time" in shown[node.gpus[0]].health_message
    assert any("did not answer in time" in warning for warning in snapshot.warnings)
    assert isinstance(node.word("a1"), msg.SliceDegraded)


@pytest.mark.parametrize("lost", [False, True], ids=["journal", "no journal"])
def test_one_that_nothing_was_on_is_used_once_it_tells_which_it_is(node, lost):
    """It would stay out of the fleet, and pods wait, until its agent is restarted."""
    if lost:
        node.lose_journal()
    _cannot_tell(node, 0)
    node.live()
    node.tick(60.0, times=3)
    assert node.gpus[0] not in [gpu.uuid for gpu in node.agent.snapshot().gpus]
    _can_tell(node)
    node.handle(GpuTroubled(node.gpus[0]))
    node.tick(60.0, times=3)
    (found,) = [gpu for gpu in node.agent.snapshot().gpus if gpu.uuid == node.gpus[0]]
    assert (found.healthy, found.index) == (True, 0)
    node.ready(node.booking("a1", SMALL))


GPU = gpu_report("n1", 0, instances=(msg.InstanceReport(gi_id=1, profile="3g.20gb", start=0, size=4, uuid="MIG-1"),))
FIXED = msgspec.structs.replace(GPU, fixed_layout=True)
SEEN = ShownFacts({(GPU.uuid, 1): AllocationId("a")}, {}, {}, ())
DAEMON = msg.MpsDaemonReport(
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
        replace(SEEN, quarantined={GPU.uuid: (msg.PlacementReport(start=4, size=4),)}),
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


def test_a_gpu_that_was_read_again_is_shown_as_it_is_now():
    devices = Devices([GPU])
    devices.shown(SEEN)
    devices.add(SimpleNamespace(gpu=GPU.uuid, profile="1g.5gb", start=4, size=1), 2)
    assert [each.gi_id for each in devices.shown(SEEN)[0].instances] == [1, 2]
    devices.lose(GPU.uuid, "it fell off the bus")
    assert [(each.lost, each.health_message) for each in devices.shown(SEEN)] == [(True, "it fell off the bus")]
    devices.read(GPU)
    assert devices.shown(SEEN) == Devices([GPU]).shown(SEEN)


def test_who_is_found_on_a_fixed_instance_is_said_although_nothing_was_made_or_given():
    """Else it is granted to a pod that finds another process on it."""
    devices, free = Devices([FIXED]), replace(SEEN, claims={})
    assert devices.shown(free)[0].creatable["3g.20gb"] == 1
    devices.note_users("MIG-1", ("a stranger",))
    assert devices.shown(free)[0].creatable["3g.20gb"] == 0
    assert "a stranger" in devices.shown(free)[0].instances[0].unusable
    devices.note_users("MIG-1", ())
    assert devices.shown(free)[0].creatable["3g.20gb"] == 1
