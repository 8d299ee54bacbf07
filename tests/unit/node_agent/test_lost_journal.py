"""A journal that was lost while a GPU does not answer: what is on that GPU is not known, and not taken for nothing."""

import pytest

from sluice.contracts.messages import SliceFailed, SliceGone, SliceReady
from sluice_node_agent.core.instructions import MakeTicket, SaveJournal
from sluice_node_agent.core.journal_records import NodeRecord

SMALL = (0, "2g.10gb", 4, 2)


def _devices(node):
    """What is there that a tenant could use, and would miss."""
    daemons = [(daemon.order.home, daemon.pid) for daemon in node.mps.living()]
    return node.instances(0), node.tickets.names(), daemons


@pytest.mark.parametrize("restarts", [0, 1], ids=["once", "started again meanwhile"])
@pytest.mark.parametrize("shared", [False, True], ids=["exclusive", "shared"])
def test_an_instance_on_a_gpu_that_is_silent_when_the_journal_is_lost_stays_with_its_pod(node, restarts, shared):
    """Its ticket would be removed, its instance orphaned, and another created beside it."""
    booking = node.serve(node.share("a1", SMALL) if shared else node.booking("a1", SMALL))
    before, there = node.word("a1"), _devices(node)
    node.lose_journal()
    node.fault(gpu_lost=0)
    node.live()
    records = [step.record for step in node.own_done if isinstance(step, SaveJournal)]
    assert [record.unseen for record in records if isinstance(record, NodeRecord)][-1] == (node.gpus[0],)
    for _ in range(restarts):
        node.live()
    node.own_done.clear()
    node.open()
    assert node.own(node.waiting) == []
    node.work()
    assert _devices(node) == there
    assert node.word("a1") == before
    node.fault(gpu_lost=-1)
    node.tick(60.0, times=3)
    assert _devices(node) == there
    assert node.word("a1") == before
    node.take_back(booking)
    node.tick(60.0)
    assert isinstance(node.word("a1"), SliceGone)
    assert _devices(node) == ([], (), [])


@pytest.mark.parametrize("shared", [False, True], ids=["exclusive", "shared"])
def test_an_unrecorded_compute_instance_is_unmade_although_its_gpu_was_silent_then(node, shared):
    """The place would be in quarantine for ever: the GPU instance cannot go while its compute instance is there."""
    node.order(node.grant(node.share("a1", SMALL) if shared else node.booking("a1", SMALL)))
    while not any(instance.uuid for instance in node.hardware.read().gpus[0].instances):
        node.work(own_max=1)
    node.stop()
    node.fault(gpu_lost=0)
    node.begin()
    node.fault(gpu_lost=-1)
    node.open()
    node.work()
    node.tick(60.0, times=3)
    if not isinstance(node.word("a1"), SliceReady):
        assert isinstance(node.word("a1"), SliceFailed)
        assert _devices(node) == ([], (), [])


@pytest.mark.parametrize("phase", ["planned", "making"])
def test_a_slice_that_was_closed_already_is_not_handed_out_again(node, phase):
    """Its Revoke was replaced unread: the place is another pod's by now, and the slice would never be destroyed."""
    booking = node.booking("a1", SMALL)
    order = node.grant(booking, after=("a0",) if phase == "planned" else ())
    if phase == "planned":
        node.serve(node.booking("a0", SMALL))
    node.order(order)
    assert not node.work(own_max=4 if phase == "making" else 0) or phase == "planned"
    node.obey(node.closed(booking))
    node.tick(60.0)
    assert isinstance(node.word("a1"), SliceGone)
    assert "a1" not in {report.booking.allocation for report in node.agent.snapshot().slices}
    assert not [step for step in node.own_done if isinstance(step, MakeTicket) and step.allocation == "a1"]
