"""A journal that was lost while a GPU does not answer: what is on that GPU is not known, and not taken for nothing."""

import pytest

from sluice.contracts.messages import SliceDegraded, SliceFailed, SliceGone, SliceReady
from sluice_node_agent.core.events import OwnershipMark
from sluice_node_agent.core.instructions import CreateGpuInstance, MakeTicket, SaveJournal
from sluice_node_agent.core.journal_records import NodeRecord
from sluice_node_agent.core.state.devices import never_read
from sluice_node_agent.simulated.backend import SimulatedBackend
from sluice_node_agent.simulated.hardware_file import Instance

SMALL = (0, "2g.10gb", 4, 2)
WHOLE = (2, None, 0, 8)


def _silent(node, gpu):
    with node.hardware.changing() as hardware:
        hardware.faults.gpu_lost = gpu


def _devices(node):
    """What is there that a tenant could use, and would miss."""
    daemons = [(daemon.order.home, daemon.pid) for daemon in node.mps.living()]
    return node.instances(0), node.tickets.names(), daemons


@pytest.mark.parametrize("at", [SMALL, WHOLE], ids=["instance", "whole"])
def test_a_slice_found_again_is_not_given_up_because_its_gpu_fails_at_that_moment(node, at):
    """A pod that runs would lose its slice, as one that could never be made, for a GPU that comes back."""
    node.live()
    node.order(node.grant(node.booking("a1", at)))
    node.work()
    before = node.word("a1")
    node.lose_journal()
    node.start()
    node.work()
    _silent(node, at[0])
    node.own_done.clear()
    node.open()
    node.work()
    assert [type(step) for step in node.own_done] == [SaveJournal, MakeTicket, SaveJournal]
    node.tick(60.0)
    assert isinstance(node.word("a1"), SliceDegraded)
    assert node.tickets.names() == (before.ticket,)
    _silent(node, -1)
    node.tick(60.0)
    assert node.word("a1") == before


@pytest.mark.parametrize("restarts", [0, 1], ids=["once", "started again meanwhile"])
@pytest.mark.parametrize("shared", [False, True], ids=["exclusive", "shared"])
def test_an_instance_on_a_gpu_that_is_silent_when_the_journal_is_lost_stays_with_its_pod(node, restarts, shared):
    """Its ticket would be removed, its instance orphaned, and another created beside it."""
    node.live()
    node.order(node.grant(node.share("a1", SMALL) if shared else node.booking("a1", SMALL)))
    node.work()
    before, there = node.word("a1"), _devices(node)
    node.lose_journal()
    _silent(node, 0)
    node.live()
    unseen = [
        step.record.unseen
        for step in node.own_done
        if isinstance(step, SaveJournal) and isinstance(step.record, NodeRecord)
    ]
    assert unseen[-1] == (node.gpus[0],)
    for _ in range(restarts):
        node.live()
    node.own_done.clear()
    node.open()
    assert [each for each in node.waiting if hasattr(each, "token")] == []
    node.work()
    assert _devices(node) == there
    assert node.word("a1") == before
    _silent(node, -1)
    for _ in range(3):
        node.tick(60.0)
    assert _devices(node) == there
    assert node.word("a1") == before
    node.order(node.revoke(node.share("a1", SMALL) if shared else node.booking("a1", SMALL)))
    node.work()
    node.tick(60.0)
    assert isinstance(node.word("a1"), SliceGone)
    assert _devices(node) == ([], (), [])


@pytest.mark.parametrize("at", [SMALL, WHOLE], ids=["instance", "whole"])
def test_nothing_is_gone_on_a_gpu_that_cannot_be_read_when_the_journal_was_lost(node, monkeypatch, at):
    """A driver that is asked for the first time tells no more of such a GPU than its UUID: no MIG, no profiles."""
    node.live()
    booking = node.booking("a1", at)
    node.order(node.grant(booking))
    node.work()
    before, there = node.word("a1"), _devices(node)
    node.lose_journal()
    _silent(node, at[0])
    with monkeypatch.context() as patched:
        patched.setattr(SimulatedBackend, "read", lambda gpus: tuple(map(_barely_told, read(gpus))))
        node.live()
        assert node.tickets.names() == (before.ticket,)
        node.order(node.revoke(booking))
        node.work()
    assert not isinstance(node.word("a1"), SliceGone)
    assert _devices(node)[0] == there[0]
    _silent(node, -1)
    for _ in range(3):
        node.tick(60.0)
    assert isinstance(node.word("a1"), SliceGone)
    assert _devices(node) == ([], (), [])


read = SimulatedBackend.read


def _barely_told(gpu):
    """A GPU as a real driver tells of it, if it never could be read by this process."""
    return never_read(gpu.uuid, gpu.index, gpu.health_message, fixed=False) if gpu.lost else gpu


def _by_hand(node, at, uuid="MIG-by-hand"):
    number, profile, start, size = at
    with node.hardware.changing() as hardware:
        there = Instance(gi_id=9, profile=profile, start=start, size=size, uuid=uuid)
        hardware.gpus[number].instances.append(there)


@pytest.mark.parametrize("shared", [False, True], ids=["exclusive", "share"])
def test_what_somebody_has_made_at_a_granted_place_is_given_to_no_pod(node, shared):
    """A pod would run on an administrator's instance, and lose it when that is destroyed."""
    node.live()
    node.lose_journal()
    _by_hand(node, SMALL)
    node.order(node.grant(node.share("a1", SMALL) if shared else node.booking("a1", SMALL)))
    node.live()
    assert isinstance(node.word("a1"), SliceFailed)
    assert [each.uuid for each in node.hardware.read().gpus[0].instances] == ["MIG-by-hand"]


@pytest.mark.parametrize("what", ["no marks", "a doubt"])
def test_an_instance_of_a_slice_is_found_again_where_marks_do_not_tell(node, what):
    """Its place would be orphaned, and its pod get another slice."""
    node.live()
    node.order(node.grant(node.booking("a1", SMALL)))
    node.work()
    before = node.word("a1")
    node.lose_journal()
    if what == "no marks":
        (node.tmp_path / "marks" / "places").unlink()
    else:
        place = OwnershipMark(node.gpus[0], 4, 2)
        lines = [node.backend.boot_id(), "whole", f"? {place.gpu} {place.start} {place.size}", ""]
        (node.tmp_path / "marks" / "places").write_text("\n".join(lines))
    node.live()
    assert node.word("a1") == before


@pytest.mark.parametrize("shared", [False, True], ids=["exclusive", "shared"])
def test_a_compute_instance_whose_making_nobody_heard_of_is_unmade_although_its_gpu_was_silent_then(node, shared):
    """The place would be in quarantine for ever: the GPU instance cannot go while its compute instance is there."""
    node.live()
    node.order(node.grant(node.share("a1", SMALL) if shared else node.booking("a1", SMALL)))
    while not any(instance.uuid for instance in node.hardware.read().gpus[0].instances):
        node.work(own_max=1)
    node.stop()
    _silent(node, 0)
    node.start()
    node.work()
    _silent(node, -1)
    node.open()
    node.work()
    for _ in range(3):
        node.tick(60.0)
    if not isinstance(node.word("a1"), SliceReady):
        assert isinstance(node.word("a1"), SliceFailed)
        assert _devices(node) == ([], (), [])


@pytest.mark.parametrize("shared", [False, True], ids=["exclusive", "share"])
def test_what_somebody_has_made_at_a_place_that_was_about_to_be_used_is_given_to_no_pod(node, shared):
    """An agent killed before it created its own would adopt a foreign one, and destroy it when the pod ends."""
    node.live()
    node.order(node.grant(node.share("a1", SMALL) if shared else node.booking("a1", SMALL)))
    while not any(isinstance(step, CreateGpuInstance) for step in node.waiting):
        node.work(own_max=1)
    node.stop()
    _by_hand(node, SMALL, uuid="")
    node.live()
    for _ in range(3):
        node.tick(60.0)
    assert isinstance(node.word("a1"), SliceFailed)
    assert [(each.gi_id, each.uuid) for each in node.hardware.read().gpus[0].instances] == [(9, "")]


@pytest.mark.parametrize("phase", ["planned", "making"])
def test_a_slice_that_was_closed_already_is_not_handed_out_again(node, phase):
    """Its Revoke was replaced unread: the place is another pod's by now, and the slice would never be destroyed."""
    node.live()
    booking = node.booking("a1", SMALL)
    order = node.grant(booking, after=("a0",) if phase == "planned" else ())
    if phase == "planned":
        node.order(node.grant(node.booking("a0", SMALL)))
        node.work()
    node.order(order)
    assert not node.work(own_max=4 if phase == "making" else 0) or phase == "planned"
    node.order(node.closed(booking))
    node.work()
    node.tick(60.0)
    assert isinstance(node.word("a1"), SliceGone)
    assert "a1" not in {report.booking.allocation for report in node.agent.snapshot().slices}
    assert not [step for step in node.own_done if isinstance(step, MakeTicket) and step.allocation == "a1"]
