"""A node whose agent dies before it has made a slice: its pod goes to another one, and nothing of the node is lost."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from factories.system import Running, fleet_text, standing, up, violations, wait_for, words_at

AWAY = {
    "SLUICE_INVENTORY_PULL_INTERVAL_S": "1",
    "SLUICE_INVENTORY_PULL_TIMEOUT_S": "2",
    "SLUICE_INVENTORY_STALE_AFTER_S": "8",
}
"""Who does not answer is away within seconds; far enough from what a busy machine needs to answer."""
WITHIN_S = 90.0
WHOLE = "7g.40gb"


def node_of(agent: psutil.Process) -> str:
    return agent.environ()["SLUICE_NODE_AGENT_NODES"]


@contextmanager
def stopped(agents: list[psutil.Process]) -> Iterator[None]:
    """The agents are stopped (SIGSTOP); those that still exist continue at the end."""
    for agent in agents:
        agent.suspend()
    try:
        yield
    finally:
        for agent in agents:
            if agent.is_running():
                agent.resume()


def pods(running: Running) -> dict[str, tuple[str, str]]:
    return {pod["name"]: (pod["state"], pod["node"]) for pod in running.json("pods")["pods"]}


def orders(running: Running) -> list[tuple[str, str]]:
    """The slices in the ledgers, with their node."""
    words = asyncio.run(words_at(running.url, "BOOK", "sluice.ledger.>"))
    return sorted((word["type"], word["booking"]["node"]) for word in words if "booking" in word)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_pod_is_served_elsewhere_when_its_agent_dies_before_its_slice_is_made(tmp_path):
    """It would wait as long as the node is away, and the node's place would be lost when it comes back."""
    with up(tmp_path, fleet_text(2, 1), "--processes", "2", environment=AWAY) as running:
        agents = {node_of(agent): agent for agent in running.children("sluice_node_agent")}
        assert len(agents) == 2
        with stopped(list(agents.values())):
            running.write("first", profile=WHOLE)
            wait_for(lambda: len(standing(running).booked) == 1, WITHIN_S, running)
            ((order, dead),) = orders(running)
            assert order == "Grant"
            (other,) = agents.keys() - {dead}
            agents[other].resume()
            wait_for(lambda: pods(running).get("first") == ("bound", other), WITHIN_S, running)

            running.write("second", profile=WHOLE)
            wait_for(lambda: "second" in pods(running), WITHIN_S, running)
            assert pods(running)["second"][0] == "waiting"
            assert orders(running) == sorted([("Revoke", dead), ("Grant", other)])
            agents[dead].kill()
        wait_for(lambda: pods(running)["second"] == ("bound", dead), WITHIN_S, running)
        assert pods(running)["first"] == ("bound", other)
        assert orders(running) == sorted([("Grant", dead), ("Grant", other)])
        assert violations(running) == []
