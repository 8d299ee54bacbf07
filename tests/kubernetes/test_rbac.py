"""Roles by token: what a refusal looks like, and what a right lets through."""

import json

import pytest
from factories.cluster.account_rights import Right, may
from factories.cluster.kubernetes import APPLY, MERGE, STRATEGIC, Cluster, pod
from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ForbiddenException

PODS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch", "patch"]}]
NAMED = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "patch"], "resourceNames": ["ours"]}]


async def test_a_refusal_names_user_verb_resource_and_place(kube: Cluster, namespace: str, pods: str) -> None:
    """So that a person can write the missing rule; a policy's refusal has causes, this one has none."""
    token = await kube.account(namespace, "reader", PODS)
    user = f"system:serviceaccount:{namespace}:reader"
    one = await kube.ask("GET", f"{pods}/jp", token=token)
    many = await kube.ask("GET", "/api/v1/nodes", token=token)
    status = await kube.ask("PATCH", f"{pods}/jp/status", {}, kind=STRATEGIC, token=token)
    one_text = f'pods "jp" is forbidden: User "{user}" cannot get resource "pods" in API group "" in the namespace'
    many_text = f'nodes is forbidden: User "{user}" cannot list resource "nodes" in API group "" at the cluster scope'
    assert (one.code, one.reason, one.message) == (403, "Forbidden", f'{one_text} "{namespace}"')
    assert "causes" not in one.body["details"]
    assert (many.code, many.message) == (403, many_text)
    assert 'cannot patch resource "pods/status"' in status.message


async def test_authorisation_comes_before_existence(kube: Cluster, namespace: str, pods: str) -> None:
    """An absent pod is 403 as well: the answer does not reveal which pods exist."""
    token = await kube.account(namespace, "rightless", [])
    assert (await kube.ask("DELETE", f"{pods}/absent", token=token)).code == 403


async def test_the_official_client_raises_what_callers_catch(kube: Cluster, namespace: str) -> None:
    """ForbiddenException with the server's Status as its body."""
    token = await kube.account(namespace, "rightless", [])
    async with kube.official(token) as api:
        with pytest.raises(ForbiddenException) as caught:
            await client.CoreV1Api(api).list_namespaced_pod(namespace)
    assert caught.value.status == 403
    assert 'cannot list resource "pods"' in json.loads(caught.value.body)["message"]


async def test_an_unknown_token_is_not_anonymous(kube: Cluster, pods: str) -> None:
    """401 asks for a new token, 403 for another role."""
    reply = await kube.ask("GET", pods, token="unknown")
    assert (reply.code, reply.reason, reply.message) == (401, "Unauthorized", "Unauthorized")


async def test_a_patch_needs_no_get_and_a_list_can_read_one(kube: Cluster, namespace: str, pods: str) -> None:
    """List, watch and patch are all that the watcher has."""
    token = await kube.account(namespace, "watcher", PODS)
    await kube.post(pods, pod())
    patched = await kube.ask("PATCH", f"{pods}/p", {"metadata": {"annotations": {"a": "b"}}}, kind=MERGE, token=token)
    listed = await kube.ask("GET", pods, token=token, fieldSelector="metadata.name=p")
    assert (patched.code, listed.code, len(listed.items)) == (200, 200, 1)
    assert (await kube.ask("GET", f"{pods}/p", token=token)).code == 403


@pytest.mark.parametrize("subresource", ["exec", "binding", "ephemeralcontainers", "eviction", "status"])
async def test_a_right_to_pods_gives_none_to_parts(kube: Cluster, namespace: str, pods: str, subresource: str) -> None:
    """Each subresource is a right of its own."""
    token = await kube.account(namespace, "watcher", [{"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]}])
    await kube.post(pods, pod())
    assert (await kube.ask("POST", f"{pods}/p/{subresource}", {}, token=token)).code == 403


async def test_a_right_to_one_secret_is_none_to_its_neighbours(kube: Cluster, namespace: str) -> None:
    """Neither by name nor by a list that selects the name."""
    path = f"/api/v1/namespaces/{namespace}/secrets"
    for name in ("ours", "other"):
        await kube.post(path, {"metadata": {"name": name}})
    token = await kube.account(namespace, "named", NAMED)
    codes = {name: (await kube.ask("GET", f"{path}/{name}", token=token)).code for name in ("ours", "other")}
    listed = await kube.ask("GET", path, token=token, fieldSelector="metadata.name=ours")
    assert codes == {"ours": 200, "other": 403}
    assert listed.code == 403


async def test_an_apply_of_an_absent_secret_needs_the_right_to_create(kube: Cluster, namespace: str) -> None:
    """Why the manifests ship it empty."""
    token = await kube.account(namespace, "named", NAMED)
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "ours"}}
    path = f"/api/v1/namespaces/{namespace}/secrets/ours"
    reply = await kube.ask("PATCH", path, body, kind=APPLY, token=token, fieldManager="test")
    reply.refused(403, "Forbidden", 'cannot create resource "secrets"')


async def test_may_i_is_answered_as_the_request_would_be(kube: Cluster, namespace: str) -> None:
    """What the table test of our own roles asks."""
    token = await kube.account(
        namespace, "watcher", [*PODS, {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]}]
    )
    asked = {
        "patch pods": True,
        "create pods/eviction": True,
        "get pods": False,
        "create pods/exec": False,
        "list secrets": False,
        "bind slices sluice.dev": False,
    }
    for right, is_given in asked.items():
        assert await may(kube, token, Right(*right.split(), namespace=namespace)) is is_given, right


async def test_a_cluster_role_reaches_every_namespace(kube: Cluster, namespace: str) -> None:
    """And a made-up right on a resource that does not exist can be granted."""
    rules = [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]},
        {"apiGroups": ["sluice.dev"], "resources": ["slices"], "verbs": ["bind"]},
    ]
    token = await kube.account(namespace, "cluster", [], rules)
    assert (await kube.ask("GET", "/api/v1/nodes", token=token)).code == 200
    assert await may(kube, token, Right("bind", "slices", "sluice.dev", namespace="default"))
