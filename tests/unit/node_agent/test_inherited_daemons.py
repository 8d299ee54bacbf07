"""Journal and ledger lost while a slice was being destroyed: its processes are in a home, and no record names it."""

import pytest

from sluice.contracts.messages import SliceFailed, SliceGone, SliceQuarantined, SliceReady
from sluice_node_agent.core.events import QuarantineReleased
from sluice_node_agent.core.instructions import RemoveTicket

ON_MIG = (0, "3g.20gb", 4, 4)
WHOLE = (2, None, 0, 8)
PLACES = pytest.mark.parametrize("place", [ON_MIG, WHOLE], ids=["on an instance", "on a whole GPU"])
LEAVING = 502


def lose_both_while_one_leaves(node, place):
    """Of two tenants one is leaving: its ticket is gone, and it still computes. Then both copies are lost."""
    stays, leaves = node.share("a1", place), node.share("a2", place, owner="pod-2")
    node.live()
    for booking in (stays, leaves):
        node.order(node.grant(booking))
        node.work()
    (daemon,) = node.mps.living()
    for pid, owner in ((501, "pod-1"), (LEAVING, "pod-2")):
        daemon.clients[pid] = owner
        node.mps.enter(pid, daemon.order.device, owner)
    node.order(node.revoke(leaves))
    while not any(isinstance(step, RemoveTicket) for step in node.own_done):
        node.work(own_max=1)
    assert LEAVING in daemon.clients
    node.stop()
    (node.tmp_path / "agent" / "journal").unlink()
    node.ledger.clear()
    node.words.clear()
    node.own_done.clear()
    node.start()
    node.work()
    return stays, daemon


def ends(node, daemon, *pids):
    for pid in pids:
        del daemon.clients[pid]
        node.mps.leave(pid)
    for _ in range(5):
        node.tick(2.0)


def out_of_use(node, place):
    """The places of a GPU that take no tenant, as a pull shows them."""
    return [(at.start, at.size) for at in node.agent.snapshot().gpus[place[0]].quarantined]


@PLACES
def test_nobody_is_put_beside_a_process_of_which_nothing_tells(node, place):
    """Two pods would have one part of a GPU: one gets it, and the other still computes there."""
    _, daemon = lose_both_while_one_leaves(node, place)
    assert out_of_use(node, place) == [(place[2], place[3])]
    node.open()
    node.order(node.grant(node.share("a3", place, owner="pod-3")))
    node.work()
    for _ in range(5):
        node.tick(2.0)
    word = node.word("a3")
    assert isinstance(word, SliceFailed)
    assert word.error == "InUse"
    assert f"used by process {LEAVING} of no known slice" in word.message
    assert out_of_use(node, place) == [(place[2], place[3])]
    assert isinstance(node.word("a1"), SliceReady)
    ends(node, daemon, LEAVING)
    assert out_of_use(node, place) == []
    node.order(node.grant(node.share("a4", place, owner="pod-4")))
    node.work()
    assert isinstance(node.word("a4"), SliceReady)
    assert node.mps.started == 1


@PLACES
def test_a_home_is_not_stopped_under_a_process_of_which_nothing_tells(node, place):
    """It would lose what it computes, and its place would be called free."""
    stays, daemon = lose_both_while_one_leaves(node, place)
    node.open()
    ends(node, daemon, 501)
    node.order(node.revoke(stays))
    node.work()
    for _ in range(12):
        node.tick(5.0)
    assert node.mps.living() == [daemon]
    word = node.word("a1")
    assert isinstance(word, SliceQuarantined)
    assert word.holders == (f"process {LEAVING}",)
    ends(node, daemon, LEAVING)
    assert isinstance(node.word("a1"), SliceGone)
    assert (node.mps.homes, out_of_use(node, place)) == ({}, [])


@PLACES
def test_an_operator_vouches_for_a_process_of_which_nothing_tells(node, place):
    """An operator's own tool would keep the place for good."""
    stays, daemon = lose_both_while_one_leaves(node, place)
    node.open()
    ends(node, daemon, 501)
    node.order(node.revoke(stays))
    node.work()
    for _ in range(12):
        node.tick(5.0)
    assert isinstance(node.word("a1"), SliceQuarantined)
    node.mps.leave(LEAVING)  # what is left is a client that the server still lists
    node.handle(QuarantineReleased("a1", ignore_holders=True))
    node.work()
    assert isinstance(node.word("a1"), SliceGone)
    assert node.mps.homes == {}
