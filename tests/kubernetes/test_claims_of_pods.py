"""A pod whose kubelet hands its devices over, from creation to end: the pod-watcher's process on the API server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from factories.cluster.claim_scene import ClaimScene, claim_scene, roomy_node
from factories.cluster.kubernetes import Cluster
from factories.cluster.server_versions import keeps_times


@pytest_asyncio.fixture
async def scene(kube: Cluster, namespace: str, tmp_path: Path) -> AsyncIterator[ClaimScene]:
    async with claim_scene(kube, namespace, tmp_path) as made:
        yield made


async def test_a_pod_is_placed_with_an_allocated_and_reserved_claim_and_both_go_together(scene: ClaimScene) -> None:
    """The whole way, with the cluster's own scheduler and controllers."""
    node = await roomy_node(scene.kube)
    made = await scene.create("train")
    uid, path = made["metadata"]["uid"], f"/api/v1/namespaces/{scene.namespace}/pods/train"

    asked = await scene.asked(uid)
    (ref,) = asked.resource_claims
    await scene.bind(uid, node)

    placed = await scene.kube.until(lambda: scene.kube.get(path), lambda reply: reply.body["spec"].get("nodeName"))
    claim = (await scene.kube.get(f"{scene.claims}/{ref.name}")).body
    assert placed.body["spec"]["nodeName"] == node
    assert (claim["metadata"]["uid"], ref.requests) == (ref.uid, {"main": "main"})
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert (result["driver"], result["pool"], result["request"]) == ("gpu.sluice.dev", node, "main")
    assert bool(claim["status"]["allocation"].get("allocationTimestamp")) is await keeps_times(scene.kube)
    assert claim["status"]["reservedFor"] == [{"resource": "pods", "name": "train", "uid": uid}]

    await scene.kube.delete(path, {"gracePeriodSeconds": 0})
    await scene.kube.until(lambda: scene.kube.get(f"{scene.claims}/{ref.name}"), 404)


async def test_a_claim_deleted_by_hand_is_made_again_and_the_request_follows(scene: ClaimScene) -> None:
    """Else the pod would wait for a claim that is gone, with a slice that no kubelet can find."""
    node = await roomy_node(scene.kube)
    made = await scene.create("train")
    uid = made["metadata"]["uid"]
    (before,) = (await scene.asked(uid)).resource_claims

    await scene.kube.delete(f"{scene.claims}/{before.name}")

    again = await scene.asked(uid, lambda word: word.resource_claims[0].uid != before.uid)
    (after,) = again.resource_claims
    await scene.bind(uid, node)
    path = f"/api/v1/namespaces/{scene.namespace}/pods/train"
    await scene.kube.until(lambda: scene.kube.get(path), lambda reply: reply.body["spec"].get("nodeName"))
    assert (await scene.kube.get(f"{scene.claims}/{after.name}")).body["metadata"]["uid"] == after.uid
    await scene.kube.delete(path, {"gracePeriodSeconds": 0})
