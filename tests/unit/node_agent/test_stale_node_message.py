"""STATE is lost without a broken connection, and an old NodeChanged lands there before the agent checks."""

import pytest

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Entry
from sluice.contracts.ids import OperationId

SMALL = (0, "1g.5gb", 0, 1)


@pytest.mark.parametrize("again", [True, False], ids=["of an earlier run", "of this run"])
def test_old_news_that_landed_late_are_not_taken_for_what_was_said(node, again):
    """The inventory would pull from a dead address, or not at all: the node is useless until its agent restarts."""
    node.live()
    first = node.news()
    if again:
        node.live()
    node.order(node.grant(node.booking("a1", SMALL)))
    node.work()
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
