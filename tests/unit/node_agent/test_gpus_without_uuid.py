"""A GPU that cannot even tell its UUID when its agent starts: what the journal, tickets or orders say of it stands."""

import pytest

from sluice.contracts.messages import SliceDegraded, SliceFailed, SliceGone, SliceReady
from sluice_node_agent.core.events import GpuTroubled
from sluice_node_agent.core.instructions import CreateGpuInstance

SMALL = (0, "2g.10gb", 4, 2)
WHOLE = (2, None, 0, 8)


def _cannot_tell(node, gpu):
    node.nameless = {gpu: f"GPU {gpu}: the driver did not answer in time"}
    with node.hardware.changing() as hardware:
        hardware.faults.gpu_lost = gpu


def _can_tell(node):
    node.nameless = {}
    with node.hardware.changing() as hardware:
        hardware.faults.gpu_lost = -1


def _wait(node, times=3):
    for _ in range(times):
        node.tick(60.0)


def _forget_marks(node):
    (node.tmp_path / "marks" / "places").unlink()


def _bookings(node):
    return {
        "instance": node.booking("a1", SMALL),
        "whole": node.booking("a1", WHOLE),
        "share of an instance": node.share("a1", SMALL),
        "share of a GPU": node.share("a1", WHOLE),
    }


KINDS = ["instance", "whole", "share of an instance", "share of a GPU"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lost", ["nothing", "journal", "journal and what tickets say"])
@pytest.mark.parametrize("again", [False, True], ids=["answers", "answers at the next start"])
def test_a_running_pod_keeps_what_it_has_on_it(node, kind, lost, again):
    """Its daemon would be stopped, or its ticket removed, or its slice be said never to have been made."""
    node.live()
    booking = _bookings(node)[kind]
    node.order(node.grant(booking))
    node.work()
    before, there = node.word("a1"), (node.instances(0), [each.pid for each in node.mps.living()])
    assert isinstance(before, SliceReady)
    if lost == "journal":
        node.stop()
        (node.tmp_path / "agent" / "journal").unlink()
    elif lost != "nothing":
        node.lose_journal()
    _cannot_tell(node, node.gpus.index(booking.devices[0].gpu))
    node.live()
    _wait(node)
    assert not isinstance(node.word("a1"), (SliceFailed, SliceGone))
    assert node.tickets.names() == (before.ticket,)
    assert (node.instances(0), [each.pid for each in node.mps.living()]) == there
    _can_tell(node)
    if again:
        node.live()
    _wait(node)
    assert node.word("a1") == before
    assert (node.instances(0), [each.pid for each in node.mps.living()]) == there


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("marks", [True, False], ids=["marks", "no marks"])
@pytest.mark.parametrize("again", [False, True], ids=["answers", "answers at the next start"])
def test_a_slice_that_is_revoked_on_it_is_not_gone_because_the_journal_was_lost(node, kind, marks, again):
    """Its place would be given away while its instance, and its users, exist."""
    node.live()
    booking = _bookings(node)[kind]
    node.order(node.grant(booking))
    node.work()
    node.lose_journal()
    for ticket in node.tickets.names():
        node.tickets.remove(ticket)  # it goes first
    if not marks:
        _forget_marks(node)
    node.put("sluice.ledger.n1_example.a1", node.revoke(booking))
    _cannot_tell(node, node.gpus.index(booking.devices[0].gpu))
    node.live()
    _wait(node)
    assert not isinstance(node.word("a1"), SliceGone)
    _can_tell(node)
    if again:
        node.live()
    _wait(node)
    assert isinstance(node.word("a1"), SliceGone)
    assert (node.instances(0), node.tickets.names(), node.mps.living()) == ([], (), [])


@pytest.mark.parametrize("shared", [False, True], ids=["exclusive", "shared"])
@pytest.mark.parametrize("again", [False, True], ids=["answers", "answers at the next start"])
def test_what_was_being_made_on_it_when_its_agent_was_killed_is_not_forgotten(node, shared, again):
    """The slice would fail and be gone, and its instance orphaned for good."""
    node.live()
    booking = node.share("a1", SMALL) if shared else node.booking("a1", SMALL)
    node.order(node.grant(booking))
    while not any(isinstance(step, CreateGpuInstance) for step in node.waiting):
        node.work(own_max=1)
    node.carry_out(next(step for step in node.waiting if isinstance(step, CreateGpuInstance)))  # and its result is lost
    assert node.instances(0)
    _cannot_tell(node, 0)
    node.live()
    _wait(node)
    node.order(node.revoke(booking))
    node.work()
    _wait(node)
    assert not isinstance(node.word("a1"), SliceGone)
    _can_tell(node)
    if again:
        node.live()
    _wait(node)
    assert isinstance(node.word("a1"), SliceGone)
    assert node.instances(0) == []


def test_it_is_shown_as_lost_with_the_reason_where_something_is_known_of_it(node):
    """An operator would see a node with a GPU less, and no reason."""
    node.live()
    node.order(node.grant(node.booking("a1", SMALL)))
    node.work()
    _cannot_tell(node, 0)
    node.live()
    snapshot = node.agent.snapshot()
    shown = {gpu.uuid: gpu for gpu in snapshot.gpus}
    assert [gpu.uuid for gpu in snapshot.gpus] == node.gpus
    assert shown[node.gpus[0]].lost
    assert "did not answer in time" in shown[node.gpus[0]].health_message
    assert any("did not answer in time" in warning for warning in snapshot.warnings)
    assert isinstance(node.word("a1"), SliceDegraded)


@pytest.mark.parametrize("lost", [False, True], ids=["journal", "no journal"])
def test_one_that_nothing_was_on_is_used_once_it_tells_which_it_is(node, lost):
    """It would stay out of the fleet, and pods wait, until its agent is restarted."""
    node.live()
    if lost:
        node.lose_journal()
    _cannot_tell(node, 0)
    node.live()
    _wait(node)
    assert node.gpus[0] not in [gpu.uuid for gpu in node.agent.snapshot().gpus]
    _can_tell(node)
    node.handle(GpuTroubled(node.gpus[0]))
    _wait(node)
    (found,) = [gpu for gpu in node.agent.snapshot().gpus if gpu.uuid == node.gpus[0]]
    assert (found.healthy, found.index) == (True, 0)
    booking = node.booking("a1", SMALL)
    node.order(node.grant(booking))
    node.work()
    assert isinstance(node.word("a1"), SliceReady)
