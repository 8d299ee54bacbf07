"""How often a node says that it has changed: seldom while others can rely on its ledger, at once when they cannot."""

from itertools import pairwise

import pytest

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Write
from sluice.contracts.messages import NodeChanged, SliceGone, SliceReady
from sluice_node_agent.core.events import GpuTroubled
from sluice_node_agent.simulated.hardware_file import Instance

EVERY_S = 0.5


@pytest.fixture
def node(make_node):
    return make_node(news_every_s=EVERY_S)


def _listen(node):
    said, answer = [], node.answer

    def listening(instruction):
        if isinstance(instruction, Write) and isinstance(instruction.message, NodeChanged):
            said.append(instruction.message)
        answer(instruction)

    node.answer = listening
    return said


def _somebody_makes_an_instance(node, start):
    with node.hardware.changing() as hardware:
        hardware.gpus[0].instances.append(Instance(gi_id=start + 1, profile="1g.5gb", start=start, size=1))
    node.handle(GpuTroubled(node.gpus[0]))
    node.work()


def test_a_burst_of_slices_is_one_piece_of_news(node):
    """Who has many pods at once does not wait for an inventory of the node after each step of each."""
    node.live()
    node.tick()
    said = _listen(node)
    bookings = [node.booking(f"a{start}", (0, "1g.5gb", start, 1)) for start in range(4)]
    for booking in bookings:
        node.order(node.grant(booking))
    node.work()
    assert [type(node.word(f"a{start}")) for start in range(4)] == [SliceReady] * 4
    assert len(said) == 1  # when the last of them was ready
    assert said[-1].generation == node.agent.snapshot().generation
    assert said[-1].gpus[0].instances == 4
    for booking in bookings:
        node.order(node.revoke(booking))
    node.work()
    assert [type(node.word(f"a{start}")) for start in range(4)] == [SliceGone] * 4
    assert len(said) == 1
    node.tick()
    assert (len(said), said[-1].gpus[0].instances) == (2, 0)
    node.tick()
    assert len(said) == 2


def test_whoever_opens_a_node_hears_of_every_change(node):
    """A node that was opened on old news would be given out without the slices that are on it."""
    node.start()
    node.work()
    said = _listen(node)
    for start in range(3):
        _somebody_makes_an_instance(node, start)
    assert [news.gpus[0].instances for news in said] == [1, 2, 3]
    node.open()
    node.work()
    for start in range(3, 6):
        _somebody_makes_an_instance(node, start)
    assert [news.gpus[0].instances for news in said] == [1, 2, 3, 4]  # the next one EVERY_S after that


def test_news_that_the_bus_has_forgotten_are_said_as_they_are_now(node):
    """After a wipe of the bus nothing waits: the node may be opened again before its agent notices the wipe."""
    node.live()
    node.tick()
    _somebody_makes_an_instance(node, 0)
    _somebody_makes_an_instance(node, 1)
    said = _listen(node)
    del node.words[subjects.node(node.name).subject]
    node.now += EVERY_S / 2
    node.agent._look_at = 0.0  # it looks every few seconds, when nothing waits any more
    node.tick(0.0)
    assert said[-1].gpus[0].instances == 2
    _somebody_makes_an_instance(node, 2)
    assert said[-1].gpus[0].instances == 3
    node.read_ledger()
    node.work()
    before = len(said)
    _somebody_makes_an_instance(node, 3)
    _somebody_makes_an_instance(node, 4)
    assert len(said) == before


def test_who_pulls_in_the_middle_of_a_burst_gets_what_is_true_then(node):
    """An inventory would show what was there half a second ago, or two states of a node under one generation."""
    node.live()
    node.tick()
    said = _listen(node)
    shown = []
    node.order(node.grant(node.booking("a1", (0, "1g.5gb", 0, 1))))
    while not node.work(own_max=1):
        pulled = node.agent.snapshot()
        assert len(pulled.gpus[0].instances) == len(node.instances())
        shown.append((pulled.generation, pulled.gpus, pulled.slices))
    for before, after in pairwise(shown):
        assert after[0] == before[0] + (after[1:] != before[1:])
    assert shown[-1][0] > shown[0][0]
    node.tick()
    assert said[-1].generation == node.agent.snapshot().generation
    assert {report.state for report in node.agent.snapshot().slices} == {"ready"}
