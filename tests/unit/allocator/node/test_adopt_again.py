"""A head that another allocator has written over is written again."""

import pytest
from factories.scheduling.allocator import INCARNATION, gpu_report, only, snapshot

from sluice.contracts.bus import subjects
from sluice.contracts.ids import Incarnation, NodeName, RunId
from sluice.contracts.messages import NodeOpened

NODE = NodeName("node-a")
SEEN = snapshot("node-a", (gpu_report("node-a", 0),))


def head(run: str = SEEN.agent_run, *, incarnation: Incarnation = INCARNATION) -> NodeOpened:
    return NodeOpened(node=NODE, incarnation=incarnation, boot_id=SEEN.boot_id, agent_run=RunId(run), adopted=())


@pytest.mark.parametrize("other", [head("another"), head("another", incarnation=Incarnation("5"))])
def test_a_head_for_another_run_or_life_is_replaced_at_once(empty, other):
    """Its writer read late, or it landed when the broker had been wiped: no such message can be right."""
    empty.add_node(SEEN)
    assert only(NodeOpened, empty.observe(subjects.head(NODE), other)) == [head()]
