"""A node is cordoned or tainted while pods are created: the allocator has not observed it yet."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from factories.cluster.cluster_system import ClusterSystem, whole_on
from factories.cluster.kubernetes import Cluster
from factories.cluster.scenes import scene_on, user_pod
from fake_kube.errors import ApiError
from fake_kube.requests import patch_body
from fake_kube.server import FakeKube

NODES = ("gpu-a", "gpu-b")
TIMES = 6


@pytest.fixture
def system(tmp_path) -> Iterator[tuple[ClusterSystem, Cluster, FakeKube]]:
    with FakeKube() as fake:
        cluster = Cluster(fake.kubeconfig(tmp_path / "kubeconfig"), fake)
        with whole_on(tmp_path, cluster, NODES, agents=1) as started:
            yield started, cluster, fake


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_pod_of_the_moment_after_a_cordon_starts_on_another_node(system) -> None:
    """It would be pinned to the cordoned node, and wait there with its slice until that takes pods again."""
    started, cluster, fake = system
    async with scene_on(started, cluster) as scene:
        for turn in range(TIMES):
            name = f"train-{turn}"
            first = await scene.apply(user_pod(f"{name}-first", annotations={"sluice.dev/profile": "1g.5gb"}))
            pods = await scene.started(1)
            likely = pods[first["metadata"]["name"]]["spec"]["nodeName"]
            fake.nodes.cordon(likely)
            await scene.apply(user_pod(name, annotations={"sluice.dev/profile": "1g.5gb"}))
            pods = await scene.started(2)
            assert pods[name]["spec"]["nodeName"] != likely
            fake.nodes.cordon(likely, on=False)
            await scene.delete(name, f"{name}-first")
            await scene.given_back()


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_a_bare_pod_that_was_bound_in_that_moment_starts_on_another_node_too(system, monkeypatch) -> None:
    """A pin cannot be changed, so it is not set: only its owner could delete the pod."""
    started, cluster, fake = system
    apply, late, is_bound = patch_body.json_patch, list[str](), threading.Event()

    def is_late(live: Any, operations: Any) -> Any:
        nodes = [node for node in NODES if f"['{node}']" in str(operations)]
        late.extend(nodes[: not late])
        if set(nodes) & set(late):
            is_bound.set()
            raise ApiError(429, "too many requests")
        return apply(live, operations)

    async with scene_on(started, cluster) as scene:
        monkeypatch.setattr(patch_body, "json_patch", is_late)
        await scene.apply(user_pod("train", annotations={"sluice.dev/profile": "1g.5gb"}))
        await asyncio.to_thread(is_bound.wait)
        fake.nodes.cordon(late[0])
        pods = await scene.started(1)
        assert pods["train"]["spec"]["nodeName"] not in late
        notes = [event["note"] for event in fake.all("events.events.k8s.io") if event["regarding"]["name"] == "train"]
        assert any("declined its slice" in note for note in notes), notes
        await scene.delete("train")
        await scene.given_back()
