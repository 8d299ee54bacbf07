"""
A node autoscaler and pods that wait for slices, on the way that users go: from no GPU node to what they need, and back.

Every part of Sluice is the real one. The autoscaler is scripted: as cluster-autoscaler and Karpenter do, it adds a node
for an unschedulable pod that would fit on an empty one, and removes nodes on which nothing runs. It knows nothing of
Sluice.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import pytest
import yaml
from factories.cluster.cluster_system import DEPLOYED, ClusterSystem, whole_on
from factories.cluster.kubernetes import Cluster, Json
from factories.cluster.scenes import Scene, scene_on, user_pod
from fake_kube.components import scheduler
from fake_kube.server import FakeKube

from sluice.contracts.messages import NodeInventory, PoolDemand

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
SYSTEM = "/api/v1/namespaces/sluice-system/pods"
LABELS = {"sluice.dev/pool": "a100"}
GPUS, PER_NODE = 2, 14
"""Of each node, and how many 1g.5gb it holds."""
TURN_S, IDLE_TURNS = 0.2, 10
POOL = f"""
[[node]]
name = "a100"
pool = "a100"
cpu_cores = 64
memory_mib = 262144
gpus = [{{ model = "A100-SXM4-40GB", count = {GPUS}, mig = true }}]
"""
PROFILE = {"sluice.dev/profile": "1g.5gb"}


@dataclass
class Autoscaler:
    """A node group that began with no node."""

    system: ClusterSystem
    fake: FakeKube
    added: list[str] = field(default_factory=list)
    """All nodes there ever were, in order."""
    there: list[str] = field(default_factory=list)
    is_slow: bool = False
    """Whether its provider has no machine for now."""
    _idle: Counter[str] = field(default_factory=Counter)

    async def run(self) -> None:
        while True:
            pods = self.fake.all("pods")
            for _ in [each for each in pods if not self.is_slow and _is_unschedulable(each) and self._would_fit(each)]:
                await self._add()
            for node in list(self.there):
                is_used = any(each["spec"].get("nodeName") == node for each in pods)
                self._idle[node] = 0 if is_used else self._idle[node] + 1
                if self._idle[node] > IDLE_TURNS:
                    await self.remove(node)
            await asyncio.sleep(TURN_S)

    async def _add(self) -> None:
        name = f"gpu-{len(self.added)}"
        self.added.append(name)
        await asyncio.to_thread(self.fake.nodes.add, name, cpu="64", memory="256Gi", labels=LABELS)
        await asyncio.to_thread(self.system.join, name, gpus=GPUS)
        self.there.append(name)

    async def remove(self, node: str) -> None:
        """The machine is gone at once, and then its Node object. Nothing else is said about it."""
        self.there.remove(node)
        await asyncio.to_thread(self.system.vanish, node)
        await asyncio.to_thread(self.fake.nodes.remove, node)

    def _would_fit(self, pod: Json) -> bool:
        template = {
            "metadata": {"name": "new", "labels": {**LABELS, "kubernetes.io/hostname": "new"}},
            "status": {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110"}},
        }
        return not scheduler.obstacle(pod, template, Counter())


def _is_unschedulable(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    waits = any(each["type"] == "PodScheduled" and each.get("reason") == "Unschedulable" for each in conditions)
    return waits and not pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp")


@pytest.fixture(scope="module")
def system(server: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSystem]:
    """A cluster that never had a GPU node; its operator has described one."""
    server.only_fake("machines on command")
    folder = tmp_path_factory.mktemp("scales")
    pools = folder / "pools.toml"
    pools.write_text(POOL)
    others = {
        "SLUICE_ALLOCATOR_NODES_ASKED_MAX": "10",
        "SLUICE_ALLOCATOR_NODE_POOLS": str(pools),
        "SLUICE_ALLOCATOR_REMOVED_GRACE_S": "1",
    }
    with whole_on(folder, server, (), watcher={"NODE_REMOVED_AFTER_S": "1"}, others=others) as started:
        asyncio.run(_install_component(server))
        yield started


async def _install_component(server: Cluster) -> None:
    text = (DEPLOYED.parent / "components" / "autoscaling" / "added.yaml").read_text(encoding="utf-8")
    (found,) = (each for each in yaml.safe_load_all(text) if each["kind"] == "PriorityClass")
    async with server.opened() as opened:
        await opened.create("/apis/scheduling.k8s.io/v1/priorityclasses", found)


@pytest.fixture
async def scaled(system: ClusterSystem, server: Cluster) -> AsyncIterator[tuple[Scene, Autoscaler]]:
    assert server.fake is not None
    async with scene_on(system, server) as scene:
        autoscaler = Autoscaler(system, server.fake)
        working = asyncio.create_task(autoscaler.run())
        try:
            yield scene, autoscaler
            await scene._delete_all()
            await _back_to_none(scene, autoscaler)
        finally:
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working


async def placeholders(scene: Scene) -> list[Json]:
    listed = (await scene.cluster.get(SYSTEM)).items
    return [each for each in listed if "sluice.dev/capacity" in (each["metadata"].get("labels") or {})]


async def _back_to_none(scene: Scene, autoscaler: Autoscaler) -> None:
    async def look() -> bool:
        demand = scene.live.fleet_state.at("pool", PoolDemand, "a100")
        shown = [each for _, each in scene.live.fleet_state.of("inventory", NodeInventory) if not each.removed]
        is_missing = demand is not None and demand.missing
        return not (autoscaler.there or await placeholders(scene) or is_missing or shown)

    await scene.until(look, "the cluster to have no GPU node again", 90)


async def test_forty_pods_get_the_nodes_that_they_need_and_the_nodes_go_with_them(scaled) -> None:
    """Behind their gates an autoscaler does not see them: they would wait for ever."""
    scene, autoscaler = scaled
    for number in range(40):
        await scene.apply(user_pod(f"p{number}", annotations=PROFILE))
    pods = await scene.started(40, within_s=120)
    on = Counter(each["spec"]["nodeName"] for each in pods.values())
    assert len(autoscaler.added) == -(-40 // PER_NODE), "as few machines as hold them"
    assert set(on) == set(autoscaler.added)
    await scene.until(lambda: _none(scene), "the placeholders to go")
    said = await asyncio.to_thread(scene.system.sluice, "consolidate")
    assert said.stdout.startswith("no node would be empty"), said


async def _none(scene: Scene) -> bool:
    return not await placeholders(scene)


async def test_a_pod_says_which_node_was_asked_for(scaled) -> None:
    """Or its owner takes it for one that no node will ever serve."""
    scene, autoscaler = scaled
    autoscaler.is_slow = True
    await scene.apply(user_pod("p", annotations=PROFILE))
    sentence = "Asked the autoscaler for 1 more node of pool a100"
    await scene.until(lambda: scene.is_told("p", sentence), "its condition to say so")
    assert [each["metadata"]["name"] for each in await placeholders(scene)] == ["sluice-capacity-a100-0"]
    autoscaler.is_slow = False
    await scene.started(1, within_s=60)


async def test_a_machine_that_vanishes_is_replaced_for_its_pods(scaled) -> None:
    """A spot instance ends: its slices count no more, and what waits gets a new node."""
    scene, autoscaler = scaled
    await scene.apply(user_pod("first", annotations=PROFILE))
    (first,) = (await scene.started(1, within_s=60)).values()
    await autoscaler.remove(first["spec"]["nodeName"])
    await scene.delete("first", grace_s=0)
    await scene.apply(user_pod("second", annotations=PROFILE))

    async def runs() -> Json | None:
        found = (await scene.pods()).get("second")
        return found if found is not None and scene._has_started(found) else None

    second = await scene.until(runs, "the second pod to start", 90)
    assert second["spec"]["nodeName"] == autoscaler.added[-1] != first["spec"]["nodeName"]
