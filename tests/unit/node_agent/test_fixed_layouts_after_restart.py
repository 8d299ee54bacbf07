"""A GPU with an administrator's layout, after a crash, a lost journal, and when it changes hands."""

from unittest.mock import Mock

import pytest
from factories.crashes import deaths
from factories.gpus.admin_layouts import (
    FLEET,
    LARGE,
    LAYOUT,
    SMALL,
    admin_removes,
    changes,
    granted,
    opened,
    report,
    reread,
    revoked,
    use,
    uuid_at,
)

from sluice.contracts.messages import SliceDegraded, SliceFailed, SliceGone, SliceReady
from sluice_node_agent.core.instructions import ListHolders
from sluice_node_agent.device.port import NoPermissionError

OTHER = (1, "2g.10gb", 4, 2)


@pytest.fixture
def node(make_node):
    """A node with a fixed GPU, one that Sluice cuts up, and one without MIG; opened."""
    return opened(make_node)


def ordered(make_node, kind):
    """A node that has just been ordered a slice, or a share, in instances of its administrator; and what was booked."""
    node = make_node(fleet=FLEET)
    booking = node.booking("a1", SMALL, LARGE) if kind == "slice" else node.share("a1", SMALL)
    node.order(node.grant(booking))
    return node, booking


@pytest.mark.parametrize("executed", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", ["slice", "share"])
def test_handing_out_survives_a_crash_at_every_step(make_node, kind, executed):
    """A pod gets the very instance that is there, once, wherever the agent dies."""
    for death in deaths(executed=executed, least=7):
        node, _ = ordered(make_node, kind)
        death.strikes(node)
        node.live()
        word = node.word("a1")
        assert isinstance(word, SliceReady), (death.steps, word)
        assert word.devices[0].uuid == uuid_at(node, 6)
        assert node.tickets.names() == (word.ticket,), death.steps
        assert node.instances() == LAYOUT
        assert changes(node) == []


@pytest.mark.parametrize("executed", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", ["slice", "share"])
def test_taking_back_survives_a_crash_at_every_step(make_node, kind, executed):
    """The administrator's instance is there at every moment, and is called gone only without its tenant."""
    for death in deaths(executed=executed, least=4):
        node, booking = ordered(make_node, kind)
        node.work()
        device = node.word("a1").devices[0].uuid
        if kind == "slice":
            use(node, device, owner="pod-1")
        node.order(node.revoke(booking))
        death.strikes(node)
        assert not isinstance(node.word("a1"), SliceGone) or kind == "share"
        node.live()
        node.mps.leave(4711)
        node.tick(60, times=3)
        assert isinstance(node.word("a1"), SliceGone), death.steps
        assert (node.instances(), node.tickets.names(), changes(node)) == (LAYOUT, (), [])
        assert uuid_at(node, 6) == device


def test_a_lost_journal_and_a_lost_device_leave_a_tenant_his_other_one(node):
    """An administrator changes the layout while the journal is lost: a pod's other device was destroyed."""
    booking, word = granted(node, "a1", SMALL, OTHER)
    use(node, word.devices[1].uuid, owner="pod-1")
    node.remove_journal()
    admin_removes(node, start=SMALL[2])
    node.begin()
    node.open(booking.allocation)
    node.own_done.clear()
    node.work()
    node.tick(60.0)
    assert isinstance(node.word("a1"), SliceDegraded)
    assert changes(node) == []
    assert node.instances(1) == [OTHER[1:]]
    node.mps.leave(4711)
    assert isinstance(revoked(node, booking), SliceGone)
    assert node.instances(1) == []


def test_what_was_made_before_the_layout_was_fixed_stays_and_is_offered(node):
    """A change of one setting would destroy slices, or leave slots that cannot be used."""
    booking, word = granted(node, "a1", (1, "2g.10gb", 2, 2))
    node.change_gpu(1, fixed=True)
    node.live()
    assert node.word("a1").devices == word.devices
    node.own_done.clear()
    assert isinstance(revoked(node, booking), SliceGone)
    assert changes(node) == []
    assert node.instances(1) == [("2g.10gb", 2, 2)]
    assert {name: count for name, count in report(node, 1).creatable.items() if count} == {"2g.10gb": 1}


@pytest.mark.parametrize("steps", range(8))
def test_what_was_half_made_when_the_layout_was_fixed_is_left_to_the_administrator(make_node, steps):
    """An instance would be made, or destroyed, on a GPU that is not Sluice's any more."""
    node = make_node(fleet=FLEET)
    node.order(node.grant(node.booking("a1", (1, "2g.10gb", 2, 2))))
    node.work(own_max=steps)
    node.stop()
    before = node.instances(1)
    node.change_gpu(1, fixed=True)
    node.own_done.clear()
    node.live()
    assert changes(node) == []
    assert node.instances(1) == before
    whole = any(instance.uuid for instance in node.hardware.read().gpus[1].instances)
    assert isinstance(node.word("a1"), SliceReady if whole else SliceFailed)


def test_a_look_that_fails_is_not_repeated_without_end(node):
    """An agent that may not list processes would ask without a pause."""
    node.backend.processes = Mock(side_effect=NoPermissionError("not allowed"))
    reread(node)
    assert len([done for done in node.own_done if isinstance(done, ListHolders)]) == 3
    assert isinstance(granted(node)[1], SliceFailed)


def test_an_unknown_daemon_does_not_keep_an_instance_out_of_use(make_node):
    """Its share was being taken back when journal and ledger were lost: the instance would look used for ever."""
    for death in deaths(least=5):
        node, booking = ordered(make_node, "share")
        node.work()
        node.order(node.revoke(booking))
        death.strikes(node)
        node.lose_both()
        node.live()
        node.tick(30.0, times=5)
        is_known = [each.state for each in node.agent.snapshot().slices] == ["ready"]
        assert is_known or not node.mps.homes, death.steps
        assert node.instances() == LAYOUT
        assert changes(node) == []


def test_what_was_found_stays_when_the_gpu_is_given_back_to_sluice(node):
    """The administrator's instances would be destroyed with the pods that run on them."""
    booking, _ = granted(node)
    share = node.serve(node.share("a2", (0, "2g.10gb", 4, 2)))
    node.change_gpu(0, fixed=False)
    node.live()
    node.own_done.clear()
    assert isinstance(revoked(node, booking), SliceGone)
    assert isinstance(revoked(node, share), SliceGone)
    assert changes(node) == []
    assert node.instances() == LAYOUT
    assert [each.allocation for each in report(node).instances] == [None, None, None]


def test_an_idle_instance_of_ours_is_the_administrators_from_then_on(make_node):
    """An instance that was kept warm would be destroyed under a layout that is fixed by now."""
    node = make_node(fleet=FLEET, keep_warm_s=5.0)
    booking, _ = granted(node, "a1", (1, "2g.10gb", 2, 2))
    revoked(node, booking)
    node.change_gpu(1, fixed=True)
    node.own_done.clear()
    node.live()
    node.tick(5.0, times=4)
    assert changes(node) == []
    (seen,) = report(node, 1).instances
    assert (seen.start, seen.unusable) == (2, "it has no compute instance; its administrator has to create it")
