"""A watcher gets the last state of each node, and cannot hold up anything else."""

import asyncio

import pytest
from factories.inventory import NODE, RULES, RUN, Bench, news, snapshot

from sluice.contracts.ids import NodeName
from sluice_inventory.core.events import PullSucceeded
from sluice_inventory.core.inventory import Inventory
from sluice_inventory.shell.watchers import NotifyingInventory, TooManyWatchersError, Watchers

A, B, C = NodeName("a"), NodeName("b"), NodeName("c")


async def test_a_node_that_changes_often_waits_once():
    """Memory is bounded by the number of nodes, not of changes; the order is that of the first change."""
    watchers = Watchers(watchers_max=1, pending_max=2)
    with watchers.watch(frozenset()) as watcher:
        for name in (A, B, A, B, A):
            watchers.tell(name)
        assert [await watcher.next(), await watcher.next()] == [A, B]


async def test_a_watcher_that_does_not_read_is_ended():
    """More changed nodes than may be queued: it ends, and the others do not."""
    watchers = Watchers(watchers_max=2, pending_max=2)
    with watchers.watch(frozenset()) as slow, watchers.watch(frozenset({"c"})) as other:
        for name in (A, B, C):
            watchers.tell(name)
        assert slow.too_slow
        assert await slow.next() is None
        assert await other.next() == C


async def test_a_waiting_watcher_is_woken():
    """`next` returns when something happens, not on a timer."""
    watchers = Watchers(watchers_max=1, pending_max=2)
    with watchers.watch(frozenset()) as watcher:
        waiting = asyncio.create_task(watcher.next())
        await asyncio.sleep(0)
        watchers.tell(A)
        async with asyncio.timeout(1):
            assert await waiting == A


def test_a_watcher_that_leaves_makes_room():
    watchers = Watchers(watchers_max=1, pending_max=1)
    with watchers.watch(frozenset()), pytest.raises(TooManyWatchersError), watchers.watch(frozenset()):
        pass
    with watchers.watch(frozenset()):
        pass


async def test_the_core_tells_watchers_through_its_runner():
    """Watchers are notified of an event's changes; the instructions are the core's own."""
    watchers = Watchers(watchers_max=1, pending_max=8)
    bench = Bench(NotifyingInventory(Inventory(RUN, RULES), watchers))
    with watchers.watch(frozenset()) as watcher:
        bench.start_reading()
        bench.caught_up()
        bench.hear(news())
        assert await watcher.next() == NODE
        assert bench.feed(PullSucceeded(NODE, snapshot(), "")) != []
        assert await watcher.next() == NODE
        assert bench.at(31.0) != []
        assert await watcher.next() == NODE
