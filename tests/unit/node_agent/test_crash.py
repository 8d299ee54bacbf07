"""A crash between any two steps: nothing is lost, nothing is made twice, nothing is forgotten on a GPU."""

import pytest

from sluice.contracts.messages import SliceGone, SliceReady

BOTH = ((0, "3g.20gb", 4, 4), (1, "1g.5gb", 6, 1))


def _finish(node, order):
    """A new life after the crash, that is opened and ends what was begun."""
    node.live()
    assert node.work()
    return node.word("a1")


@pytest.mark.parametrize("executed", [False, True], ids=["before", "after"])
def test_making_survives_a_crash_at_every_step(make_node, executed):
    """A user's slice is made exactly once, wherever the agent dies (an instruction out may or may not be done)."""
    steps = 0
    while True:
        node = make_node()
        node.live()
        grant = node.grant(node.booking("a1", *BOTH))
        node.order(grant)
        ended = node.work(own_max=steps)
        if not ended and executed:
            node.carry_out(node.waiting.popleft())
        word = _finish(node, grant)
        assert isinstance(word, SliceReady), steps
        assert (node.instances(0), node.instances(1)) == ([("3g.20gb", 4, 4)], [("1g.5gb", 6, 1)]), steps
        assert [d.uuid for d in word.devices] == [node.hardware.read().gpus[n].instances[0].uuid for n in (0, 1)]
        assert node.tickets.names() == (word.ticket,), steps
        if ended:
            break
        steps += 1
    assert steps >= 15


@pytest.mark.parametrize("executed", [False, True], ids=["before", "after"])
def test_unmaking_survives_a_crash_at_every_step(make_node, executed):
    """What a pod gave back is given back wherever the agent dies, and only then called gone."""
    steps = 0
    while True:
        node = make_node()
        node.live()
        booking = node.booking("a1", *BOTH)
        node.order(node.grant(booking))
        node.work()
        node.order(node.revoke(booking))
        ended = node.work(own_max=steps)
        if not ended and executed:
            node.carry_out(node.waiting.popleft())
        if isinstance(node.word("a1"), SliceGone):
            assert (node.instances(0), node.instances(1)) == ([], [])
        word = _finish(node, None)
        assert isinstance(word, SliceGone), steps
        assert word.revision == 2
        assert (node.instances(0), node.instances(1), node.tickets.names()) == ([], [], ()), steps
        assert node.agent.snapshot().slices == ()
        if ended:
            break
        steps += 1
    assert steps >= 10


@pytest.mark.parametrize("executed", [False, True], ids=["before", "after"])
def test_a_revoke_while_down_ends_what_was_half_made(make_node, executed):
    """A pod that goes away while the agent is down leaves nothing behind, however far its slice was."""
    steps = 0
    while True:
        node = make_node()
        node.live()
        booking = node.booking("a1", *BOTH)
        node.order(node.grant(booking))
        ended = node.work(own_max=steps)
        if not ended and executed:
            node.carry_out(node.waiting.popleft())
        node.stop()
        node.put(f"sluice.ledger.n1_example.{booking.allocation}", node.revoke(booking))
        word = _finish(node, None)
        assert isinstance(word, SliceGone), steps
        assert (node.instances(0), node.instances(1), node.tickets.names()) == ([], [], ()), steps
        if ended:
            break
        steps += 1
