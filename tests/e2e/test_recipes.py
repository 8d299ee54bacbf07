"""The recipes of docs/recipes.md as they stand there, on a whole Sluice: two nodes with two simulated A100-40GB."""

from collections.abc import Mapping
from typing import Any

import pytest
from factories.cluster.kubernetes import MERGE, Json
from factories.cluster.scenes import Scene, distinct, user_pod
from factories.page_recipes import Recipe, notebook_of, pods_of, recipes, steps_of

from sluice.contracts.reasons import WaitReason
from sluice_console.core.fleet.gpus import gpus_document

RECIPES = recipes()
NODES, SYSTEM = ("gpu-1", "gpu-2"), {"agents": 2}
WHOLE = {"sluice.dev/profile": "7g.40gb"}
PATHS = {"Deployment": "/apis/apps/v1", "PersistentVolumeClaim": "/api/v1"}
"""Of what the fake API server looks after itself."""

pytestmark = pytest.mark.slow


# -- what the tests do ------------------------------------------------------------------------------------------------


async def create(scene: Scene, document: Json) -> None:
    """As `kubectl apply` would, in the scene's namespace."""
    kind = document["kind"]
    path = f"{PATHS[kind]}/namespaces/{scene.namespace}/{kind.lower()}s"
    body = {**document, "metadata": {**document["metadata"], "namespace": scene.namespace}}
    await scene.cluster.create(path, body)


async def scale(scene: Scene, name: str, replicas: int) -> None:
    path = f"{PATHS['Deployment']}/namespaces/{scene.namespace}/deployments/{name}"
    assert (await scene.cluster.patch(path, {"spec": {"replicas": replicas}}, MERGE)).code == 200


async def slices(scene: Scene, pod: Json) -> dict[str, list[str]]:
    """The profiles of a started pod's devices by container, once bus, inventory and containers agree on them."""
    told = await scene.is_on_its_slice(pod)
    assert {claim.container for claim in told.claims} == {each.container for each in told.containers}
    places = [place for gpu in gpus_document(scene.live.fleet_state).gpus for place in gpu.instances]
    profiles = {place.uuid: place.profile for place in places}
    return {each.container: [profiles[uuid] for uuid in each.visible_devices.split(",")] for each in told.containers}


async def all_have(scene: Scene, pods: Mapping[str, Json], wanted: dict[str, list[str]]) -> None:
    """Every pod has just these slices, and no two pods have one together."""
    for pod in pods.values():
        assert await slices(scene, pod) == wanted, pod["metadata"]["name"]
    devices = [uuid for pod in pods.values() for container in wanted for uuid in scene.devices(pod, container)]
    assert distinct(devices) == len(devices)


async def waits(scene: Scene, name: str, reason: WaitReason) -> None:
    """A pod is behind its gate, and the bus says this reason."""

    async def told() -> bool:
        pod = (await scene.pods()).get(name)
        document = scene.told(pod) if pod is not None else None
        return document is not None and reason in {each.reason for each in document.reasons}

    await scene.until(told, f"{name} to wait for {reason}")
    assert (await scene.pods())[name]["spec"]["schedulingGates"]


async def end(scene: Scene, *names: str) -> None:
    for name in names:
        scene.fake("containers that end").nodes.finish(scene.namespace, name, 0)


async def running(scene: Scene, count: int) -> dict[str, Json]:
    """Pods that run, without those that have ended."""

    async def look() -> dict[str, Json]:
        alive = {name: pod for name, pod in (await scene.pods()).items() if pod["status"].get("phase") == "Running"}
        return alive if len(alive) == count else {}

    return await scene.until(look, f"{count} pods to run")


# -- the recipes ------------------------------------------------------------------------------------------------------


async def job(scene: Scene, recipe: Recipe) -> None:
    """Two at a time; the next ones get slices of their own."""
    document = recipe.of("Job")
    wave = pods_of(document)
    assert len(wave) == document["spec"]["parallelism"]
    for pod in wave:
        await scene.apply(pod)
    first = await running(scene, 2)
    await all_have(scene, first, {"main": ["1g.10gb"]})
    await end(scene, *first)
    for pod in wave:
        await scene.apply({**pod, "metadata": {**pod["metadata"], "name": f"{pod['metadata']['name']}-next"}})
    await all_have(scene, await running(scene, 2), {"main": ["1g.10gb"]})


async def autoscaling(scene: Scene, recipe: Recipe) -> None:
    document, limits = recipe.of("Deployment"), recipe.of("HorizontalPodAutoscaler")["spec"]
    assert limits["scaleTargetRef"]["name"] == document["metadata"]["name"]
    await create(scene, document)
    for replicas in (limits["minReplicas"], limits["maxReplicas"], limits["minReplicas"]):
        await scale(scene, document["metadata"]["name"], replicas)
        await all_have(scene, await running(scene, replicas), {"main": ["1g.5gb"]})

    def instances() -> bool:
        return sum(len(gpu.instances) for gpu in gpus_document(scene.live.fleet_state).gpus) == limits["minReplicas"]

    await scene.until(instances, "the slices of removed replicas to be given back")


async def stateful(scene: Scene, recipe: Recipe) -> None:
    """One after the other."""
    names = []
    for pod in pods_of(recipe.of("StatefulSet")):
        names.append((await scene.apply(pod))["metadata"]["name"])
        await running(scene, len(names))
    assert names == ["index-0", "index-1"]
    await all_have(scene, await running(scene, 2), {"main": ["3g.20gb"]})


async def notebook(scene: Scene, recipe: Recipe) -> None:
    """One without a GPU, one of its own, two that share."""
    (values,) = recipe.documents
    for profile, user in enumerate(("cpu", "small", "shared", "shared")):
        await scene.apply(notebook_of(values, profile if user != "shared" else 2, f"{user}-{profile}"))
    pods = await running(scene, 4)
    assert scene.told(pods["jupyter-cpu-0"]) is None
    assert await slices(scene, pods["jupyter-small-1"]) == {"notebook": ["1g.5gb"]}
    first, second = pods["jupyter-shared-2"], pods["jupyter-shared-3"]
    assert await slices(scene, first) == await slices(scene, second)
    assert scene.devices(first, "notebook") == scene.devices(second, "notebook")


async def vllm(scene: Scene, recipe: Recipe) -> None:
    await create(scene, recipe.of("Deployment"))
    await all_have(scene, await running(scene, 1), {"main": ["3g.20gb"]})


async def triton(scene: Scene, recipe: Recipe) -> None:
    await create(scene, recipe.of("Deployment"))
    pods = await running(scene, 2)
    assert len({tuple(scene.devices(pod)) for pod in pods.values()}) == 1
    told = [await scene.is_on_its_slice(pod) for pod in pods.values()]
    assert len({each.containers[0].mps_pipe_directory for each in told}) == 1
    assert all(each.containers[0].mps_pipe_directory for each in told)


async def ray(scene: Scene, recipe: Recipe) -> None:
    """A head without, workers with a slice each."""
    for pod in pods_of(recipe.of("RayCluster")):
        await scene.apply(pod)
    pods = await running(scene, 4)
    (head,) = (pod for name, pod in pods.items() if "head" in name)
    assert scene.told(head) is None
    await all_have(scene, {name: pod for name, pod in pods.items() if pod is not head}, {"ray-worker": ["2g.10gb"]})


async def kubeflow(scene: Scene, recipe: Recipe) -> None:
    *some, last = pods_of(recipe.of("PyTorchJob"))
    for pod in some:
        await scene.apply(pod)
    await waits(scene, some[0]["metadata"]["name"], WaitReason.GROUP_INCOMPLETE)
    await scene.apply(last)
    await all_have(scene, await running(scene, 3), {"pytorch": ["3g.20gb"]})


async def argo(scene: Scene, recipe: Recipe) -> None:
    prepare, train = steps_of(recipe.of("Workflow"))
    await scene.apply(prepare)
    (first,) = (await running(scene, 1)).values()
    assert scene.told(first) is None
    await end(scene, first["metadata"]["name"])
    await scene.apply(train)
    await all_have(scene, await running(scene, 1), {"main": ["2g.10gb"]})
    await end(scene, train["metadata"]["name"])
    await scene.given_back()


async def gang(scene: Scene, recipe: Recipe) -> None:
    """None starts on three GPUs, and others may have these; all start on four."""
    await scene.apply(user_pod("earlier", annotations=WHOLE))
    await running(scene, 1)
    pods = pods_of(recipe.of("Job"))
    for pod in pods:
        await scene.apply(pod)
    await waits(scene, pods[0]["metadata"]["name"], WaitReason.GROUP_NOT_FIT)
    await scene.apply(user_pod("later", annotations=WHOLE))
    assert set(await running(scene, 2)) == {"earlier", "later"}
    await scene.delete("earlier", "later")
    await all_have(scene, await running(scene, 4), {"main": ["7g.40gb"]})


async def checkpoints(scene: Scene, recipe: Recipe) -> None:
    """One leaves for a pod of a higher priority, is made again, and waits for room."""
    await create(scene, recipe.of("PersistentVolumeClaim"))
    pods = pods_of(recipe.of("Job"))
    for pod in pods:
        await scene.apply(pod)
    before = await running(scene, 4)
    await all_have(scene, before, {"main": ["7g.40gb"]})
    await scene.apply(user_pod("important", annotations={"sluice.dev/profile": "3g.20gb"}))

    async def evicted() -> list[str]:
        left = await scene.pods()
        return [name for name in before if name not in left or left[name]["status"].get("phase") == "Failed"]

    (victim,) = await scene.until(evicted, "one of the job to leave")
    (again,) = (pod for pod in pods if pod["metadata"]["name"] == victim)
    await scene.delete(victim)
    await scene.apply({**again, "metadata": {**again["metadata"], "name": f"{victim}-again"}})
    assert "important" in await running(scene, 4)
    await waits(scene, f"{victim}-again", WaitReason.GPU_LAYOUT_FULL)
    await scene.delete("important")
    await all_have(scene, await running(scene, 4), {"main": ["7g.40gb"]})


async def two_containers(scene: Scene, recipe: Recipe) -> None:
    await scene.apply(recipe.of("Pod"))
    await all_have(scene, await running(scene, 1), {"trainer": ["3g.20gb"], "server": ["1g.5gb"]})


async def init_containers(scene: Scene, recipe: Recipe) -> None:
    await scene.apply(recipe.of("Pod"))
    (pod,) = (await running(scene, 1)).values()
    assert {tuple(places) for places in (await slices(scene, pod)).values()} == {("2g.10gb",)}
    assert scene.devices(pod, "compile") == scene.devices(pod, "main")


async def team(scene: Scene, recipe: Recipe) -> None:
    document = recipe.of("Deployment")
    for words in recipe.commands:
        assert words[0] == "sluice"
        named = [scene.namespace if word == document["metadata"]["namespace"] else word for word in words[1:]]
        scene.system.done(*named)
    await create(scene, document)
    pods = await running(scene, 8)
    await all_have(scene, pods, {"main": ["1g.5gb"]})

    async def look() -> set[str]:
        return set(await scene.pods()) - set(pods)

    (ninth,) = await scene.until(look, "the ninth pod to be made")
    await waits(scene, ninth, WaitReason.QUOTA_EXCEEDED)
    await scale(scene, document["metadata"]["name"], 8)
    await scene.delete(*list(pods)[:1])
    await running(scene, 8)
    scene.system.done("quota", "unset", scene.namespace)


PLAYED: dict[str, Any] = {
    "Job": job,
    "Deployment with autoscaling replicas": autoscaling,
    "StatefulSet": stateful,
    "Notebook (JupyterHub)": notebook,
    "vLLM": vllm,
    "Triton": triton,
    "Ray": ray,
    "Kubeflow": kubeflow,
    "Argo": argo,
    "A gang": gang,
    "A batch with checkpoints": checkpoints,
    "Two containers": two_containers,
    "Init containers": init_containers,
    "My team gets 8 slices": team,
}


def test_every_recipe_is_played() -> None:
    """A recipe that nothing runs stops working, and its reader finds out."""
    assert list(RECIPES) == list(PLAYED)


@pytest.mark.parametrize("title", PLAYED)
async def test_a_recipe_does_what_it_says(title: str, scene: Scene) -> None:
    """A copied manifest gets another slice than the page says, or none."""
    await PLAYED[title](scene, RECIPES[title])
