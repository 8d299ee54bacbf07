"""An MPS daemon that died: its tenants get a warning, keep their device, and it is restarted."""

from factories.gpus.shared_devices import ON_MIG, PLACES, WHOLE, is_clean, live_with

from sluice.contracts.bus.events import Ticked
from sluice.contracts.messages import SliceDegraded, SliceFailed, SliceGone, SliceReady
from sluice_node_agent.core.instructions import SetComputeMode, StartMps, WatchMps


@PLACES
def test_a_daemon_that_dies_is_started_again_and_its_tenants_are_told(node, place):
    """A tenant would hang on a device that it has lost, without a word."""
    live_with(node, node.share("a1", place), node.share("a2", place, owner="pod-2"))
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
        word = node.word(allocation)
        assert isinstance(word, SliceReady)
        assert (word.containers[0].visible_devices, len(word.warnings)) == (device, 1)
        assert "died once" in word.warnings[0]
    assert node.word("a1").ticket == ticket
    assert len(node.mps.living()) == 1
    node.order(node.grant(node.share("a3", place, owner="pod-3")))
    node.work()
    assert node.word("a3").warnings == ()  # it never knew the old one


def test_a_daemon_that_is_slow_to_answer_is_not_taken_for_dead(node):
    """On a busy node one late answer would end the work of all its tenants."""
    live_with(node, node.share("a1", ON_MIG))
    (daemon,) = node.mps.living()
    node.mps.refusals = [WatchMps] * 4
    for _ in range(30):
        node.tick(3.0)
    assert not node.mps.refusals
    assert node.mps.living() == [daemon]
    assert node.word("a1").warnings == ()


def test_a_fault_is_told_keeps_others_out_and_passes(node):
    """New tenants would be put beside a server that refuses them."""
    live_with(node, node.share("a1", ON_MIG))
    (daemon,) = node.mps.living()
    daemon.fault = "Xid 31"
    node.tick(6.0)
    word = node.word("a1")
    assert isinstance(word, SliceDegraded)
    assert "Xid 31" in word.message
    gpu = node.agent.snapshot().gpus[0]
    assert [(span.start, span.size) for span in gpu.quarantined] == [(4, 4)]
    assert [d.state for d in gpu.daemons] == ["fault"]
    daemon.fault = ""
    node.tick(6.0)
    assert isinstance(node.word("a1"), SliceReady)
    assert node.agent.snapshot().gpus[0].quarantined == ()


def test_a_daemon_that_died_while_the_agent_was_down_is_noticed_before_anything_is_said(node):
    """A container would be started against a daemon that is not there, and run without its limits."""
    live_with(node, node.share("a1", ON_MIG))
    node.stop()
    node.mps.die(node.mps.living()[0])
    node.words.clear()
    node.start()
    said = []
    while node.waiting:
        node.work(own_max=1)
        said.append(type(node.word("a1")))
    assert SliceReady not in said
    node.open()
    node.work()
    word = node.word("a1")
    assert isinstance(word, SliceReady)
    assert "died once" in word.warnings[0]
    assert len(node.mps.living()) == 1


def test_a_home_that_nobody_claims_is_cleared_away_when_its_daemon_is_dead(node):
    """Directories of long gone homes would fill the node."""
    live_with(node, node.share("a1", ON_MIG))
    node.stop()
    node.mps.die(node.mps.living()[0])
    node.tickets.remove(node.tickets.names()[0])
    (node.tmp_path / "agent" / "journal").unlink()
    node.ledger.clear()
    node.live()
    node.work()
    assert node.mps.homes == {}


def _daemon_dies(node, *, refused):
    """The daemon of the node's only home dies, and so many starts are refused."""
    node.mps.die(node.mps.living()[0])
    node.mps.refusals = [StartMps] * refused
    node.tick(6.0)


@PLACES
def test_a_start_that_is_refused_takes_no_device_from_the_pods_that_have_it(node, place):
    """One slow start of a daemon would destroy the instance under every pod of the home."""
    live_with(node, node.share("a1", place), node.share("a2", place, owner="pod-2"))
    before, instances, tickets = node.word("a1"), node.instances(place[0]), node.tickets.names()
    _daemon_dies(node, refused=7)
    word = node.word("a1")
    assert isinstance(word, SliceDegraded)
    assert "died" in word.message
    for _ in range(20):
        assert node.instances(place[0]) == instances
        assert node.tickets.names() == tickets
        node.tick(6.0)
    assert not node.mps.refusals
    for allocation in ("a1", "a2"):
        assert isinstance(node.word(allocation), SliceReady)
        assert "died once" in node.word(allocation).warnings[0]
    assert node.word("a1").ticket == before.ticket
    assert node.word("a1").containers == before.containers


def test_newcomers_do_not_wait_for_ever_for_a_daemon_that_does_not_start(node):
    """A pod that was on its way when the daemon died would be pending without a word."""
    live_with(node, node.share("a1", ON_MIG))
    _daemon_dies(node, refused=100)
    node.order(node.grant(node.share("a2", ON_MIG, owner="pod-2")))
    for _ in range(20):
        node.tick(6.0)
    word = node.word("a2")
    assert isinstance(word, SliceFailed)
    assert "does not start again: refused by the test" in word.message
    assert isinstance(node.word("a1"), SliceDegraded)
    node.mps.refusals.clear()
    for _ in range(10):
        node.tick(6.0)
    assert isinstance(node.word("a1"), SliceReady)


@PLACES
def test_the_last_tenant_leaves_a_home_whose_daemon_does_not_start(node, place):
    """The place would stay lost until somebody mends MPS; or be called stuck although nothing keeps it."""
    booking = node.share("a1", place)
    live_with(node, booking)
    _daemon_dies(node, refused=1000)
    for _ in range(20):
        node.tick(6.0)
    node.order(node.revoke(booking))
    assert node.work()
    assert isinstance(node.word("a1"), SliceGone)
    is_clean(node)


def test_a_compute_mode_that_is_refused_before_a_daemon_starts_again_takes_nothing(node):
    """A whole shared GPU would be taken from its pods because the driver was busy once."""
    live_with(node, node.share("a1", WHOLE))
    ticket = node.word("a1").ticket
    node.refused.append(SetComputeMode)
    _daemon_dies(node, refused=0)
    assert isinstance(node.word("a1"), SliceDegraded)
    assert node.tickets.names() == (ticket,)
    node.tick(6.0)
    assert isinstance(node.word("a1"), SliceReady)
    assert node.word("a1").ticket == ticket
