"""A node is rebooted with its broker: STATE loses its end and reuses sequences, played by a restored copy."""

import shutil
from pathlib import Path

import pytest
from factories.cluster.cluster_system import ClusterSystem, whole_on
from factories.cluster.kubernetes import Cluster
from factories.cluster.scenes import Scene, scene_on, user_pod
from fake_kube.server import FakeKube

NODE = "gpu-a"
PODS = ("one", "two", "three")
DEVICES = "main.granted.sluice.dev/visible-devices"
WITHIN_S = 40.0
"""Below the minute after which strings without evidence of being newer are reported."""


def stream_of(nats: Path) -> Path:
    (found,) = nats.glob("**/STATE")
    return found


async def devices(scene: Scene) -> dict[str, str]:
    return {name: each["metadata"]["annotations"][DEVICES] for name, each in (await scene.pods()).items()}


@pytest.fixture
def system(tmp_path):
    with FakeKube() as fake:
        cluster = Cluster(fake.kubeconfig(tmp_path / "kubeconfig"), fake)
        with whole_on(tmp_path, cluster, (NODE,), agents=1) as started:
            yield started, cluster


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_pods_are_told_their_new_devices_at_once(system: tuple[ClusterSystem, Cluster], tmp_path: Path) -> None:
    """Their containers would wait for a minute with UUIDs of before, which name nothing."""
    started, cluster = system
    stream, copy = stream_of(started.data / "nats"), tmp_path / "copy"
    broker, agent = started.process("broker"), started.agent_of(NODE)
    broker.kill()
    shutil.copytree(stream, copy)
    broker.start()
    async with scene_on(started, cluster) as scene:
        for name in PODS:
            await scene.apply(user_pod(name, annotations={"sluice.dev/profile": "1g.5gb"}))
        await scene.started(len(PODS))
        before = await devices(scene)
        for process in (agent, broker):
            process.kill()
        started.reboot(NODE)
        shutil.rmtree(stream)
        shutil.copytree(copy, stream)
        for process in (broker, agent):
            process.start()

        async def told_anew() -> bool:
            now = await devices(scene)
            return all(now[name] != before[name] for name in PODS)

        await scene.until(told_anew, "every pod to be told its new devices", WITHIN_S)
        await scene.delete(*PODS)
        await scene.given_back()
