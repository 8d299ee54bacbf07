"""The bind patch: what opens a gate in one write, and what a server refuses."""

import aiohttp
import pytest
from factories.cluster.kubernetes import Cluster, Json, add, named, pinned, pod, remove, test
from factories.cluster.server_versions import minor

from sluice.contracts.kube.names import GATE, granted

OTHER = "kueue.x-k8s.io/admission"
KEY = granted("main", "visible-devices")
POINTER = f"/metadata/annotations/{KEY.replace('/', '~1')}"
OPAQUE = "the server rejected our request due to an error in our request"
ONLY_OURS = [test("/spec/schedulingGates", [{"name": GATE}]), remove("/spec/schedulingGates")]
REQUIRED = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution"
ASKED = {"sluice.dev/profile": "1g.5gb"}
OLD = 34
"""Its server breaks off the connection at a `test` without a value: seen on 1.34.4, not on 1.37.2."""


def held() -> Json:
    """A pod that stays while it is being deleted."""
    body = pod(annotations=ASKED)
    body["metadata"]["finalizers"] = ["sluice.dev/test"]
    return body


async def test_everything_that_becomes_known_arrives_in_one_patch(kube: Cluster, pods: str) -> None:
    """Uid, gate, annotation, pin, toleration and the opening of the gate are one write."""
    found = await kube.create(pods, pod(annotations=ASKED))
    toleration = {"key": "gpu", "operator": "Exists"}
    patch = [
        test("/metadata/uid", found["metadata"]["uid"]),
        test("/spec/schedulingGates/0/name", GATE),
        add(POINTER, "MIG-1"),
        add("/spec/affinity", pinned("nowhere")),
        add("/spec/tolerations/-", toleration),
        add("/metadata/labels", {"seen": "true"}),
        remove("/spec/schedulingGates/0"),
    ]
    reply = await kube.patch(f"{pods}/p", patch)
    assert reply.code == 200
    assert reply.body["metadata"]["annotations"] == {**ASKED, KEY: "MIG-1"}
    assert reply.body["spec"].get("schedulingGates", []) == []
    assert reply.body["spec"]["affinity"] == pinned("nowhere")
    assert reply.body["spec"]["tolerations"][-1] == toleration
    assert reply.body["metadata"]["generation"] == 2


@pytest.mark.parametrize(
    "operations",
    [
        pytest.param([test("/metadata/uid", "another")], id="recreated"),
        pytest.param([test("/spec/schedulingGates/1/name", GATE)], id="gate-at-another-index"),
        pytest.param([test("/spec/schedulingGates", [{"name": OTHER}])], id="another-list-of-gates"),
        pytest.param([add("/metadata/annotations/a/b", "x")], id="unescaped-slash"),
        pytest.param([test("/metadata/resourceVersion", "1")], id="old-version"),
        pytest.param([test("/metadata/annotations/none", "")], id="absent-against-text"),
        pytest.param([test("/metadata/none/none", None)], id="absent-parent-against-null"),
        pytest.param([test("/metadata/uid", None)], id="present-against-null"),
        pytest.param([{"op": "test", "path": "/metadata/uid"}], id="present-against-nothing"),
        pytest.param([remove("/spec/schedulingGates/7")], id="no-such-gate"),
    ],
)
async def test_a_patch_that_does_not_fit_does_not_say_why(kube: Cluster, pods: str, operations: list[Json]) -> None:
    """All guards fail with one text: so the pod must be read again after any 422."""
    await kube.create(pods, pod(annotations=ASKED))
    reply = await kube.patch(f"{pods}/p", [*operations, *ONLY_OURS])
    assert (reply.code, reply.reason, reply.message) == (422, "Invalid", OPAQUE)
    assert not reply.body.get("details")
    assert (await kube.get(f"{pods}/p")).body["spec"]["schedulingGates"] == [{"name": GATE}]


@pytest.mark.parametrize(
    "guard",
    [test("/metadata/deletionTimestamp", None), {"op": "test", "path": "/metadata/deletionTimestamp"}],
    ids=["null", "no-value"],
)
async def test_a_patch_can_be_guarded_against_a_pod_that_is_dying(kube: Cluster, pods: str, guard: Json) -> None:
    """An absent field is null to a `test`, unlike in the RFC: so a terminating pod needs no reading first."""
    await kube.create(pods, held())
    if "value" not in guard and await minor(kube) == OLD:
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await kube.patch(f"{pods}/p", [guard, add(POINTER, "MIG-1")])
        await kube.patch(f"{pods}/p", [remove("/metadata/finalizers")])
        return
    living = await kube.patch(f"{pods}/p", [guard, add(POINTER, "MIG-1")])
    await kube.delete(f"{pods}/p")
    dying = await kube.patch(f"{pods}/p", [guard, *ONLY_OURS])
    left = await kube.get(f"{pods}/p")
    await kube.patch(f"{pods}/p", [remove("/metadata/finalizers")])
    assert (living.code, living.body["metadata"]["annotations"]) == (200, {**ASKED, KEY: "MIG-1"})
    assert (dying.code, dying.message) == (422, OPAQUE)
    assert left.body["spec"]["schedulingGates"] == [{"name": GATE}]


async def test_without_annotations_the_map_must_be_made_first(kube: Cluster, pods: str) -> None:
    """A pod without annotations cannot take one by its path."""
    await kube.create(pods, pod())
    refused = await kube.patch(f"{pods}/p", [add(POINTER, "MIG-1")])
    made_first = await kube.patch(f"{pods}/p", [add("/metadata/annotations", {}), add(POINTER, "MIG-1")])
    assert (refused.code, refused.message) == (422, OPAQUE)
    assert (made_first.code, made_first.body["metadata"]["annotations"]) == (200, {KEY: "MIG-1"})


async def test_a_gate_that_is_gone_already_is_the_same_opaque_refusal(kube: Cluster, pods: str) -> None:
    """A repeated bind patch fails; what is must be read."""
    await kube.create(pods, pod(annotations=ASKED, nodeSelector={"sluice-test": "nowhere"}))
    assert (await kube.patch(f"{pods}/p", ONLY_OURS)).code == 200
    again = await kube.patch(f"{pods}/p", ONLY_OURS)
    assert (again.code, again.message) == (422, OPAQUE)


async def test_a_pod_that_is_gone_is_not_found(kube: Cluster, pods: str) -> None:
    """404 and 422 ask for different things."""
    reply = await kube.patch(f"{pods}/gone", ONLY_OURS)
    assert (reply.code, reply.reason, reply.message) == (404, "NotFound", 'pods "gone" not found')


@pytest.mark.parametrize("kind", ["json", "strategic"])
async def test_an_old_version_is_a_conflict(kube: Cluster, pods: str, kind: str) -> None:
    """Written as a replacement, not as a test, it is distinct from other refusals."""
    version = (await kube.create(pods, pod(annotations=ASKED)))["metadata"]["resourceVersion"]
    assert (await kube.patch(f"{pods}/p", [add(POINTER, "MIG-1")])).code == 200
    replaced = [{"op": "replace", "path": "/metadata/resourceVersion", "value": version}]
    written = replaced if kind == "json" else {"metadata": {"resourceVersion": version}}
    reply = await kube.patch(f"{pods}/p", written)
    reply.refused(409, "Conflict", "the object has been modified; ")


async def test_another_gate_before_ours_moves_our_index(kube: Cluster, pods: str) -> None:
    """A guard on index 0 fails, one on index 1 holds; the other gate stays."""
    await kube.create(pods, pod(gates=(OTHER, GATE), annotations=ASKED))
    first, second = [
        await kube.patch(f"{pods}/p", [test(f"{path}/name", GATE), remove(path)])
        for path in ("/spec/schedulingGates/0", "/spec/schedulingGates/1")
    ]
    assert (first.code, first.message) == (422, OPAQUE)
    assert (second.code, second.body["spec"]["schedulingGates"]) == (200, [{"name": OTHER}])


async def test_the_guard_that_ours_is_the_last_gate_holds(kube: Cluster, pods: str) -> None:
    """A pod that Kueue still holds is not opened; when it lets go, the same patch opens it."""
    await kube.create(pods, pod(gates=(GATE, OTHER), annotations=ASKED))
    held = await kube.patch(f"{pods}/p", ONLY_OURS)
    assert (await kube.patch(f"{pods}/p", [remove("/spec/schedulingGates/1")])).code == 200
    opened = await kube.patch(f"{pods}/p", ONLY_OURS)
    assert (held.code, held.message) == (422, OPAQUE)
    assert opened.code == 200


async def test_a_gate_cannot_come_back_and_none_can_be_added(kube: Cluster, pods: str) -> None:
    """Opening is for good."""
    await kube.create(pods, pod(annotations=ASKED, nodeSelector={"sluice-test": "nowhere"}))
    added = await kube.patch(f"{pods}/p", [add("/spec/schedulingGates/-", {"name": OTHER})])
    assert (await kube.patch(f"{pods}/p", ONLY_OURS)).code == 200
    back = await kube.patch(f"{pods}/p", [add("/spec/schedulingGates", [{"name": GATE}])])
    for reply in (added, back):
        reply.refused(422, "Invalid", "only deletion is allowed, but found new scheduling gate")


@pytest.mark.parametrize(
    "operation",
    [
        add("/spec/nodeName", "n1"),
        add("/spec/containers/0/env", [{"name": "A", "value": "1"}]),
        add("/spec/containers/0/resources", {"limits": {"cpu": "1"}}),
    ],
    ids=["node", "environment", "resources"],
)
async def test_what_a_pod_is_cannot_change_and_the_patch_is_refused(kube: Cluster, pods: str, operation: Json) -> None:
    """Nothing of such a patch is applied, not even its good part."""
    await kube.create(pods, pod(annotations=ASKED))
    reply = await kube.patch(f"{pods}/p", [*ONLY_OURS, operation])
    reply.refused(422, "Invalid", "pod updates may not change fields other than ")
    assert (await kube.get(f"{pods}/p")).body["spec"]["schedulingGates"] == [{"name": GATE}]


async def test_the_gate_of_a_dying_pod_opens(kube: Cluster, pods: str) -> None:
    """So deletionTimestamp must be looked at before, or be tested in the patch: the server does not."""
    await kube.create(pods, held())
    dying = await kube.delete(f"{pods}/p")
    opened = await kube.patch(f"{pods}/p", ONLY_OURS)
    gone = await kube.patch(f"{pods}/p", [remove("/metadata/finalizers")])
    assert dying.body["metadata"]["deletionTimestamp"]
    assert (opened.code, gone.code) == (200, 200)
    await kube.until(f"{pods}/p", 404)


async def test_a_gated_pod_takes_no_node_by_another_way(kube: Cluster, pods: str) -> None:
    """Neither at creation nor by a Binding."""
    preset = await kube.post(pods, pod("preset", nodeName="n1"))
    await kube.create(pods, pod())
    bound = await kube.post(f"{pods}/p/binding", {"target": {"kind": "Node", "name": "n1"}, "metadata": {"name": "p"}})
    preset.refused(
        422, "Invalid", "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"
    )
    bound.refused(409, "Conflict", "has non-empty .spec.schedulingGates")


# -- pins -------------------------------------------------------------------------------------------------------------

IN_ZONE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
TERMS = f"{REQUIRED}/nodeSelectorTerms"
HOSTNAME = "/spec/nodeSelector/kubernetes.io~1hostname"


def required(*terms: Json) -> Json:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


PREFERRED = {"weight": 1, "preference": IN_ZONE}


PINS: dict[str, tuple[Json, Json | list[Json], str | None]] = {
    "no-selector": ({}, add("/spec/nodeSelector", {"a": "b"}), None),
    "own-selector": ({"nodeSelector": {"x": "y"}}, add(HOSTNAME, "n"), None),
    "no-affinity": ({}, add("/spec/affinity", pinned("n")), None),
    "only-preferred": (
        {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [PREFERRED]}}},
        add(REQUIRED, {"nodeSelectorTerms": [{"matchFields": named("n")}]}),
        None,
    ),
    "into-every-term": (
        {"affinity": required(IN_ZONE, IN_ZONE)},
        [add(f"{TERMS}/{index}/matchFields", named("n")) for index in (0, 1)],
        None,
    ),
    "selector-replaced": (
        {"nodeSelector": {"x": "y"}},
        add("/spec/nodeSelector", {"a": "b"}),
        "only additions to spec.nodeSelector are allowed",
    ),
    "another-term": (
        {"affinity": required(IN_ZONE)},
        add(f"{TERMS}/-", {"matchFields": named("n")}),
        "no additions/deletions to non-empty NodeSelectorTerms list are allowed",
    ),
    "daemon-set": (
        {"affinity": required({"matchFields": named("m")})},
        add(f"{TERMS}/0/matchFields", named("n")),
        "only additions are allowed",
    ),
}


@pytest.mark.parametrize("case", PINS)
async def test_a_pin_adds_to_what_the_user_has_and_changes_nothing_of_it(kube: Cluster, pods: str, case: str) -> None:
    """Each form of the pin that Sluice writes is accepted while the pod is gated; what a user required stays."""
    spec, operation, why = PINS[case]
    await kube.create(pods, pod(**spec))
    reply = await kube.patch(f"{pods}/p", operation if isinstance(operation, list) else [operation])
    assert reply.code == (200 if why is None else 422), reply
    assert (why or "") in reply.message


async def test_a_wrong_pin_stays_wrong_after_opening(kube: Cluster, pods: str) -> None:
    """After the gate nothing of it can be changed: such a pod can only be deleted."""
    await kube.create(pods, pod(annotations=ASKED, nodeSelector={"sluice-test": "nowhere"}))
    assert (await kube.patch(f"{pods}/p", ONLY_OURS)).code == 200
    for operation in (add("/spec/nodeSelector/a", "b"), add("/spec/affinity", pinned("n"))):
        assert (await kube.patch(f"{pods}/p", [operation])).code == 422


# -- other kinds of patch ---------------------------------------------------------------------------------------------


async def test_a_strategic_merge_for_another_uid_says_so(kube: Cluster, pods: str) -> None:
    """A recreated pod is distinct from other refusals."""
    await kube.create(pods, pod())
    reply = await kube.patch(f"{pods}/p", {"metadata": {"uid": "another"}})
    reply.refused(422, "Invalid", "metadata.uid", "field is immutable")
