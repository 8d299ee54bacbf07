"""A head that another allocator has written over: a late one must not open nodes at the speed of the bus."""

from factories.scheduling.allocator import INCARNATION, gpu_report, snapshot

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Ticked, Write
from sluice.contracts.ids import Incarnation, NodeName, RunId
from sluice.contracts.messages import NodeOpened, NodeRemoved
from sluice_allocator.core.state.conditions import Condition

NODE = NodeName("node-a")
SEEN = snapshot("node-a", (gpu_report("node-a", 0),))


def head(run: str = SEEN.agent_run, *, incarnation: Incarnation = INCARNATION, boot: str = SEEN.boot_id) -> NodeOpened:
    return NodeOpened(node=NODE, incarnation=incarnation, boot_id=boot, agent_run=RunId(run), adopted=())


def heads(instructions) -> list:
    return [each for each in instructions if isinstance(each, Write) and isinstance(each.message, NodeOpened)]


def written_over(empty, other: NodeOpened) -> list:
    """Somebody else says it over ours. Returns what is said at once."""
    return heads(empty.observe(subjects.head(NODE), other))


def said_after(empty, seconds: int) -> list[int]:
    """The seconds after which it was repeated, each time landing; another one overwrites it at once."""
    at = []
    for second in range(seconds):
        empty.now += 1
        for write in heads(empty.handle(Ticked())):
            at.append(second + 1)
            empty.land(write)
            assert written_over(empty, head("another")) == []
    return at


def test_what_another_has_opened_for_another_run_is_opened_again_after_growing_pauses(empty):
    """Every process reads each round, and between two heads the node is closed."""
    empty.add_node(SEEN)

    assert written_over(empty, head("another")) == []

    assert said_after(empty, 32) == [1, 3, 7, 15, 23, 31]


def test_a_head_of_another_life_of_the_broker_is_replaced_at_once(empty):
    """It landed late, when the broker had been wiped, and no such message can be right."""
    empty.add_node(SEEN)

    (again,) = written_over(empty, head("another", incarnation=Incarnation("5")))

    assert again.message == head()


def test_whoever_learns_that_the_other_was_right_opens_at_once(empty):
    empty.add_node(SEEN)
    written_over(empty, head("another"))

    seen = snapshot("node-a", (gpu_report("node-a", 0),), agent_run=RunId("third"))
    opened = [write.message for write in empty.add_node(seen)]

    assert [each.agent_run for each in opened if isinstance(each, NodeOpened)] == ["third"]


def test_a_node_that_is_removed_is_not_kept_in_mind(empty):
    """In a fleet that comes and goes they would become more and more, and each be looked at with every tick."""
    empty.add_node(SEEN)
    written_over(empty, head("another"))
    empty.observe(subjects.node(NODE), NodeRemoved(node=NODE, cause="its Node object was deleted"))

    ctx = empty.allocator.ctx
    assert (ctx.heads_written, ctx.conditions.holds(Condition.HEAD_OVERWRITTEN, NODE)) == ({}, False)
