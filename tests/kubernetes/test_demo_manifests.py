"""NVIDIA's demo shapes unmodified, through the whole cluster, to the promised devices; the test is the allocator."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from factories.cluster.claim_scene import ClaimScene, claim_scene, roomy_node
from factories.cluster.kubernetes import Cluster, Json
from factories.cluster.played_webhook import played_webhook

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream
from sluice.contracts.ids import RequestId
from sluice.contracts.messages import AllocationRequested, Claim, RequestRejected
from sluice_pod_watcher.admission import AdmissionConfig

FOLDER = Path(__file__).parents[1] / "data" / "dra"
COMPONENTS = Path(__file__).parents[2] / "deploy" / "kubernetes" / "components"
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
PATHS = {
    "ResourceClaim": "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims",
    "ResourceClaimTemplate": "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaimtemplates",
    "Pod": "/api/v1/namespaces/{}/pods",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
}
QUARTERS = {"mig.small-0": "1g.5gb", "mig.small-1": "1g.5gb", "mig.medium": "2g.10gb", "mig.large": "3g.20gb"}
HALF = {"modes": ("fractional",), "sm_partition": 50, "memory_mib": 10240}


@pytest.fixture(scope="module")
def reviewed(server: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with played_webhook(server, tmp_path_factory.mktemp("review"), AdmissionConfig(hand_over="dra")):
        yield server


@pytest_asyncio.fixture
async def scene(reviewed: Cluster, kube: Cluster, namespace: str, tmp_path: Path) -> AsyncIterator[ClaimScene]:
    own = []
    for file in (COMPONENTS / "resource-claims/added.yaml", COMPONENTS / "nvidia-classes/added.yaml"):
        for document in yaml.safe_load_all(file.read_text()):
            answer = await kube.post(CLASSES, document)
            assert answer.code in {201, 409}
            own += [document["metadata"]["name"]] * (answer.code == 201)
    async with claim_scene(kube, namespace, tmp_path, HAND_OVER="dra") as made:
        yield made
    for name in own:  # a cluster that has none of them is compared, later, with what it was
        await kube.delete(f"{CLASSES}/{name}")


def documents(name: str) -> Iterator[Json]:
    """The objects of a manifest, as a server of v1 stores them."""
    for each in yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()):
        if each["kind"] == "Namespace":
            continue
        if each["apiVersion"] == "resource.k8s.io/v1beta1":
            spec = each["spec"]["spec"] if each["kind"] == "ResourceClaimTemplate" else each["spec"]
            named = spec["devices"]["requests"]
            spec["devices"]["requests"] = [
                {"name": one.pop("name"), "exactly": one} if "deviceClassName" in one else one for one in named
            ]
            each["apiVersion"] = "resource.k8s.io/v1"
        yield each


async def apply(scene: ClaimScene, name: str) -> None:
    """As `kubectl apply -f` does, in the test's namespace."""
    for each in documents(name):
        each["metadata"]["namespace"] = scene.namespace
        if each["kind"] in {"Pod", "Deployment"}:
            spec = each["spec"] if each["kind"] == "Pod" else each["spec"]["template"]["spec"]
            spec["tolerations"] = [{"operator": "Exists"}]
        await scene.kube.create(PATHS[each["kind"]].format(scene.namespace), each)


async def pods(scene: ClaimScene, count: int) -> list[Json]:
    async def look() -> list[Json]:
        found = (await scene.kube.get(PATHS["Pod"].format(scene.namespace))).items
        return found if len(found) == count else []

    listed: list[Json] = await scene.until(look, f"{count} pods")
    return listed


async def words(scene: ClaimScene, count: int, number: int, kind: type) -> dict[str, Any]:
    """The `number` messages of this kind that the requests of `count` pods become, by UID."""
    listed = [each["metadata"]["uid"] for each in await pods(scene, count)]

    async def look() -> dict[str, Any]:
        found = {}
        for uid in listed:
            entry = await scene.bus.last(Stream.STATE, subjects.request(RequestId(uid)).subject)
            if entry is not None and isinstance(entry.message, kind):
                found[uid] = entry.message
        return found if len(found) == number else {}

    return dict(await scene.until(look, f"{number} requests"))


@pytest.mark.parametrize(
    ("name", "count", "requests", "claims"),
    [
        ("gpu-test1", 2, 2, (Claim(container="gpu.gpu"),)),
        ("gpu-test2", 1, 1, (Claim(container="both.gpu"),)),
        ("gpu-test3", 2, 1, (Claim(container="both.gpu"),)),
        ("gpu-test4", 4, 4, tuple(Claim(container=key, profile=size) for key, size in QUARTERS.items())),
        ("gpu-test5", 1, 1, (Claim(container="gpus.turns"), Claim(container="gpus.mps", **HALF))),
        ("gpu-test7", 1, 1, (Claim(container="gpu0.gpu"), Claim(container="gpu1.gpu"))),
        ("gpu-test8", 1, 1, (Claim(container="gpus.gpu", gpus=2),)),
        ("gpu-test-mps", 1, 1, (Claim(container="gpu.mps", **HALF),)),
        ("mig-mps", 1, 1, (Claim(container="mig.mig", profile="1g.5gb"),)),
    ],
)
async def test_a_demo_runs_with_the_devices_that_its_comment_promises(
    scene: ClaimScene, name: str, count: int, requests: int, claims: tuple[Claim, ...]
) -> None:
    """Unmodified manifests run: each pod is placed, and each claim is allocated and reserved for its pods."""
    node = await roomy_node(scene.kube)
    await apply(scene, name)
    found = await words(scene, count, requests, AllocationRequested)
    assert [each.claims for each in found.values()] == [claims] * requests
    if name == "gpu-test4":
        assert all(each.same_gpu == (tuple(QUARTERS),) for each in found.values())
    for uid in found:
        await scene.bind(uid, node, containers=tuple(each.container for each in claims))
    for each in await pods(scene, count):
        path = f"{PATHS['Pod'].format(scene.namespace)}/{each['metadata']['name']}"
        placed = await scene.kube.until(path, lambda reply: reply.body["spec"].get("nodeName"))
        assert placed.body["spec"]["nodeName"] == node
    reserved = []
    for claim in (await scene.kube.get(scene.claims)).items:
        results = claim["status"]["allocation"]["devices"]["results"]
        wanted = [each["name"] for each in claim["spec"]["devices"]["requests"]]
        assert sorted(each["request"] for each in results) == sorted(wanted)
        assert {(each["driver"], each["pool"]) for each in results} == {("gpu.sluice.dev", node)}
        reserved += [each["uid"] for each in claim["status"]["reservedFor"]]
    assert set(reserved) == {each["metadata"]["uid"] for each in await pods(scene, count)}


async def test_a_demo_that_selects_by_model_asks_for_that_model(scene: ClaimScene) -> None:
    """Four pods, each on an A100."""
    await apply(scene, "gpu-test6-without-index")
    for each in (await words(scene, 4, 4, AllocationRequested)).values():
        assert each.claims[0].only.models
        assert all("A100" in model for model in each.claims[0].only.models)


async def test_a_demo_that_cannot_run_is_refused_with_the_field_of_its_template(scene: ClaimScene) -> None:
    """NVIDIA's driver publishes no index any more."""
    await apply(scene, "gpu-test6")
    found = await words(scene, 4, 4, RequestRejected)
    assert {each.refusal.message for each in found.values()} == {
        "no device has the attribute index: NVIDIA's driver no longer publishes it"
    }
    assert all(each.refusal.field.startswith("ResourceClaimTemplate ") for each in found.values())


async def test_a_pod_of_another_driver_is_placed_without_us(scene: ClaimScene) -> None:
    """Its claim is of a class that Sluice does not serve; the scheduler says what is missing."""
    other = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "nic.example.com"}}
    assert (await scene.kube.post(CLASSES, {**other, "spec": {}})).code in {201, 409}
    requests = [{"name": "nic", "exactly": {"deviceClassName": "nic.example.com"}}]
    claim = {"metadata": {"name": "card"}, "spec": {"devices": {"requests": requests}}}
    assert (await scene.kube.post(scene.claims, claim)).code == 201
    container = {"name": "main", "image": "busybox", "resources": {"claims": [{"name": "nic"}]}}
    entry = {"name": "nic", "resourceClaimName": "card"}
    made = {"metadata": {"name": "other"}, "spec": {"containers": [container], "resourceClaims": [entry]}}
    path = PATHS["Pod"].format(scene.namespace)
    assert (await scene.kube.post(path, made)).body["spec"]["schedulingGates"] == [{"name": "sluice.dev/slice"}]
    left = await scene.kube.until(f"{path}/other", lambda reply: not reply.body["spec"].get("schedulingGates"))
    assert "sluice.dev/managed" not in left.body["metadata"].get("labels", {})
    assert "sluice.dev/request" not in left.body["metadata"].get("annotations", {})
    assert "affinity" not in left.body["spec"]
    await scene.kube.delete(f"{CLASSES}/nic.example.com")
