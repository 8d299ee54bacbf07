"""The webhook behind the fake API server over TLS: what `kubectl` shows of accepted and refused pods."""

import secrets

import pytest
from factories.cluster.admission import asked_by, gpu
from factories.cluster.webhook_cluster import webhook_cluster


@pytest.fixture
async def kube(tmp_path):
    """A cluster with the webhook configuration as it is shipped, the webhook behind it, and a namespace."""
    async with webhook_cluster(tmp_path / "config") as opened:
        yield opened


async def created(kube, body, *, limits=None, **labels):
    """The answer to the creation of a pod in a namespace with these labels, and with a LimitRange."""
    name = f"research-{secrets.token_hex(4)}"
    made = await kube.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    assert made.code == 201, made
    if limits is not None:
        spec = {"limits": [{"type": "Container", **limits}]}
        made = await kube.post(f"/api/v1/namespaces/{name}/limitranges", {"metadata": {"name": "l"}, "spec": spec})
        assert made.code == 201, made
    return await kube.post(f"/api/v1/namespaces/{name}/pods", body)


async def limited(kube, limits, body):
    """A pod as it was taken in a namespace with this LimitRange."""
    reply = await created(kube, body, limits=limits)
    assert reply.code == 201, reply
    return reply


def body_of(*, annotations=None, resources=None, **spec):
    container = {"name": "main", "image": "train:latest"} | ({"resources": resources} if resources else {})
    metadata = {"generateName": "train-"} | ({"annotations": annotations} if annotations else {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]} | spec}


NINE = {"limits": {"nvidia.com/mig-1g.5gb": "9"}}
BOTH = {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.5gb": "1"}
MPS = {"sluice.dev/default-mode": "mps"}
DEFAULT = "main.sluice.dev/mode = 'mps': the default of this namespace, because the pod names no mode"


@pytest.mark.parametrize(
    ("asks", "labels", "claim", "warnings"),
    [
        ({"resources": NINE}, {}, {"gpus": 9}, []),
        ({"annotations": {"sluice.dev/memory": "4Gi"}}, MPS, {"modes": ("mps",)}, [DEFAULT]),
        ({"resources": {"limits": BOTH, "requests": BOTH}}, {}, {"profile": "1g.5gb", "gpus": 1}, []),
    ],
    ids=["more instances than a node has GPUs", "the mode of a namespace, by its label", "JupyterHub's zero beside it"],
)
async def test_a_pod_gets_what_it_asks_for(kube, asks, labels, claim, warnings):
    """`kubectl apply` would refuse it, or it would start with something else."""
    reply = await created(kube, body_of(**asks), **labels)
    assert reply.code == 201, reply
    (asked,) = asked_by(reply.body).pod.claims
    assert {key: getattr(asked, key) for key in claim} == claim
    assert list(reply.warnings) == warnings


async def test_a_namespace_that_opts_out_is_left_alone(kube):
    """Its pods are the device plugin's."""
    reply = await created(kube, body_of(resources=gpu(gpu="1")), **{"sluice.dev/ignore": "true"})
    assert reply.code == 201, reply
    assert "schedulingGates" not in reply.body["spec"]
    assert reply.body["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}


async def test_a_limit_range_neither_changes_the_ask_nor_leaves_a_resource_behind(kube):
    """It puts `nvidia.com/gpu` back after the first review; a pod that keeps it is never scheduled."""
    reply = await limited(kube, {"default": {"nvidia.com/gpu": "1"}}, body_of(resources=gpu(gpu="3")))
    assert not [name for part in reply.body["spec"]["containers"][0]["resources"].values() for name in part]
    assert asked_by(reply.body).pod.claims[0].gpus == 3


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
    body = body_of(**OWN_WORDS[words])
    body["spec"]["containers"].append({"name": "side", "image": "train:latest"})
    reply = await limited(kube, RANGES[limit], body)
    (claim,) = asked_by(reply.body).pod.claims
    assert (claim.container, claim.profile, claim.gpus) == ("main", "1g.5gb", 1)
    for each in reply.body["spec"]["containers"]:
        assert not [found for part in each["resources"].values() for found in part if "/" in found]


async def test_a_pod_that_asks_for_nothing_asks_for_what_its_namespace_gives_it(kube):
    """That is the purpose of such a LimitRange."""
    reply = await limited(kube, {"default": {"nvidia.com/mig-1g.5gb": "1"}}, body_of())
    assert [claim.profile for claim in asked_by(reply.body).pod.claims] == ["1g.5gb"]


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
