"""Pods that ask for what no node has: what a person reads, and that they start when it comes; real parts, fake GPUs."""

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
from factories.cluster.admission import gpu
from factories.cluster.cluster_system import ClusterSystem, whole_on
from factories.cluster.kubernetes import Cluster, Json
from factories.cluster.played_nodes import played_nodes
from factories.cluster.scenes import Scene, scene_on, user_pod

from sluice.contracts.messages import HostFacts, Refused

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
NODES = ("gpu-1.example.internal", "gpu-2.example.internal")
MERGE = "application/merge-patch+json"
LATE = "gpu-late"


@pytest.fixture(scope="module")
def system(server: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSystem]:
    """Two nodes of two A100 each, with 512 GiB of memory."""
    with whole_on(tmp_path_factory.mktemp("there"), server, NODES, own_nodes=True) as started:
        yield started


@pytest.fixture
def at(system: ClusterSystem, server: Cluster):
    """Opens a namespace of the test's own: `async with at as scene`."""
    return scene_on(system, server)


def asking(name: str, *, memory: str = "", more: Json | None = None, **amounts: str) -> Json:
    """A pod that asks for GPUs, and for what else a node must have."""
    others = ({"memory": memory} if memory else {}) | (more or {})
    resources = {part: amount | others for part, amount in gpu(**amounts).items()}
    return user_pod(name, resources=resources)


async def told(scene: Scene, name: str, *words: str) -> str:
    """What the condition of a pod says, once it says all of this."""

    async def look() -> str:
        message = str((await scene.condition(name)).get("message", ""))
        return message if all(word in message for word in words) else ""

    return await scene.until(look, f"{name} to be told {words}")


NEVER = {
    "profile": (
        user_pod("p", resources={"limits": {"nvidia.com/mig-4g.24gb": "1"}}),
        "no GPU here has 4g.24gb. Closest: 4g.20gb (A100-40GB)",
    ),
    "size": (
        user_pod("p", annotations={"sluice.dev/memory": "170Gi"}),
        "no GPU here has 170 GiB of memory for one device; the most is 39 GiB: 7g.40gb (A100-40GB)",
    ),
    "count": (asking("p", gpu="3"), "it asks for 3 GPUs, and the most is 2 on one node"),
    "memory": (asking("p", gpu="1", memory="2Ti"), "it requests 2048 GiB of memory, and the largest node has 512 GiB"),
    "typo": (
        asking("p", gpu="1", more={"nvidia.com/gpu-mem": "4000"}),
        "no node here has the resource nvidia.com/gpu-mem; did you mean nvidia.com/gpumem?",
    ),
    "resource": (
        asking("p", gpu="1", more={"rdma/shared_mlx5": "1"}),
        "no node here has the resource rdma/shared_mlx5",
    ),
    "label": (
        user_pod("p", annotations={"sluice.dev/profile": "1g.5gb"}, nodeSelector={"kubernetes.io/os": "plan9"}),
        "no node here has the label kubernetes.io/os=plan9; there is kubernetes.io/os=linux",
    ),
}


@pytest.mark.parametrize("what", NEVER)
async def test_what_no_node_here_has_is_named_in_one_sentence_with_the_nearest_thing(at, what: str) -> None:
    """A person would read that it starts when others end, or four lines of profiles; or be refused for good."""
    body, sentence = NEVER[what]
    async with at as scene:
        await scene.apply(body)
        message = await told(scene, "p", "[NoNodeCanFit]")
        assert message.startswith(sentence)
        events = (await scene.cluster.get(f"/apis/events.k8s.io/v1/namespaces/{scene.namespace}/events")).items
        assert [each["note"] for each in events if each["reason"] == "WaitsForSlice"] == [message]
        found = scene.system.sluice("explain", f"{scene.namespace}/p")
        assert sentence in " ".join(found.stdout.split()), found


KEPT_AWAY = {
    "NodeCordoned": ("node.kubernetes.io/unschedulable", True),
    "NodeNotReady": ("node.kubernetes.io/not-ready", False),
    "NodeUnderPressure": ("node.kubernetes.io/memory-pressure", False),
    "NodeLeaving": ("ToBeDeletedByClusterAutoscaler", False),
}


CONDITIONS = {
    "node.kubernetes.io/not-ready": ("Ready", "False"),
    "node.kubernetes.io/memory-pressure": ("MemoryPressure", "True"),
}
"""Of a node's status, from which a real cluster sets these taints, and removes them where there is no cause."""
WELL = {"Ready": "True", "MemoryPressure": "False"}


async def taint(scene: Scene, key: str | None, *, cordoned: bool = False) -> None:
    """Kubernetes keeps pods from every node; or from none any more."""
    kind, state = CONDITIONS.get(key or "", ("", ""))
    if scene.cluster.fake is None:
        conditions = [{"type": each, "status": state if each == kind else well} for each, well in WELL.items()]
        for node in scene.system.nodes:
            path, body = f"/api/v1/nodes/{node}/status", {"status": {"conditions": conditions}}
            assert (await scene.cluster.patch(path, body)).code == 200
        if kind:
            return
    taints = [{"key": key, "effect": "NoSchedule"}] if key is not None else []
    for node in scene.system.nodes:
        spec = {"spec": {"taints": taints, "unschedulable": cordoned}}
        done = await scene.cluster.patch(f"/api/v1/nodes/{node}", spec, MERGE)
        assert done.code == 200, done


@pytest.mark.parametrize("reason", KEPT_AWAY)
async def test_a_pod_waits_for_nodes_that_kubernetes_keeps_it_from_and_starts_on_them_then(at, reason: str) -> None:
    """It would read that nothing could ever serve it, and be told to tolerate that a node is not ready."""
    key, cordoned = KEPT_AWAY[reason]
    async with at as scene:
        await taint(scene, key, cordoned=cordoned)
        try:
            await scene.until(lambda: all_told(scene, key), "the allocator to know the taints")
            await scene.apply(user_pod("p", annotations={"sluice.dev/profile": "1g.5gb"}))
            message = await told(scene, "p", f"[{reason}")
        finally:
            await taint(scene, None)
        assert "tolerat" not in message
        assert "never" not in message
        await scene.started(1)


def all_told(scene: Scene, key: str) -> bool:
    """Whether the bus says of every node that it has this taint."""
    hosts = dict(scene.live.fleet_state.of("host", HostFacts))
    return all(any(taint.key == key for taint in hosts[(node,)].taints) for node in scene.system.nodes)


@contextlib.contextmanager
def _one_more_node(server: Cluster) -> Iterator[None]:
    if server.fake is not None:
        server.fake.nodes.add(LATE, cpu="64", memory="512Gi")
        yield
        return
    with played_nodes(server, (LATE,), {}):
        yield


async def test_a_pod_for_a_model_whose_pool_is_at_zero_is_served_when_a_node_of_it_joins(at, system, server) -> None:
    """It would be refused before the autoscaler has added the node, and stay refused beside it."""
    async with contextlib.AsyncExitStack() as leaving, at as scene:
        joining = contextlib.ExitStack()
        leaving.push_async_callback(asyncio.to_thread, joining.close)
        await scene.apply(user_pod("late", resources={"limits": {"nvidia.com/mig-2g.12gb": "1"}}))
        await told(scene, "late", "no GPU here has 2g.12gb", "[NoNodeCanFit]")
        await asyncio.to_thread(joining.enter_context, _one_more_node(server))
        system.join(LATE, "a30-24gb")
        pod = (await scene.started(1))["late"]
        assert pod["spec"]["nodeName"] == LATE
        assert not any(isinstance(message, Refused) for _, message in scene.live.fleet_state.of("binding", Refused))
