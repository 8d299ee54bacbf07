"""Daemons that died, and daemons of an earlier run."""

from factories.gpus.shared_devices import ON_MIG, PLACES, WHOLE, is_clean

from sluice.contracts.bus.events import Ticked
from sluice.contracts.messages import SliceDegraded, SliceFailed, SliceGone, SliceQuarantined, SliceReady
from sluice_node_agent.core.events import QuarantineReleased
from sluice_node_agent.core.instructions import RemoveTicket, SetComputeMode, StartMps, WatchMps


def test_a_daemon_that_is_slow_to_answer_is_not_taken_for_dead(node):
    """On a busy node one late answer would end the work of all its tenants."""
    node.ready(node.share("a1", ON_MIG))
    (daemon,) = node.mps.living()
    node.mps.refusals = [WatchMps] * 4
    node.tick(3.0, times=30)
    assert not node.mps.refusals
    assert node.mps.living() == [daemon]
    assert node.word("a1").warnings == ()


def test_a_fault_is_told_keeps_others_out_and_passes(node):
    """New tenants would be put beside a server that refuses them."""
    node.ready(node.share("a1", ON_MIG))
    (daemon,) = node.mps.living()
    daemon.fault = "Xid 31"
    node.tick(6.0)
    assert "Xid 31" in node.says("a1", SliceDegraded).message
    gpu = node.agent.snapshot().gpus[0]
    assert [(span.start, span.size) for span in gpu.quarantined] == [(4, 4)]
    assert [d.state for d in gpu.daemons] == ["fault"]
    daemon.fault = ""
    node.tick(6.0)
    assert isinstance(node.word("a1"), SliceReady)
    assert node.agent.snapshot().gpus[0].quarantined == ()


def test_an_orphaned_home_is_cleared_away_when_its_daemon_is_dead(node):
    """Directories of long gone homes would fill the node."""
    node.ready(node.share("a1", ON_MIG))
    node.mps.die(node.mps.living()[0])
    node.tickets.remove(node.tickets.names()[0])
    node.remove_journal()
    node.ledger.clear()
    node.live()
    assert node.mps.homes == {}


def _daemon_dies(node, *, refused):
    """The daemon of the node's only home dies, and so many starts are refused."""
    node.mps.die(node.mps.living()[0])
    node.mps.refusals = [StartMps] * refused
    node.tick(6.0)


def test_newcomers_do_not_wait_for_ever_for_a_daemon_that_does_not_start(node):
    """A pod that was on its way when the daemon died would be pending without a reason."""
    node.ready(node.share("a1", ON_MIG))
    _daemon_dies(node, refused=100)
    node.order(node.grant(node.share("a2", ON_MIG, owner="pod-2")))
    node.tick(6.0, times=20)
    assert "does not start again: refused by the test" in node.says("a2", SliceFailed).message
    assert isinstance(node.word("a1"), SliceDegraded)
    node.mps.refusals.clear()
    node.tick(6.0, times=10)
    assert isinstance(node.word("a1"), SliceReady)


@PLACES
def test_the_last_tenant_leaves_a_home_whose_daemon_does_not_start(node, place):
    """The place would stay lost until a person mends MPS; or be called stuck although nothing keeps it."""
    booking = node.ready(node.share("a1", place))
    _daemon_dies(node, refused=1000)
    node.tick(6.0, times=20)
    node.order(node.revoke(booking))
    assert node.work()
    assert isinstance(node.word("a1"), SliceGone)
    is_clean(node)


def test_a_compute_mode_that_is_refused_before_a_daemon_starts_again_takes_nothing(node):
    """A whole shared GPU would be taken from its pods because the driver was busy once."""
    node.ready(node.share("a1", WHOLE))
    ticket = node.word("a1").ticket
    node.refused.append(SetComputeMode)
    _daemon_dies(node, refused=0)
    assert isinstance(node.word("a1"), SliceDegraded)
    assert node.tickets.names() == (ticket,)
    node.tick(6.0)
    assert node.says("a1", SliceReady).ticket == ticket


LEAVING = 502


def lose_both_while_one_leaves(node, place):
    """Of two tenants one is leaving: its ticket is gone, and it still computes. Then both copies are lost."""
    stays, leaves = node.share("a1", place), node.share("a2", place, owner="pod-2")
    node.serve(stays, leaves)
    (daemon,) = node.mps.living()
    for pid, owner in ((501, "pod-1"), (LEAVING, "pod-2")):
        node.mps.connect(pid, owner)
    node.order(node.revoke(leaves))
    while not any(isinstance(step, RemoveTicket) for step in node.own_done):
        node.work(own_max=1)
    assert LEAVING in daemon.clients
    node.lose_both()
    node.own_done.clear()
    node.begin()
    return stays, daemon


def ends(node, pid):
    node.mps.disconnect(pid)
    node.tick(2.0, times=5)


def out_of_use(node, place):
    """The places of a GPU that take no tenant, as a pull shows them."""
    return [(at.start, at.size) for at in node.agent.snapshot().gpus[place[0]].quarantined]


@PLACES
def test_no_tenant_is_put_beside_an_unrecorded_process(node, place):
    """Two pods would have one part of a GPU: one gets it, and the other still computes there."""
    lose_both_while_one_leaves(node, place)
    assert out_of_use(node, place) == [(place[2], place[3])]
    node.open()
    node.serve(node.share("a3", place, owner="pod-3"))
    node.tick(2.0, times=5)
    word = node.word("a3")
    assert (type(word), word.error) == (SliceFailed, "InUse")
    assert f"used by process {LEAVING} of no known slice" in word.message
    assert out_of_use(node, place) == [(place[2], place[3])]
    assert isinstance(node.word("a1"), SliceReady)
    ends(node, LEAVING)
    assert out_of_use(node, place) == []
    node.ready(node.share("a4", place, owner="pod-4"))
    assert node.mps.started == 1


def left_with_a_stranger(node, place):
    """The known tenant ends and is revoked: only the process that no record names is left in the home."""
    stays, daemon = lose_both_while_one_leaves(node, place)
    node.open()
    ends(node, 501)
    node.take_back(stays)
    node.tick(5.0, times=12)
    assert isinstance(node.word("a1"), SliceQuarantined)
    return daemon


@PLACES
def test_a_home_is_not_stopped_under_a_process_of_which_nothing_tells(node, place):
    """It would lose what it computes, and its place would be called free."""
    daemon = left_with_a_stranger(node, place)
    assert node.mps.living() == [daemon]
    assert node.word("a1").holders == (f"process {LEAVING}",)
    ends(node, LEAVING)
    assert isinstance(node.word("a1"), SliceGone)
    assert (node.mps.homes, out_of_use(node, place)) == ({}, [])


@PLACES
def test_an_operator_vouches_for_a_process_of_which_nothing_tells(node, place):
    """An operator's own tool would keep the place for good."""
    left_with_a_stranger(node, place)
    node.mps.leave(LEAVING)  # what is left is a client that the server still lists
    node.happens(QuarantineReleased("a1", ignore_holders=True))
    assert isinstance(node.word("a1"), SliceGone)
    assert node.mps.homes == {}


@PLACES
def test_a_daemon_that_dies_is_started_again_and_its_tenants_are_told(node, place):
    """A tenant would hang on a device that it has lost, without a reason."""
    node.ready(node.share("a1", place), node.share("a2", place, owner="pod-2"))
    (daemon,) = node.mps.living()
    node.mps.die(daemon)
    device, ticket = node.word("a1").containers[0].visible_devices, node.word("a1").ticket
    node.now += 6.0
    node.handle(Ticked())
    while not isinstance(node.word("a1"), SliceDegraded):
        assert not node.work(own_max=1)
    assert "died" in node.word("a1").message
    assert node.agent.snapshot().gpus[place[0]].quarantined  # it takes no new tenant
    node.work()
    for allocation in ("a1", "a2"):
        word = node.says(allocation, SliceReady)
        assert (word.containers[0].visible_devices, len(word.warnings)) == (device, 1)
        assert "died once" in word.warnings[0]
    assert node.word("a1").ticket == ticket
    assert len(node.mps.living()) == 1
    node.serve(node.share("a3", place, owner="pod-3"))
    assert node.word("a3").warnings == ()  # it never knew the old one
