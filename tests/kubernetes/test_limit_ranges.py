"""LimitRange, and the custom resource of GPUs."""

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from factories.cluster.kubernetes import APPLY, MERGE, STRATEGIC, Cluster, Json, pod

GPU = "nvidia.com/gpu"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


async def limit(kube: Cluster, namespace: str, **fields: str) -> None:
    """A LimitRange for containers: `max="2"` of GPUs, or `default="1"`."""
    path = f"/api/v1/namespaces/{namespace}/limitranges"
    limits = [{"type": "Container", **{key: {GPU: value} for key, value in fields.items()}}]
    await kube.create(path, {"metadata": {"name": "l"}, "spec": {"limits": limits}})


async def test_a_default_makes_a_plain_pod_ask_for_a_gpu(kube: Cluster, namespace: str, pods: str) -> None:
    """What a webhook must expect to see."""
    await limit(kube, namespace, default="1")
    assert (await kube.post(pods, pod())).body["spec"]["containers"][0]["resources"]["limits"] == {GPU: "1"}


async def test_a_maximum_is_the_default_too(kube: Cluster, namespace: str, pods: str) -> None:
    """So a maximum of 2 gives 2 to a container without a limit, and refuses 3."""
    await limit(kube, namespace, max="2")
    silent = await kube.post(pods, pod("silent"))
    body = pod("over")
    body["spec"]["containers"][0]["resources"] = {"limits": {GPU: "3"}}
    over = await kube.post(pods, body)
    assert silent.body["spec"]["containers"][0]["resources"]["limits"] == {GPU: "2"}
    over.refused(403, "Forbidden", f"maximum {GPU} usage per Container is 2")


# -- the custom resource ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Custom:
    """A resource of a test's own, made as that of GPUs is."""

    group: str

    @property
    def path(self) -> str:
        return f"/apis/{self.group}/v1alpha1/gpus"

    @property
    def definition(self) -> Json:
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        served = {"name": "v1alpha1", "served": True, "storage": True}
        version = {**served, "subresources": {"status": {}}, "schema": schema}
        names = {"plural": "gpus", "singular": "gpu", "kind": "Gpu"}
        spec = {"group": self.group, "scope": "Cluster", "names": names, "versions": [version]}
        return {"metadata": {"name": f"gpus.{self.group}"}, "spec": spec}

    def object(self, name: str, **status: str) -> Json:
        head = {"apiVersion": f"{self.group}/v1alpha1", "kind": "Gpu", "metadata": {"name": name}}
        return {**head, **({"status": status} if status else {})}


@pytest.fixture
async def gpus(kube: Cluster) -> AsyncIterator[Custom]:
    """Served in a group of its own, so that no installed Sluice removes them; gone after the test."""
    custom = Custom(f"sluice-test-{secrets.token_hex(4)}.dev")
    await kube.create(DEFINITIONS, custom.definition)
    try:
        await kube.until(custom.path, 200)
        yield custom
    finally:
        await kube.delete(f"{DEFINITIONS}/gpus.{custom.group}")


async def test_a_status_is_written_by_its_own_door(kube: Cluster, gpus: Custom) -> None:
    """In a creation it is dropped, and repeating it is no new version."""
    path, healthy = f"{gpus.path}/sluice-test-0/status", {"status": {"health": "Healthy"}}
    made = await kube.post(gpus.path, gpus.object("sluice-test-0", health="Healthy"))
    first, again = [await kube.patch(path, healthy, MERGE) for _ in range(2)]
    assert (made.code, "status" in made.body) == (201, False)
    assert (first.code, first.body["status"]) == (200, {"health": "Healthy"})
    assert again.body["metadata"]["resourceVersion"] == first.body["metadata"]["resourceVersion"]
    assert again.body["metadata"]["generation"] == made.body["metadata"]["generation"]


async def test_an_apply_writes_a_status_of_what_is_there(kube: Cluster, gpus: Custom) -> None:
    """Of an absent object it is 404, and on the main resource the status is dropped."""
    path = f"{gpus.path}/sluice-test-1"
    one, other = (gpus.object("sluice-test-1", health=health) for health in ("x", "y"))
    absent = await kube.patch(f"{path}/status", one, APPLY, fieldManager="t")
    made = await kube.patch(path, one, APPLY, fieldManager="t")
    told = await kube.patch(f"{path}/status", other, APPLY, fieldManager="t")
    assert (absent.code, absent.message) == (404, f'gpus.{gpus.group} "sluice-test-1" not found')
    assert (made.code, "status" in made.body) == (201, False)
    assert (told.code, told.body["status"]) == (200, {"health": "y"})


async def test_a_custom_resource_takes_no_strategic_merge(kube: Cluster, gpus: Custom) -> None:
    """415: the client's default for an object body is refused."""
    await kube.post(gpus.path, gpus.object("sluice-test-2"))
    reply = await kube.patch(f"{gpus.path}/sluice-test-2/status", {"status": {}}, STRATEGIC)
    assert (reply.code, reply.reason) == (415, "UnsupportedMediaType")


async def test_a_uuid_as_nvidia_writes_it_is_no_name(kube: Cluster, gpus: Custom) -> None:
    """Names are lowercase."""
    assert (await kube.post(gpus.path, gpus.object("GPU-8f2c"))).code == 422


async def test_an_unknown_resource_is_no_page(kube: Cluster) -> None:
    """Where the definition is missing, every call is 404: Sluice must go on without it."""
    assert (await kube.get("/apis/nothing.sluice.dev/v1/things")).code == 404
