"""A node with a kubelet in a whole Sluice: its pods' processes in their cgroups, and their tickets in their volumes."""

import os
import shutil
from collections.abc import Iterator

import pytest
from factories.cluster.cluster_system import ClusterSystem, whole_on
from factories.cluster.kubernetes import Cluster, Json
from factories.cluster.pod_cgroups import IGNORES_TERM, PodCgroups, pod_cgroups
from factories.cluster.scenes import Scene, user_pod
from fake_kube.server import FakeKube

NODE = "gpu-1"


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ClusterSystem, Cluster]]:
    if os.geteuid() != 0:
        pytest.skip("cgroups and pods' directories are root's")
    folder = tmp_path_factory.mktemp("kubelet")
    with FakeKube() as fake:
        cluster = Cluster(fake.kubeconfig(folder / "kubeconfig"), fake)
        with whole_on(folder, cluster, [NODE], gpus=1, agents=1, pods=folder / "pods") as started:
            yield started, cluster


@pytest.fixture
def cgroups() -> Iterator[PodCgroups]:
    with pod_cgroups() as there:
        yield there


def _pod(name: str, profile: str = "7g.40gb") -> Json:
    return user_pod(name, resources={"limits": {f"nvidia.com/mig-{profile}": "1"}})


def _explained(scene: Scene, name: str) -> str:
    return scene.system.sluice("explain", f"{scene.namespace}/{name}").stdout


async def test_the_next_pod_waits_for_a_process_that_ignores_the_end_of_its_pod(
    scene: Scene, cgroups: PodCgroups
) -> None:
    """A process that holds no device yet would open the next pod's; once it ends, the next pod is served at once."""
    first = (await scene.apply(_pod("first")), await scene.started(1))[1]["first"]
    process = cgroups.start_anywhere(first["metadata"]["uid"], IGNORES_TERM)
    await scene.delete("first", grace_s=0)
    await scene.apply(_pod("second"))
    why = f"processes of its pod still run: sh {process.pid}"
    await scene.until(lambda: why in _explained(scene, "first"), "a person to see what the GPU waits for")
    freed = f"is being freed by {scene.namespace}/first ({why}"
    await scene.until(lambda: freed in _explained(scene, "second"), "the next pod to show which one has its place")
    process.terminate()
    assert (await scene.pods())["second"]["spec"].get("schedulingGates"), "its device is given on while it lives"
    assert process.poll() is None
    cgroups.close()
    await scene.started(1)


def _restarts(pod: Json) -> int:
    (status,) = pod["status"]["containerStatuses"]
    return int(status["restartCount"])


async def test_pods_start_again_after_the_memory_disk_of_their_node_was_emptied(scene: Scene) -> None:
    """A node of kind that is restarted has the same boot id and no tickets: its pods would wait forever."""
    names = [f"pod-{number}" for number in range(7)]
    for name in names:
        await scene.apply(_pod(name, "1g.5gb"))
    before = await scene.started(len(names))
    there = scene.system.tickets()
    for left in scene.system.pods.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    nodes = scene.fake("a node that is restarted").nodes
    for name in names:
        nodes.finish(scene.namespace, name, 137)
    await scene.until(lambda: scene.system.tickets() == there, "every ticket to be there again, under its name")
    again = await scene.started(len(names))
    assert all(_restarts(pod) == 1 for pod in again.values())
    for name in names:
        assert again[name]["metadata"]["annotations"] == before[name]["metadata"]["annotations"]
