"""Mutating webhooks, called over TLS by URL; skips where the API server cannot reach this machine's loopback."""

import asyncio
import base64
import itertools
import json
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from factories.cluster.kubernetes import LABEL_TEST, STRATEGIC, Cluster, Json, add, deployment, pod
from fake_kube import certificates

PATH = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
NAME = "pods.sluice.dev"
PROBE = "sluice-test-probe-"
ASK = "sluice.dev/profile"
Handler = Callable[[Json], Json]


def patched(request: Json, *operations: Json, **more: object) -> Json:
    encoded = base64.b64encode(json.dumps(operations).encode()).decode()
    patch = {"patchType": "JSONPatch", "patch": encoded} if operations else {}
    return {"uid": request["uid"], "allowed": True, **patch, **more}


@dataclass(slots=True)
class Hook:
    """A webhook's server; what it was asked, and how it answers."""

    port: int
    bundle: str
    namespace: str
    """The namespace whose pods it is asked about; a real cluster has others."""
    answer: Handler = patched
    seen: list[Json] = field(default_factory=list)
    hang: asyncio.Event | None = None
    registered: list[str] = field(default_factory=list)
    probed: set[str] = field(default_factory=set)
    """The webhooks of a real cluster that were called for a probe: they are in effect."""


@pytest.fixture
async def hook(kube: Cluster, namespace: str, tmp_path: Path) -> AsyncIterator[Hook]:
    """One that listens as the service webhook in the namespace sluice-system, or at an URL."""
    if kube.fake is None and not kube.is_here:
        pytest.skip("the API server is on another machine, and cannot reach a webhook on this one's loopback")
    made = certificates.make("webhook", folder=tmp_path, names=("webhook.sluice-system.svc",))
    running = Hook(0, base64.b64encode(made.authority.read_bytes()).decode(), namespace)

    async def mutate(request: web.Request) -> web.Response:
        review = await request.json()
        if review["request"]["object"]["metadata"].get("generateName") == PROBE:
            running.probed.add(request.match_info.get("name", ""))
            return web.json_response({**review, "request": None, "response": patched(review["request"])})
        running.seen.append(review["request"])
        if running.hang is not None:
            await running.hang.wait()
        return web.json_response({**review, "request": None, "response": running.answer(review["request"])})

    app = web.Application()
    app.router.add_post("/mutate", mutate)
    app.router.add_post("/mutate/{name}", mutate)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    running.port = runner.addresses[0][1]
    if kube.fake is not None:
        kube.fake.route_service("sluice-system", "webhook", host="127.0.0.1", port=running.port)
    yield running
    if running.hang is not None:
        running.hang.set()
    for name in running.registered:
        await kube.delete(f"{PATH}/{name}")
    await runner.cleanup()


async def register(kube: Cluster, hook: Hook, *, name: str = NAME, **changes: Any) -> None:
    """A configuration of one webhook, in effect; for the pods of the test's namespace."""
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    client: Json = {"service": {"namespace": "sluice-system", "name": "webhook", "path": "/mutate"}}
    if kube.fake is None:
        client = {"url": f"https://127.0.0.1:{hook.port}/mutate/{name}"}
    only = {"kubernetes.io/metadata.name": hook.namespace}
    chosen = {"matchLabels": only, **changes.pop("namespaceSelector", {})}
    entry = {
        "name": name,
        "rules": rules,
        "clientConfig": {**client, "caBundle": hook.bundle},
        "namespaceSelector": chosen,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        **changes,
    }
    about = {"name": name, "labels": {LABEL_TEST: "true"}}
    await kube.create(PATH, {"metadata": about, "webhooks": [entry]})
    hook.registered.append(name)
    if kube.fake is None:
        await in_effect(kube, hook, name)


async def in_effect(kube: Cluster, hook: Hook, name: str) -> None:
    """A real API server calls a new webhook some moments later: until it was, or its call failed."""
    probe = pod(gates=())
    probe["metadata"] = {"generateName": PROBE, "annotations": {ASK: "1g.5gb"}}
    pods = f"/api/v1/namespaces/{hook.namespace}/pods"
    await kube.until(
        lambda: kube.post(pods, probe, dryRun="All"), lambda reply: name in hook.probed or reply.code != 201
    )


async def test_a_webhook_sees_a_pod_without_identity(kube: Cluster, hook: Hook, pods: str) -> None:
    """No name with generateName, no uid, no time: nothing may be keyed by them."""
    await register(kube, hook)
    body = pod()
    body["metadata"] = {"generateName": "train-"}
    reply = await kube.post(pods, body)
    (request,) = hook.seen
    assert reply.code == 201
    assert reply.body["metadata"]["name"].startswith("train-")
    assert "name" not in request
    assert not {"name", "uid", "creationTimestamp"} & request["object"]["metadata"].keys()
    assert (request["operation"], request["dryRun"], request["resource"]["resource"]) == ("CREATE", False, "pods")
    assert len(request["object"]["spec"]["tolerations"]) == 2
    assert any("projected" in volume for volume in request["object"]["spec"]["volumes"])


async def test_what_a_webhook_patches_is_what_is_stored(kube: Cluster, hook: Hook, pods: str) -> None:
    """Gate, label, annotations, environment at the front; the client gets the warnings."""
    variable = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
    hook.answer = lambda request: patched(
        request,
        add("/metadata/labels", {"sluice.dev/managed": "true"}),
        add("/spec/containers/0/env", [variable]),
        add("/spec/schedulingGates", [{"name": "sluice.dev/slice"}]),
        warnings=['renamed: a "key"'],
    )
    await register(kube, hook)
    reply = await kube.post(pods, pod(gates=()))
    assert reply.code == 201
    assert reply.body["metadata"]["labels"] == {"sluice.dev/managed": "true"}
    assert reply.body["spec"]["containers"][0]["env"] == [variable]
    assert reply.body["status"]["conditions"][0]["reason"] == "SchedulingGated"
    assert reply.warnings == ['renamed: a \\"key\\"']


@pytest.mark.parametrize(("status", "code"), [({"code": 403}, 403), ({"code": 422}, 422), ({}, 400)])
async def test_a_denial_is_in_the_webhooks_words(kube: Cluster, hook: Hook, pods: str, status: Json, code: int) -> None:
    """The code is the webhook's; without one it is 400."""
    denied = {"allowed": False, "status": {"message": "no such profile", **status}}
    hook.answer = lambda request: {"uid": request["uid"], **denied}
    await register(kube, hook)
    reply = await kube.post(pods, pod())
    assert (reply.code, reply.message) == (code, f'admission webhook "{NAME}" denied the request: no such profile')


async def test_a_patch_that_does_not_fit_is_our_fault(kube: Cluster, hook: Hook, pods: str) -> None:
    """500: the user can do nothing about it."""
    hook.answer = lambda request: patched(request, {"op": "remove", "path": "/spec/nothing"})
    await register(kube, hook)
    reply = await kube.post(pods, pod())
    reply.refused(500, "InternalError", "error in remove for path")


@pytest.mark.parametrize(("policy", "code"), [("Fail", 500), ("Ignore", 201)])
async def test_a_slow_webhook_is_not_waited_for(kube: Cluster, hook: Hook, pods: str, policy: str, code: int) -> None:
    """With Fail no pod is created while the webhook is slow: it must be quick, or separate."""
    hook.hang = asyncio.Event()
    await register(kube, hook, timeoutSeconds=1, failurePolicy=policy)
    reply = await kube.post(pods, pod())
    assert reply.code == code
    if code == 500:
        assert f'failed calling webhook "{NAME}"' in reply.message
        assert "context deadline exceeded" in reply.message


async def test_a_certificate_that_the_bundle_does_not_vouch_for_is_refused(
    kube: Cluster, hook: Hook, pods: str, tmp_path: Path
) -> None:
    """A caBundle that fell out of step stops every pod."""
    (tmp_path / "other").mkdir()
    other = certificates.make("other", folder=tmp_path / "other")
    hook.bundle = base64.b64encode(other.authority.read_bytes()).decode()
    await register(kube, hook)
    assert (await kube.post(pods, pod())).code == 500
    assert hook.seen == []


async def test_a_later_webhooks_container_is_seen_by_an_earlier_one_again(kube: Cluster, hook: Hook, pods: str) -> None:
    """Reinvocation: what another webhook adds gets its environment too."""

    def answer(request: Json) -> Json:
        containers = request["object"]["spec"]["containers"]
        bare = [index for index, each in enumerate(containers) if not each.get("env")]
        variables = [add(f"/spec/containers/{index}/env", [{"name": "A", "value": "1"}]) for index in bare]
        return patched(request, *(variables or [add("/spec/containers/-", {"name": "mesh", "image": "m:1"})]))

    hook.answer = answer
    await register(kube, hook, name="a.first.dev", reinvocationPolicy="IfNeeded")
    await register(kube, hook, name="b.later.dev")
    made = await kube.create(pods, pod())
    containers = [(each["name"], bool(each.get("env"))) for each in made["spec"]["containers"]]
    assert containers == [("main", True), ("mesh", True)]
    assert len(hook.seen) == 3


async def test_a_limit_range_puts_back_what_was_stripped_and_the_second_call_sees_it(
    kube: Cluster, hook: Hook, namespace: str, pods: str
) -> None:
    """The ask must be read from the first call: the second sees the default instead."""
    limits = [{"type": "Container", "default": {"nvidia.com/gpu": "1"}}]
    path = f"/api/v1/namespaces/{namespace}/limitranges"
    await kube.post(path, {"metadata": {"name": "l"}, "spec": {"limits": limits}})
    operation = {"op": "remove", "path": "/spec/containers/0/resources"}
    hook.answer = lambda request: patched(request, operation)
    await register(kube, hook, reinvocationPolicy="IfNeeded")
    body = pod()
    body["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "3"}}
    reply = await kube.post(pods, body)
    asked = [each["object"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for each in hook.seen]
    assert asked == ["3", "1"]
    assert reply.body["spec"]["containers"][0]["resources"] == {}


@pytest.mark.parametrize(
    ("effects", "why"),
    [
        ({"sideEffects": "Some"}, 'Unsupported value: "Some": supported values: "None", "NoneOnDryRun"'),
        ({}, "Required value: must specify one of None, NoneOnDryRun"),
    ],
)
async def test_a_webhook_with_side_effects_is_refused(kube: Cluster, hook: Hook, effects: Json, why: str) -> None:
    """A server of v1 configurations could not try a pod with it (tried on 1.37.2)."""
    entry = {"name": NAME, "clientConfig": {"url": "https://127.0.0.1:1/"}, "admissionReviewVersions": ["v1"]}
    reply = await kube.post(PATH, {"metadata": {"name": NAME}, "webhooks": [{**entry, **effects}]})
    assert (reply.code, hook.seen) == (422, [])
    where = f'MutatingWebhookConfiguration.admissionregistration.k8s.io "{NAME}" is invalid: webhooks[0].sideEffects'
    assert reply.message == f"{where}: {why}"


async def test_only_chosen_namespaces_and_subresources_are_asked_about(
    kube: Cluster, hook: Hook, namespace: str, pods: str
) -> None:
    """A rule for pods does not cover ephemeral containers; a namespace's label opts out."""
    await register(
        kube, hook, namespaceSelector={"matchExpressions": [{"key": "test.dev/ignore", "operator": "DoesNotExist"}]}
    )
    await kube.post(pods, pod())
    debug = {"spec": {"ephemeralContainers": [{"name": "d", "image": "i:1"}]}}
    joined = await kube.patch(f"{pods}/p/ephemeralcontainers", debug, STRATEGIC)
    assert joined.code == 200, joined
    assert len(hook.seen) == 1
    await kube.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {"test.dev/ignore": ""}}}, STRATEGIC)
    numbers = itertools.count()

    async def is_asked() -> bool:
        before = len(hook.seen)
        assert (await kube.post(pods, pod(f"q-{next(numbers)}"))).code == 201
        return len(hook.seen) > before

    # A server's admission sees a new label when its own watch has brought it.
    await kube.until(is_asked, lambda asked: not asked)
    assert not await is_asked()


async def test_a_deployments_pods_come_from_a_controller(kube: Cluster, hook: Hook, namespace: str, pods: str) -> None:
    """Never from the person: the caller is unknown; a denial shows as ReplicaFailure."""
    await register(kube, hook)
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    await kube.create(path, deployment("d", 3, pod()["spec"]))
    await kube.until(lambda: kube.get(pods, labelSelector="app=d"), lambda reply: len(reply.items) == 3)
    requesters = {request["userInfo"]["username"] for request in hook.seen}
    hook.answer = lambda request: {"uid": request["uid"], "allowed": False, "status": {"message": "no", "code": 403}}
    await kube.patch(f"{path}/d", {"spec": {"replicas": 4}}, STRATEGIC)
    failed = await kube.until(f"{path}/d", lambda reply: "ReplicaFailure" in str(reply))
    await kube.delete(f"{path}/d")
    await kube.until(lambda: kube.get(pods, labelSelector="app=d"), lambda reply: not reply.items)
    assert requesters == {"system:serviceaccount:kube-system:replicaset-controller"}
    assert f'admission webhook "{NAME}" denied the request: no' in str(failed.body["status"]["conditions"])


async def test_a_runtime_class_must_be_there(kube: Cluster, hook: Hook, pods: str) -> None:
    """Set by a webhook, looked up after it; then its selector is in, and the webhook is asked again."""
    hook.answer = lambda request: patched(request, add("/spec/runtimeClassName", "nvidia"))
    await register(kube, hook, reinvocationPolicy="IfNeeded")
    missing = await kube.post(pods, pod())
    path = "/apis/node.k8s.io/v1/runtimeclasses"
    scheduling = {"nodeSelector": {"gpu": "true"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}
    await kube.post(path, {"metadata": {"name": "nvidia"}, "handler": "nvidia", "scheduling": scheduling})
    found = await kube.post(pods, pod())
    await kube.delete(f"{path}/nvidia")
    missing.refused(403, "Forbidden", 'pod rejected: RuntimeClass "nvidia" not found')
    assert found.body["spec"]["nodeSelector"] == {"gpu": "true"}
    assert len(hook.seen) == 3


async def test_a_condition_stands_for_its_cel(kube: Cluster, hook: Hook, pods: str) -> None:
    """Pods that it does not choose are never asked about; the fake has a predicate in its place."""
    if kube.fake is not None:
        kube.fake.match_condition("ours", lambda obj: ASK in (obj["metadata"].get("annotations") or {}))
    expression = f"'{ASK}' in object.metadata.?annotations.orValue({{}})"
    await register(kube, hook, matchConditions=[{"name": "ours", "expression": expression}])
    await kube.post(pods, pod("foreign"))
    await kube.post(pods, pod("ours", annotations={"sluice.dev/profile": "1g.5gb"}))
    assert [request["name"] for request in hook.seen] == ["ours"]
