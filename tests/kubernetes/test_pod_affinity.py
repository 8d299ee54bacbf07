"""Nothing is pinned where the scheduler cannot place it: affinity, ports, volumes; only GPUs and cluster fake."""

from typing import Any

import pytest
from factories.cluster.kubernetes import Json
from factories.cluster.scenes import IMAGE, Scene, user_pod

from sluice.contracts.messages import HostFacts

pytestmark = pytest.mark.slow
NODES = ("gpu-1", "gpu-2")
ZONE, HOSTNAME = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
SYSTEM = {
    "watcher": {"UNSCHEDULED_AFTER_S": "2"},
    "own_nodes": True,
    "labels": {name: {ZONE: zone} for name, zone in zip(NODES, "ab", strict=True)},
}
"""Two A100 on each node, which are in a zone each."""
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PROFILE = {"sluice.dev/profile": "1g.5gb"}
LLM = {"matchLabels": {"app": "llm"}}
APART = {"podAntiAffinity": {REQUIRED: [{"topologyKey": HOSTNAME, "labelSelector": LLM}]}}


def replica(name: str, **spec: Any) -> Json:
    made = user_pod(name, annotations=PROFILE, **spec)
    made["metadata"]["labels"] = {"app": "llm"}
    return made


async def waits(scene: Scene, name: str, reason: str) -> Json:
    """The condition of a pod that waits for this reason; its gate is closed."""
    found: Json = await scene.until(lambda: scene.condition(name, reason), f"{name} to wait for {reason}")
    assert (await scene.pods())[name]["spec"].get("schedulingGates"), "it is pinned"
    return found


async def test_each_replica_has_a_host_of_its_own_and_the_third_is_told_why_it_waits(scene: Scene) -> None:
    """Both on one host would leave one of them pinned where the scheduler never places it."""
    for name in "abc":
        await scene.apply(replica(name, affinity=APART))
    pods = await scene.started(2)
    assert {each["spec"]["nodeName"] for each in pods.values()} == set(NODES)
    (late,) = set("abc") - set(pods)
    assert "podAntiAffinity" in (await waits(scene, late, "NodePodAntiAffinity"))["message"]
    first = next(iter(pods))
    await scene.delete(first)
    await scene.until(lambda: scene.is_gone(first), "it to go")
    assert set(await scene.started(2)) == {*pods, late} - {first}


def _facts(scene: Scene, node: str) -> HostFacts:
    return scene.live.fleet_state.at("host", HostFacts, node) or HostFacts(cpu_cores=0, memory_mib=0, pods_free=0)


async def test_replicas_are_spread_over_the_zones(scene: Scene) -> None:
    """The pin hides from the scheduler that there is another zone, so only the allocator can choose it."""
    spread = [{"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": LLM}]
    for number in range(4):
        await scene.apply(replica(f"p{number}", topologySpreadConstraints=spread))
    found = [each["spec"]["nodeName"] for each in (await scene.started(4)).values()]
    assert sorted(found) == ["gpu-1", "gpu-1", "gpu-2", "gpu-2"]


async def test_a_host_port_in_use_is_not_given_again(scene: Scene) -> None:
    """A pod that is none of ours binds it on one node."""
    port = [{"containerPort": 80, "hostPort": 8080}]
    await scene.apply(user_pod("theirs", containers=[{"name": "m", "image": IMAGE, "ports": port}]))
    theirs = (await scene.started(1))["theirs"]["spec"]["nodeName"]
    await scene.until(lambda: _facts(scene, theirs).ports, "the port to be published")
    for name in ("mine", "late"):
        made = replica(name)
        made["spec"]["containers"][0]["ports"] = port
        await scene.apply(made)
        if name == "mine":
            mine = (await scene.started(2))["mine"]["spec"]["nodeName"]
    assert {theirs, mine} == set(NODES)
    await waits(scene, "late", "NodeHostPortTaken")


async def test_a_pod_that_is_none_of_ours_keeps_ours_away(scene: Scene) -> None:
    """Anti-affinity holds both ways: the scheduler places no pod beside one that wants it apart."""
    await scene.apply(user_pod("theirs", containers=[{"name": "m", "image": IMAGE}], affinity=APART))
    theirs = (await scene.started(1))["theirs"]["spec"]["nodeName"]
    await scene.until(lambda: _facts(scene, theirs).others, "it to be published")
    await scene.apply(replica("mine"))
    assert {theirs, (await scene.started(2))["mine"]["spec"]["nodeName"]} == set(NODES)


async def test_a_pod_goes_where_its_volume_is(scene: Scene) -> None:
    """The volume is in the zone of the second node, and nothing in the pod's own spec says so."""
    in_b = [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["b"]}]}]
    sized = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    there = {"hostPath": {"path": "/models"}, "nodeAffinity": {"required": {"nodeSelectorTerms": in_b}}}
    name, room = f"{scene.namespace}-b", {"storage": "1Gi"}
    pv = {"metadata": {"name": name}, "spec": {**sized, **there, "capacity": room}}
    pvc = {"metadata": {"name": "models"}, "spec": {**sized, "resources": {"requests": room}, "volumeName": name}}
    await scene.cluster.create("/api/v1/persistentvolumes", pv)
    try:
        claims = f"/api/v1/namespaces/{scene.namespace}/persistentvolumeclaims"
        await scene.cluster.create(claims, pvc)
        fake = scene.cluster.fake
        if fake is None:
            claim = f"{claims}/models"
            await scene.cluster.until(claim, lambda reply: reply.body["status"]["phase"] == "Bound")
        read = fake.count(verb="get", path="persistentvolumeclaims") if fake is not None else 0
        volumes = [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}]
        await scene.apply(replica("p", volumes=volumes))
        assert (await scene.started(1))["p"]["spec"]["nodeName"] == "gpu-2"
        if fake is not None:
            now = fake.count(verb="get", path="persistentvolumeclaims")
            assert now == read + 2, "when it asks, and before the pin"
    finally:
        await scene.cluster.delete(f"/api/v1/persistentvolumes/{name}")
