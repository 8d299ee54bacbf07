"""What a pod may look like when it is created, and what it is then."""

import pytest
from factories.cluster.kubernetes import MERGE, STRATEGIC, Cluster, Json, pod

from sluice.contracts.kube.names import CONDITION_READY, GATE, granted, granted_field_path

MAX_ANNOTATIONS = 262_144
GPU = "nvidia.com/gpu"


def env(path: str) -> list[Json]:
    return [{"name": "V", "valueFrom": {"fieldRef": {"fieldPath": path}}}]


def with_container(body: Json, **changes: object) -> Json:
    body["spec"]["containers"][0].update(changes)
    return body


def mounting(**mount: str) -> Json:
    body = pod(volumes=[{"name": "v", "emptyDir": {}}])
    return with_container(body, volumeMounts=[{"name": "v", "mountPath": "/v", **mount}])


async def test_a_gated_pod_waits_and_says_so_at_once(kube: Cluster, pods: str) -> None:
    """The form that Sluice makes of a pod is accepted before any of its annotations exist."""
    body = pod(volumes=[{"name": "v", "csi": {"driver": "slice.sluice.dev"}}])
    sidecar = {"name": "side", "image": "busybox:1.36", "restartPolicy": "Always"}
    body["spec"]["initContainers"] = [{"name": "init", "image": "busybox:1.36"}, sidecar]
    mount = {"name": "v", "mountPath": "/run/sluice/slice", "subPathExpr": "$(SLUICE_TICKET)", "readOnly": True}
    with_container(body, env=env(granted_field_path("main", "visible-devices")), volumeMounts=[mount])
    reply = await kube.post(pods, body)
    assert reply.code == 201, reply
    (condition,) = reply.body["status"]["conditions"]
    assert reply.body["status"]["phase"] == "Pending"
    assert {key: condition[key] for key in ("type", "status", "reason", "message")} == {
        "type": "PodScheduled",
        "status": "False",
        "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
    }
    assert len(reply.body["spec"]["tolerations"]) == 2
    assert any("projected" in volume for volume in reply.body["spec"]["volumes"])


def reading(path: str) -> Json:
    return with_container(pod(), env=env(path))


def named(name: str) -> Json:
    """With an annotation of its container."""
    return with_container(pod(annotations={granted(name, "visible-devices"): "x"}), name=name)


def asking(**resources: Json) -> Json:
    return with_container(pod(), resources={kind: {GPU: amount} for kind, amount in resources.items()})


@pytest.mark.parametrize(
    ("body", "why"),
    [
        # What a server catches before a kubelet has to; only a kubelet complains of a variable that is not there.
        pytest.param(mounting(subPathExpr="../x"), "must not contain '..'", id="sub-path-begins-above"),
        pytest.param(mounting(subPathExpr="a/../x"), "must not contain '..'", id="sub-path-goes-up"),
        pytest.param(mounting(subPathExpr="/x"), "must be a relative path", id="sub-path-absolute"),
        pytest.param(mounting(subPathExpr="$(A)", subPath="a"), "mutually exclusive", id="sub-path-twice"),
        pytest.param(mounting(subPathExpr="$(NOT_THERE)"), None, id="sub-path-of-no-variable"),
        # A path that a server refuses would refuse every pod.
        pytest.param(reading("metadata.annotations['main.granted.sluice.dev/x']"), None, id="single-quotes"),
        pytest.param(reading('metadata.annotations["main.granted.sluice.dev/x"]'), "", id="double-quotes"),
        pytest.param(reading("metadata.annotations['a/b/c']"), "", id="two-slashes"),
        pytest.param(reading("metadata.annotations['Main.sluice.dev/X']"), None, id="uppercase"),
        pytest.param(reading("metadata.nothing"), "", id="no-such-field"),
        # 63 characters and our suffix are a valid key; without dots asked and granted keys differ.
        pytest.param(named("c" * 63), None, id="container-name-longest"),
        pytest.param(named("c" * 64), "", id="container-name-too-long"),
        *(
            pytest.param(with_container(pod(), name=name), "", id=f"container-{name!r}")
            for name in ("a.b", "Upper", "-a", "")
        ),
        # 253 before the slash, 63 after it; all together in bytes.
        pytest.param(pod(annotations={f"{'a' * 253}/x": ""}), None, id="prefix-longest"),
        pytest.param(pod(annotations={f"{'a' * 254}/x": ""}), "", id="prefix-too-long"),
        pytest.param(pod(annotations={f"sluice.dev/{'x' * 63}": ""}), None, id="key-longest"),
        pytest.param(pod(annotations={f"sluice.dev/{'x' * 64}": ""}), "", id="key-too-long"),
        pytest.param(pod(annotations={"k": "v" * (MAX_ANNOTATIONS - 1)}), None, id="annotations-longest"),
        pytest.param(
            pod(annotations={"k": "v" * MAX_ANNOTATIONS}),
            "may not be more than 262144 bytes",
            id="annotations-too-long",
        ),
        # What Sluice strips, the server never checks: these are the cases that it must.
        pytest.param(asking(limits="500m"), "", id="amount-in-parts"),
        pytest.param(asking(limits="1.2"), "", id="amount-broken"),
        pytest.param(asking(requests="1"), "", id="amount-without-limit"),
        pytest.param(asking(limits="2", requests="1"), "", id="amount-below-limit"),
    ],
)
async def test_a_pod_is_taken_or_refused_as_by_a_server(kube: Cluster, pods: str, body: Json, why: str | None) -> None:
    """What admission makes of a pod must be taken; without `why` it is."""
    reply = await kube.post(pods, body)
    assert (reply.code, reply.reason) == ((201, "") if why is None else (422, "Invalid")), reply
    assert (why or "") in reply.message


async def test_two_variables_of_one_name_are_both_kept(kube: Cluster, pods: str) -> None:
    """So every entry of a name must be looked at."""
    twice = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    reply = await kube.post(pods, with_container(pod(), env=twice))
    assert (reply.code, reply.body["spec"]["containers"][0]["env"]) == (201, twice)


async def test_conditions_do_not_come_with_a_pod(kube: Cluster, pods: str) -> None:
    """A condition is always a second write."""
    condition = {"type": CONDITION_READY, "status": "False"}
    created = await kube.post(pods, {**pod(), "status": {"conditions": [condition]}})
    patched = await kube.patch(f"{pods}/p", {"status": {"conditions": [condition]}}, STRATEGIC)
    assert patched.code == 200
    for reply in (created, patched):
        assert [each["type"] for each in reply.body["status"]["conditions"]] == ["PodScheduled"]


async def test_a_condition_written_by_strategic_merge_leaves_the_others(kube: Cluster, pods: str) -> None:
    """And stays when the gate opens; a merge patch would drop PodScheduled."""
    await kube.post(pods, pod(nodeSelector={"sluice-test": "nowhere"}))
    condition = {"type": CONDITION_READY, "status": "False", "reason": "Waiting", "message": "m"}
    ours = {"status": {"conditions": [condition]}}
    merged = await kube.patch(f"{pods}/p/status", ours, STRATEGIC)
    opening = {"spec": {"schedulingGates": [{"name": GATE, "$patch": "delete"}]}}
    assert (await kube.patch(f"{pods}/p", opening, STRATEGIC)).code == 200
    opened = await kube.get(f"{pods}/p")
    replaced = await kube.patch(f"{pods}/p/status", ours, MERGE)
    assert merged.code == 200
    assert sorted(each["type"] for each in merged.body["status"]["conditions"]) == ["PodScheduled", CONDITION_READY]
    assert CONDITION_READY in [each["type"] for each in opened.body["status"]["conditions"]]
    assert [each["type"] for each in replaced.body["status"]["conditions"]] == [CONDITION_READY]


async def test_a_condition_type_must_be_a_qualified_name(kube: Cluster, pods: str) -> None:
    """Found when it is written, not when it is read."""
    await kube.post(pods, pod())
    wrong = {"status": {"conditions": [{"type": "a b", "status": "True"}]}}
    assert (await kube.patch(f"{pods}/p/status", wrong, STRATEGIC)).code == 422


async def test_the_status_is_a_side_door_to_the_metadata_alone(kube: Cluster, pods: str) -> None:
    """Annotations pass through pods/status, the spec is dropped in silence: why a policy must cover it."""
    await kube.post(pods, pod())
    patch = {"metadata": {"annotations": {"a": "b"}, "labels": {"c": "d"}}, "spec": {"nodeName": "n1"}}
    reply = await kube.patch(f"{pods}/p/status", patch, STRATEGIC)
    assert reply.code == 200
    assert (reply.body["metadata"]["annotations"], reply.body["metadata"]["labels"]) == ({"a": "b"}, {"c": "d"})
    assert "nodeName" not in reply.body["spec"]


async def test_a_dry_run_stores_nothing(kube: Cluster, pods: str) -> None:
    """It is answered 201 with a uid, and there is no pod."""
    reply = await kube.post(pods, pod(), dryRun="All")
    assert (reply.code, bool(reply.body["metadata"]["uid"])) == (201, True)
    assert (await kube.get(f"{pods}/p")).code == 404


async def test_a_name_is_taken_once(kube: Cluster, pods: str) -> None:
    """A second pod of the same name is refused."""
    await kube.post(pods, pod())
    reply = await kube.post(pods, pod())
    assert (reply.code, reply.reason, reply.message) == (409, "AlreadyExists", 'pods "p" already exists')


def binding(node: str, key: str) -> Json:
    return {"metadata": {"name": "p", "annotations": {key: "all"}}, "target": {"kind": "Node", "name": node}}


async def test_a_binding_carries_annotations_onto_the_pod(kube: Cluster, pods: str) -> None:
    """The side door that the policy on bindings closes."""
    node = await kube.node()
    await kube.post(pods, pod(gates=(), schedulerName="absent"))
    key = "example.org/of-a-user"
    reply = await kube.post(f"{pods}/p/binding", binding(node, key))
    bound = await kube.get(f"{pods}/p")
    assert reply.code == 201
    assert (bound.body["spec"]["nodeName"], bound.body["metadata"]["annotations"][key]) == (node, "all")
    assert (await kube.post(f"{pods}/p/binding", binding(node, key))).code == 409


async def test_where_sluice_is_installed_a_binding_brings_no_grant(kube: Cluster, pods: str) -> None:
    """An account that may bind pods could take any GPU: the fake does not evaluate this policy, a real server does."""
    policy = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/sluice-bindings"
    if kube.fake is not None or (await kube.get(policy)).code == 404:
        pytest.skip("needs a real cluster in which Sluice's policies are installed")
    await kube.post(pods, pod(gates=(), schedulerName="absent"))
    reply = await kube.post(f"{pods}/p/binding", binding(await kube.node(), granted("main", "visible-devices")))
    reply.refused(403, "Forbidden", "a Binding may not bring annotations of sluice.dev onto its pod")
    assert "nodeName" not in (await kube.get(f"{pods}/p")).body["spec"]


async def test_an_ephemeral_container_joins_by_its_own_door(kube: Cluster, pods: str) -> None:
    """Only there, and without a sub path."""
    await kube.post(pods, pod(volumes=[{"name": "v", "emptyDir": {}}]))
    debug, door = {"name": "debug", "image": "busybox:1.36"}, f"{pods}/p/ephemeralcontainers"
    mount = {"name": "v", "mountPath": "/v", "subPathExpr": "$(A)"}
    mounting = {"spec": {"ephemeralContainers": [{**debug, "volumeMounts": [mount]}]}}
    plain = {"spec": {"ephemeralContainers": [debug]}}
    by_main = await kube.patch(f"{pods}/p", plain, STRATEGIC)
    by_path = await kube.patch(door, mounting, STRATEGIC)
    joined = await kube.patch(door, plain, STRATEGIC)
    assert (by_main.code, by_path.code) == (422, 422)
    assert "cannot be set for an Ephemeral Container" in by_path.message
    assert (joined.code, joined.body["spec"]["ephemeralContainers"][0]["name"]) == (200, "debug")
