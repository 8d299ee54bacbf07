"""The webhook behind the fake API server over TLS: what `kubectl` shows of accepted and refused pods."""

import secrets

import pytest
from factories.cluster.admission import gpu
from factories.cluster.webhook_cluster import webhook_cluster

from sluice.contracts.request_syntax import RequestLimits
from sluice_pod_watcher.admission import read_stored


@pytest.fixture
async def kube(tmp_path):
    """A cluster with the webhook configuration as it is shipped, the webhook behind it, and a namespace."""
    async with webhook_cluster(tmp_path / "config") as opened:
        yield opened


async def created(kube, body, **labels):
    """The answer to the creation of a pod in a namespace with these labels."""
    name = f"research-{secrets.token_hex(4)}"
    made = await kube.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    assert made.code == 201, made
    return await kube.post(f"/api/v1/namespaces/{name}/pods", body)


def body_of(*, annotations=None, resources=None, **spec):
    container = {"name": "main", "image": "train:latest"} | ({"resources": resources} if resources else {})
    metadata = {"generateName": "train-"} | ({"annotations": annotations} if annotations else {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]} | spec}


async def test_more_instances_than_gpus_are_taken_and_more_than_a_node_holds_are_not(kube):
    """`kubectl apply` would refuse nine small instances, which one node holds six times."""
    reply = await created(kube, body_of(resources={"limits": {"nvidia.com/mig-1g.5gb": "9"}}))
    assert reply.code == 201, reply
    asked = read_stored(
        reply.body["metadata"]["annotations"]["sluice.dev/request"], reply.body["spec"], RequestLimits()
    )
    assert asked.pod.claims[0].gpus == 9
    reply = await created(kube, body_of(resources={"limits": {"nvidia.com/mig-1g.5gb": "57"}}))
    assert (reply.code, reply.message) == (
        422,
        (
            'admission webhook "pods.sluice.dev" denied the request: '
            "nvidia.com/mig-1g.5gb = '57': out of range (allowed: a whole number from 0 to 56)"
        ),
    )


async def test_the_default_mode_of_a_namespace_reaches_its_pods_with_a_warning(kube):
    """The label is read by the API server alone."""
    body = body_of(annotations={"sluice.dev/memory": "4Gi"})
    reply = await created(kube, body, **{"sluice.dev/default-mode": "mps"})
    assert reply.code == 201, reply
    asked = read_stored(
        reply.body["metadata"]["annotations"]["sluice.dev/request"], reply.body["spec"], RequestLimits()
    )
    assert asked.pod.claims[0].modes == ("mps",)
    assert reply.warnings == [
        "main.sluice.dev/mode = 'mps': the default of this namespace, because the pod names no mode"
    ]


async def test_a_namespace_that_opts_out_is_left_alone(kube):
    """Its pods are the device plugin's."""
    reply = await created(kube, body_of(resources=gpu(gpu="1")), **{"sluice.dev/ignore": "true"})
    assert reply.code == 201, reply
    assert "schedulingGates" not in reply.body["spec"]
    assert reply.body["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}


async def test_a_limit_range_neither_changes_the_ask_nor_leaves_a_resource_behind(kube):
    """It puts `nvidia.com/gpu` back after the first review; a pod that keeps it is never scheduled."""
    made = await kube.post("/api/v1/namespaces", {"metadata": {"name": "limited"}})
    assert made.code == 201
    limits = {"limits": [{"type": "Container", "default": {"nvidia.com/gpu": "1"}}]}
    made = await kube.post("/api/v1/namespaces/limited/limitranges", {"metadata": {"name": "l"}, "spec": limits})
    assert made.code == 201, made
    reply = await kube.post("/api/v1/namespaces/limited/pods", body_of(resources=gpu(gpu="3")))
    assert reply.code == 201, reply
    assert not [name for part in reply.body["spec"]["containers"][0]["resources"].values() for name in part]
    asked = read_stored(
        reply.body["metadata"]["annotations"]["sluice.dev/request"], reply.body["spec"], RequestLimits()
    )
    assert asked.pod.claims[0].gpus == 3


RANGES = {
    "a default": {"default": {"nvidia.com/gpu": "1"}},
    "a default request": {"defaultRequest": {"nvidia.com/gpu": "1"}},
    "a default of none": {"default": {"nvidia.com/gpu": "0"}},
    "another family's default": {"default": {"volcano.sh/vgpu-number": "1", "cpu": "1"}},
}
OWN_WORDS = {
    "annotation": {"annotations": {"sluice.dev/profile": "1g.5gb"}},
    "mig resource": {"resources": gpu(**{"mig-1g.5gb": "1"})},
}


@pytest.mark.parametrize("words", OWN_WORDS)
@pytest.mark.parametrize("limit", RANGES)
async def test_a_default_of_a_limit_range_contradicts_no_ask(kube, limit, words):
    """Every pod of the namespace with a request of its own was refused, or would get a whole GPU beside its slice."""
    name = f"ranged-{secrets.token_hex(4)}"
    await kube.post("/api/v1/namespaces", {"metadata": {"name": name}})
    spec = {"limits": [{"type": "Container", **RANGES[limit]}]}
    made = await kube.post(f"/api/v1/namespaces/{name}/limitranges", {"metadata": {"name": "l"}, "spec": spec})
    assert made.code == 201, made
    body = body_of(**OWN_WORDS[words])
    body["spec"]["containers"].append({"name": "side", "image": "train:latest"})
    reply = await kube.post(f"/api/v1/namespaces/{name}/pods", body)
    assert reply.code == 201, reply
    asked = read_stored(
        reply.body["metadata"]["annotations"]["sluice.dev/request"], reply.body["spec"], RequestLimits()
    )
    assert [(claim.container, claim.profile, claim.gpus) for claim in asked.pod.claims] == [("main", "1g.5gb", 1)]
    for each in reply.body["spec"]["containers"]:
        assert not [found for part in each["resources"].values() for found in part if "/" in found]


async def test_a_pod_that_asks_for_nothing_asks_for_what_its_namespace_gives_it(kube):
    """That is the purpose of such a LimitRange."""
    await kube.post("/api/v1/namespaces", {"metadata": {"name": "giving"}})
    spec = {"limits": [{"type": "Container", "default": {"nvidia.com/mig-1g.5gb": "1"}}]}
    await kube.post("/api/v1/namespaces/giving/limitranges", {"metadata": {"name": "l"}, "spec": spec})
    reply = await kube.post("/api/v1/namespaces/giving/pods", body_of())
    assert reply.code == 201, reply
    asked = read_stored(
        reply.body["metadata"]["annotations"]["sluice.dev/request"], reply.body["spec"], RequestLimits()
    )
    assert [claim.profile for claim in asked.pod.claims] == ["1g.5gb"]


async def test_an_image_that_asks_for_all_gpus_sees_none_in_a_pod_that_asks_for_none(kube):
    """A device plugin would have hidden them; the runtime class alone shows all of the node's."""
    made = await kube.post("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    assert made.code == 201, made
    body = body_of(resources={"limits": {"nvidia.com/gpu": "0"}}, runtimeClassName="nvidia")
    reply = await created(kube, body)
    assert reply.code == 201, reply
    assert reply.body["spec"]["containers"][0]["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert "schedulingGates" not in reply.body["spec"]
    (warning,) = reply.warnings
    assert warning.startswith("spec.runtimeClassName = 'nvidia'")
    assert "env" not in (await created(kube, body, **{"sluice.dev/ignore": ""})).body["spec"]["containers"][0]


async def test_a_notebook_profile_with_zero_gpus_beside_an_instance_gets_the_instance(kube):
    """JupyterHub writes both, and a LimitRange writes the zero for every container."""
    both = {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.5gb": "1"}
    reply = await created(kube, body_of(resources={"limits": both, "requests": both}))
    assert reply.code == 201, reply
    asked = read_stored(
        reply.body["metadata"]["annotations"]["sluice.dev/request"], reply.body["spec"], RequestLimits()
    )
    assert [(claim.profile, claim.gpus) for claim in asked.pod.claims] == [("1g.5gb", 1)]
