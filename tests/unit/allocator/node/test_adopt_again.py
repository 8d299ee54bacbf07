"""A head that another allocator has written over is written again."""

import pytest
from factories.scheduling.allocator import INCARNATION, gpu_report, snapshot

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Write
from sluice.contracts.ids import Incarnation, NodeName, RunId
from sluice.contracts.messages import NodeOpened

NODE = NodeName("node-a")
SEEN = snapshot("node-a", (gpu_report("node-a", 0),))


def head(run: str = SEEN.agent_run, *, incarnation: Incarnation = INCARNATION, boot: str = SEEN.boot_id) -> NodeOpened:
    return NodeOpened(node=NODE, incarnation=incarnation, boot_id=boot, agent_run=RunId(run), adopted=())


def heads(instructions) -> list:
    return [each for each in instructions if isinstance(each, Write) and isinstance(each.message, NodeOpened)]


def written_over(empty, other: NodeOpened) -> list:
    """Somebody else says it over ours. Returns what is said at once."""
    return heads(empty.observe(subjects.head(NODE), other))


@pytest.mark.parametrize("other", [head("another"), head("another", incarnation=Incarnation("5"))])
def test_a_head_for_another_run_or_life_is_replaced_at_once(empty, other):
    """Its writer read late, or it landed when the broker had been wiped: no such message can be right."""
    empty.add_node(SEEN)
    (again,) = written_over(empty, other)
    assert again.message == head()
