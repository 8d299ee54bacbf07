"""A node that goes for good, with the real services: by its Node object, and by an operator (PROTOCOL §6)."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from factories.cluster.cluster_system import ClusterSystem, whole_on
from factories.cluster.kubernetes import Cluster
from factories.cluster.scenes import Scene, scene_on, user_pod
from fake_kube.server import FakeKube

from sluice.contracts.messages import Closed, NodeClosed, NodeOpened, NodeRemoved

pytestmark = pytest.mark.slow
GONE, STAYS = "gpu-1.example.internal", "gpu-2.example.internal"
HURRY = {
    "SLUICE_INVENTORY_PULL_INTERVAL_S": "0.5",
    "SLUICE_INVENTORY_PULL_TIMEOUT_S": "1",
    "SLUICE_INVENTORY_STALE_AFTER_S": "2",
    "SLUICE_ALLOCATOR_REMOVED_GRACE_S": "2",
}
EXIT_FAILED, EXIT_USAGE, EXIT_NOT_FOUND = 1, 2, 4


@pytest.fixture
def server(kube: FakeKube, tmp_path) -> Cluster:
    """Nodes are removed here: only ever those of a fake."""
    return Cluster(kube.kubeconfig(tmp_path / "config"), kube)


@pytest.fixture
def system(server: Cluster, tmp_path) -> Iterator[ClusterSystem]:
    watcher = {"NODE_REMOVED_AFTER_S": "2", "EVICT_LOST": "false"}
    with whole_on(tmp_path / "whole", server, (GONE, STAYS), watcher=watcher, others=HURRY) as started:
        yield started


def pod_on(name: str, node: str) -> dict[str, Any]:
    """A pod that wants all of a GPU of one node."""
    made = user_pod(name, annotations={"sluice.dev/profile": "7g.40gb"})
    return made | {"spec": made["spec"] | {"nodeSelector": {"kubernetes.io/hostname": node}}}


def closed_with_node(scene: Scene) -> list[str]:
    """Allocations that were closed without a message of an agent."""
    return [message.allocation for _, message in scene.live.fleet_state.of("ledger", Closed) if message.removed]


async def test_a_deleted_node_gives_up_what_it_held_and_takes_it_back_when_it_returns(system, server) -> None:
    """Its grants would stay booked; or its GPUs be given twice, if it returns and is not adopted first."""
    async with scene_on(system, server) as scene:
        for name, node in (("lost", GONE), ("kept", STAYS)):
            await scene.apply(pod_on(name, node))
        pods = await scene.started(2)
        lost, kept = scene.told(pods["lost"]), scene.told(pods["kept"])
        system.agent_of(GONE).kill()
        server.fake.nodes.remove(GONE)
        await scene.until(lambda: closed_with_node(scene) == [lost.allocation], "the grants to be closed")
        assert isinstance(scene.live.fleet_state.at("node", NodeRemoved, GONE), NodeRemoved)
        assert scene.live.fleet_state.at("ledger", NodeClosed, GONE, "head") is not None
        condition = await scene.until(
            lambda: _is_told(scene, "lost", "was removed: its Node object was deleted"), "the event for the pod's owner"
        )
        assert condition["status"] == "False"
        again = scene.told(pods["kept"])
        assert (again.allocation, again.ticket) == (kept.allocation, kept.ticket)
        server.fake.nodes.add(GONE, cpu="64", memory="512Gi")
        system.agent_of(GONE).start()
        await scene.until(lambda: scene.live.fleet_state.at("ledger", NodeOpened, GONE, "head"), "the node to be open")
        assert scene.live.fleet_state.at("ledger", NodeOpened, GONE, "head").adopted == (lost.allocation,)


async def test_an_operator_removes_a_node_whose_agent_is_gone_and_no_other(system, server) -> None:
    """A mistyped name costs no pod its slice."""
    async with scene_on(system, server) as scene:
        await scene.apply(pod_on("lost", GONE))
        await scene.started(1)
        answers = await asyncio.to_thread(system.sluice, "node", "remove", GONE, "--yes")
        assert answers.returncode == EXIT_FAILED, answers
        assert "only a node whose agent is gone can be removed" in answers.stderr
        unknown = await asyncio.to_thread(system.sluice, "node", "remove", "gpu-3", "--yes")
        no_such = "sluice node remove: there is no node 'gpu-3'\n"
        assert (unknown.returncode, unknown.stderr) == (EXIT_NOT_FOUND, no_such)
        system.agent_of(GONE).kill()
        await scene.until(lambda: scene.live.fleet_state.inventories()[GONE].stale, "its silence to be noticed")
        careful = await asyncio.to_thread(system.sluice, "node", "remove", GONE)
        assert (careful.returncode, "7g.40gb at 0" in careful.stdout) == (EXIT_USAGE, True), careful
        assert scene.live.fleet_state.at("node", NodeRemoved, GONE) is None
        done = await asyncio.to_thread(system.sluice, "node", "remove", GONE, "--yes")
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, f"{GONE} is removed; 1 slice was given up"), done
        assert GONE not in (await asyncio.to_thread(system.sluice, "gpus")).stdout
        system.agent_of(GONE).start()
        await scene.until(lambda: GONE in scene.live.fleet_state.inventories(), "the node to be shown again")


async def _is_told(scene: Scene, name: str, what: str) -> dict[str, Any]:
    condition = await scene.condition(name)
    return condition if what in condition.get("message", "") else {}
