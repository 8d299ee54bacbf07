"""What an agent says first, how often, and what it says no more."""

import pytest
from factories.words import booking_of
from msgspec.structs import replace

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Entry, ReadLast, Stream
from sluice.contracts.ids import AllocationId, NodeName, OperationId
from sluice.contracts.messages import DeviceGrant, Grant, NodeChanged, Revoke, SliceGone, SliceReady
from sluice_node_agent.core.events import GpuTroubled
from sluice_node_agent.shell.runner.agent_runner import first_status_subject
from sluice_node_agent.simulated.hardware_file import Instance

EVERY_S = 0.5


@pytest.fixture
def node(make_node):
    return make_node(news_every_s=EVERY_S)


def _listen(node):
    said = []
    node.on_write[NodeChanged] = said.append
    return said


def _a_foreign_instance_is_made(node, start):
    with node.hardware.changing() as hardware:
        hardware.gpus[0].instances.append(Instance(gi_id=start + 1, profile="1g.5gb", start=start, size=1))
    node.happens(GpuTroubled(node.gpus[0]))


def test_a_burst_of_slices_is_one_piece_of_news(node):
    """The owner of many pods at once does not wait for an inventory of the node after each step of each."""
    node.tick()
    said = _listen(node)
    bookings = [node.booking(f"a{start}", (0, "1g.5gb", start, 1)) for start in range(4)]
    node.serve(*bookings)
    assert [type(node.word(f"a{start}")) for start in range(4)] == [SliceReady] * 4
    assert len(said) == 1  # when the last of them was ready
    assert said[-1].generation == node.agent.snapshot().generation
    assert said[-1].gpus[0].instances == 4
    node.take_back(*bookings)
    assert [type(node.word(f"a{start}")) for start in range(4)] == [SliceGone] * 4
    assert len(said) == 1
    node.tick()
    assert (len(said), said[-1].gpus[0].instances) == (2, 0)
    node.tick()
    assert len(said) == 2


def test_every_change_reaches_the_opener_of_a_node(node):
    """A node that was opened on old news would be given out without the slices that are on it."""
    node.begin()
    said = _listen(node)
    for start in range(3):
        _a_foreign_instance_is_made(node, start)
    assert [news.gpus[0].instances for news in said] == [1, 2, 3]
    node.open()
    node.work()
    for start in range(3, 6):
        _a_foreign_instance_is_made(node, start)
    assert [news.gpus[0].instances for news in said] == [1, 2, 3, 4]  # the next one EVERY_S after that


def test_news_that_the_bus_has_forgotten_are_said_as_they_are_now(node):
    """After a wipe of the bus nothing waits: the node may be opened again before its agent notices the wipe."""
    node.tick()
    _a_foreign_instance_is_made(node, 0)
    _a_foreign_instance_is_made(node, 1)
    said = _listen(node)
    del node.words[subjects.node(node.name).subject]
    node.now += EVERY_S / 2
    node.agent._look_at = 0.0  # it looks every few seconds, when nothing waits any more
    node.tick(0.0)
    assert said[-1].gpus[0].instances == 2
    _a_foreign_instance_is_made(node, 2)
    assert said[-1].gpus[0].instances == 3
    node.read_ledger()
    node.work()
    before = len(said)
    _a_foreign_instance_is_made(node, 3)
    _a_foreign_instance_is_made(node, 4)
    assert len(said) == before


SMALL = (0, "1g.5gb", 0, 1)


@pytest.mark.parametrize("again", [True, False], ids=["of an earlier run", "of this run"])
def test_old_news_that_landed_late_are_not_taken_for_what_was_said(node, again):
    """The inventory would pull from a dead address, or not at all: the node is useless until its agent restarts."""
    first = node.news()
    if again:
        node.live()
    node.serve(node.booking("a1", SMALL))
    node.tick(10.0)
    news, word = node.news(), node.word("a1")
    assert (news.agent_run, news.generation) > (first.agent_run, first.generation)
    node.words.clear()
    node.sequence += 1
    address = subjects.node(node.name).subject
    node.words[address] = Entry(address, node.sequence, OperationId(f"{first.agent_run}-1"), first)
    node.tick(10.0)
    node.tick(10.0)
    assert node.news() == news
    assert node.word("a1") == word


NODE, ALLOCATION = NodeName("gpu-1.example"), AllocationId("r1_run_1")
DEVICE = DeviceGrant(container="main", gpu="GPU-1", profile="1g.5gb", start=0, size=1)
BOOKING = booking_of(ALLOCATION, NODE, (DEVICE,), request="r1", name="p")
REVOKE = Revoke(booking=BOOKING, incarnation="1", revision=2, cause="pod gone")
GRANT = Grant(booking=BOOKING, incarnation="1", revision=1)


def _entry(message):
    return Entry(subjects.ledger(NODE, ALLOCATION).subject, 7, OperationId("o1"), message)


def test_a_new_slice_is_spoken_of_where_its_agent_will_write():
    """The agent would look at another subject, and ask for its own when the pod waits for it."""
    wanted = ReadLast(Stream.STATE, subjects.slice_(NODE, ALLOCATION).subject)
    assert first_status_subject(_entry(GRANT)) == wanted


@pytest.mark.parametrize("message", [None, replace(GRANT, revision=2), replace(GRANT, adopted=True), REVOKE])
def test_what_was_spoken_of_before_is_not_looked_at_early(message):
    """An agent that has published a message knows more than the broker could send it from before that."""
    assert first_status_subject(_entry(message)) is None
