"""Nodes that join after pods have asked for what only they have, and one that restarts and is silent."""

import pytest
from simulation.harness.search import catches
from simulation.planted.allocator.refusals import first_reason_only
from simulation.schedules.scene import A30_NODE, MIG_NODE, Scene, sliced

from sluice.contracts.messages import Grant, NodeChanged, Pending, Refused

SILENT_S = 30.0
"""Until the inventory counts a node as silent (12 s after the last answer), and a slice is made elsewhere."""


def asked_before_it_joins(allocators: int = 1) -> None:
    """A pod asks for a profile of the A30 before there is one; then a node with one joins."""
    scene = Scene(MIG_NODE, A30_NODE, allocators=allocators, late=("node-1",))
    landed = scene.landed()
    scene.pod("early", sliced("2g.12gb"))
    scene.serve("other", sliced("1g.5gb"))
    scene.wait(5)
    scene.join("node-1")
    scene.wait(15)
    scene.finish()
    told = [write.message for write in landed]
    assert any(isinstance(each, Pending) and "no GPU here has 2g.12gb" in each.message for each in told)
    assert not any(isinstance(each, Refused) for each in told)


@pytest.mark.parametrize("allocators", [1, 2])
def test_who_asked_before_the_node_was_there_is_served_when_it_joins(allocators: int) -> None:
    """A pod for a pool at zero nodes would be refused for ever."""
    asked_before_it_joins(allocators)


def test_after_a_wipe_who_is_read_before_the_inventories_is_served() -> None:
    """The broker is empty, and requests come before any agent publishes what nodes have."""
    scene = Scene(A30_NODE)
    scene.serve("a", sliced("4g.24gb"))
    scene.strike("pause", "inventory", lasts_s=6.0)
    scene.strike("broker wipe")
    scene.pod("b", sliced("2g.12gb"))
    scene.wait(10)
    scene.remove("a")
    scene.finish(once=lambda: scene.runs("b"), longest_s=60.0)


@catches(first_reason_only)
def test_a_pod_is_served_elsewhere_whose_agent_restarts_and_is_silent() -> None:
    """Its agent dies before it has made the slice, says that it is there again, and dies for good."""
    scene = Scene(MIG_NODE, MIG_NODE)
    scene.pod("a", sliced("7g.40gb"))
    node = scene.until_lands(Grant).booking.node
    agent, landed = scene.host(f"agent-{node}"), scene.landed()
    agent.kill()
    agent.start()
    scene.until_lands(NodeChanged)
    agent.kill()
    end = scene.world.clockwork.now + SILENT_S
    while not scene.runs("a"):
        if scene.world.clockwork.now >= end:
            scene.world.judge.fail("I4", f"a waits for {node}, which is silent, and would fit on the other")
        scene.wait(0.25)
    assert not any(write.subject.startswith(f"sluice.slice.{node}.") for write in landed)
    assert scene.bound("a").node != node
    scene.finish()
