"""ResourceClaims as Sluice writes them: made, allocated and reserved in one write, and let go by the controllers."""

from typing import Any

import pytest
from factories.cluster.claim_scene import roomy_node
from factories.cluster.kubernetes import JSON_PATCH, MERGE, Cluster, Json, Reply, add, named, pinned, pod, remove, test
from factories.cluster.server_versions import TIMED_SINCE, keeps_times, minor

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"
FINALIZER = "resource.kubernetes.io/delete-protection"
ONCE, ONCE_BEFORE = "field cannot be modified once set", "field is immutable"
"""In 1.37, and before."""
BINDING_SINCE = 36
"""The first minor version in which allocations take the right `resourceclaims/binding` (beta, on by default)."""
SPEC = {"devices": {"requests": [{"name": "main", "exactly": {"deviceClassName": "sluice.dev", "count": 1}}]}}
OF_POD = {"resourceClaims": [{"name": "sluice", "resourceClaimName": "c"}]}


@pytest.fixture
def claims(namespace: str) -> str:
    return CLAIMS.format(namespace)


def claim(*owners: Json, name: str = "c", spec: Json | None = None, finalizers: tuple[str, ...] = (FINALIZER,)) -> Json:
    about = {"name": name, "finalizers": list(finalizers), "ownerReferences": list(owners)}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": about, "spec": spec or SPEC}


def owner(of: Json) -> Json:
    about = of["metadata"]
    return {"apiVersion": "v1", "kind": "Pod", "name": about["name"], "uid": about["uid"], "controller": True}


def allocation(
    node: str = "nowhere", *, device: str = "0a1b-0", request: str = "main", when: str | None = "2026-01-02T03:04:05Z"
) -> Json:
    results = [{"request": request, "driver": "gpu.sluice.dev", "pool": node, "device": device}]
    found = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": named(node)}]}}
    return {**found, **({"allocationTimestamp": when} if when else {})}


async def stored(kube: Cluster, written: Json) -> Json:
    timed = await keeps_times(kube)
    return {key: value for key, value in written.items() if timed or key != "allocationTimestamp"}


async def needs_times(kube: Cluster) -> None:
    if not await keeps_times(kube):
        pytest.skip(f"this server drops the time of an allocation: kept since 1.{TIMED_SINCE}")


def consumer(name: str, uid: str) -> Json:
    return {"resource": "pods", "name": name, "uid": uid}


async def write(kube: Cluster, claims: str, of: Json, status: Json, *, token: str | None = None, **meta: str) -> Reply:
    """The status patch of the pod-watcher, guarded by UID and version."""
    about = {"uid": of["metadata"]["uid"], "resourceVersion": of["metadata"]["resourceVersion"], **meta}
    body = {"metadata": about, "status": status}
    return await kube.ask("PATCH", f"{claims}/{of['metadata']['name']}/status", body, kind=MERGE, token=token)


async def reserved(kube: Cluster, claims: str, pods: str, node: str = "nowhere", **of_pod: Any) -> tuple[Json, Reply]:
    """A claim that was made for a pod `p`; and the answer to the write that allocated it on a node, for that pod."""
    who = await kube.create(pods, pod(**OF_POD, **of_pod))
    found = await kube.create(claims, claim(owner(who)))
    status = {"allocation": allocation(node), "reservedFor": [consumer("p", who["metadata"]["uid"])]}
    return found, await write(kube, claims, found, status)


async def test_allocation_and_reservation_arrive_in_one_write(kube: Cluster, claims: str, pods: str) -> None:
    """A claim that is allocated and reserved for none may be taken back by the scheduler."""
    found, reply = await reserved(kube, claims, pods)
    assert reply.code == 200, reply
    users = [consumer("p", found["metadata"]["ownerReferences"][0]["uid"])]
    assert reply.body["status"] == {"allocation": await stored(kube, allocation()), "reservedFor": users}
    assert reply.body["metadata"]["finalizers"] == [FINALIZER]


async def test_a_new_claim_has_no_status_and_the_defaults_of_its_requests(kube: Cluster, claims: str) -> None:
    """A status in its body is dropped silently."""
    spec = {"devices": {"requests": [{"name": "main", "exactly": {"deviceClassName": "sluice.dev"}}]}}
    found = await kube.create(claims, {**claim(spec=spec), "status": {"allocation": allocation()}})
    (request,) = found["spec"]["devices"]["requests"]
    assert request["exactly"] == {"deviceClassName": "sluice.dev", "allocationMode": "ExactCount", "count": 1}
    assert found["status"] == {}


async def test_the_spec_of_a_claim_never_changes(kube: Cluster, claims: str) -> None:
    """Another request is another claim."""
    await kube.create(claims, claim())
    reply = await kube.patch(f"{claims}/c", [add("/spec/devices/requests/0/exactly/count", 2)], JSON_PATCH)
    reply.refused(422, "Invalid", "field is immutable")


async def test_a_status_write_changes_no_metadata(kube: Cluster, claims: str) -> None:
    """Why the finalizer is written apart, and before."""
    found = await kube.create(claims, claim(finalizers=()))
    body = {"metadata": {"finalizers": [FINALIZER], "labels": {"a": "b"}}, "status": {"allocation": allocation()}}
    reply = await kube.patch(f"{claims}/c/status", body, MERGE)
    protected = await kube.patch(
        f"{claims}/c", [test("/metadata/uid", found["metadata"]["uid"]), add("/metadata/finalizers", [FINALIZER])]
    )
    assert reply.code == 200
    assert not {"finalizers", "labels"} & reply.body["metadata"].keys()
    assert (protected.code, protected.body["metadata"]["finalizers"]) == (200, [FINALIZER])
    assert protected.body["status"]["allocation"] == await stored(kube, allocation())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        pytest.param({"allocation": allocation(device="0a1b-1")}, ONCE, id="another-device"),
        pytest.param({"allocation": allocation(when="2026-01-02T03:04:06Z")}, ONCE, id="another-time"),
        pytest.param({"allocation": None}, "may not be specified when `allocated` is not set", id="still-reserved"),
    ],
)
async def test_an_allocation_stays_as_it_is(kube: Cluster, claims: str, pods: str, change: Json, text: str) -> None:
    """After a write without an answer the next one reads first."""
    if change.get("allocation") == allocation(when="2026-01-02T03:04:06Z"):
        await needs_times(kube)
    found = (await reserved(kube, claims, pods))[1].body
    reply = await write(kube, claims, found, change)
    assert (reply.code, reply.reason) == (422, "Invalid"), reply
    assert text in reply.message.replace(ONCE_BEFORE, ONCE)


async def test_the_time_of_an_allocation_cannot_be_added_later(kube: Cluster, claims: str) -> None:
    """What the scheduler tries for a claim without one, again and again."""
    await needs_times(kube)
    found = await kube.create(claims, claim())
    found = (await write(kube, claims, found, {"allocation": allocation(when=None)})).body
    reply = await write(kube, claims, found, {"allocation": {"allocationTimestamp": "2026-01-02T03:04:05Z"}})
    assert reply.code == 422
    assert ONCE in reply.message.replace(ONCE_BEFORE, ONCE)


async def test_an_allocation_ends_with_its_reservations_in_one_write(kube: Cluster, claims: str, pods: str) -> None:
    """So a pod that declined its slice gets another device for the same claim."""
    found = (await reserved(kube, claims, pods))[1].body
    ended = await write(kube, claims, found, {"allocation": None, "reservedFor": None})
    again = await write(kube, claims, ended.body, {"allocation": allocation(device="0a1b-1")})
    assert (ended.code, ended.body["status"]) == (200, {})
    assert (again.code, again.body["status"]["allocation"]) == (200, await stored(kube, allocation(device="0a1b-1")))


SENSELESS = {
    "request": ({"allocation": allocation(request="other")}, "must be the name of a request in the claim"),
    "reserved": ({"reservedFor": [consumer("p", "u")]}, "may not be specified when `allocated` is not set"),
    "no-uid": ({"allocation": allocation(), "reservedFor": [{"resource": "pods", "name": "p"}]}, "Required value"),
    "device-name": ({"allocation": allocation(device="A_1")}, "Invalid value"),
}


@pytest.mark.parametrize("case", SENSELESS)
async def test_a_status_that_makes_no_sense_is_refused(kube: Cluster, claims: str, case: str) -> None:
    """Nothing of it is stored."""
    status, text = SENSELESS[case]
    reply = await write(kube, claims, await kube.create(claims, claim()), status)
    reply.refused(422, "Invalid", text)
    assert (await kube.get(f"{claims}/c")).body["status"] == {}


async def test_a_write_for_an_older_version_is_a_conflict(kube: Cluster, claims: str) -> None:
    """One that landed without an answer is found out by the next."""
    found = await kube.create(claims, claim())
    assert (await write(kube, claims, found, {"allocation": allocation()})).code == 200
    reply = await write(kube, claims, found, {"allocation": allocation()})
    reply.refused(409, "Conflict", "the object has been modified; ")


async def test_a_write_for_another_claim_of_the_name_is_refused(kube: Cluster, claims: str) -> None:
    """A claim that was deleted and made again is not allocated by a patch for the old one."""
    found = await kube.create(claims, claim())
    reply = await write(kube, claims, found, {"allocation": allocation()}, uid="another")
    assert reply.code in {409, 422}, reply
    assert (await kube.get(f"{claims}/c")).body["status"] == {}


async def test_nothing_compares_class_driver_and_slices(kube: Cluster, claims: str) -> None:
    """Claims of NVIDIA's class may be served by our driver, and slices need not be published."""
    spec = {"devices": {"requests": [{"name": "main", "exactly": {"deviceClassName": "no-such-class.example.com"}}]}}
    found = await kube.create(claims, claim(spec=spec))
    assert (await write(kube, claims, found, {"allocation": allocation()})).code == 200


STATUS_ONLY = [{"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"], "verbs": ["patch"]}]
SLICES = {"apiGroups": ["sluice.dev"], "resources": ["slices"], "verbs": ["bind"]}
"""What the policy `sluice-claims` asks for, where it is installed."""
BINDING = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/binding"], "verbs": ["patch"]}


async def test_an_allocation_takes_a_right_in_the_whole_cluster(kube: Cluster, namespace: str, claims: str) -> None:
    """A Role of the namespace does not give it; without it every pod waits with an allocated slice."""
    found = await kube.create(claims, claim())
    status = {"allocation": allocation()}
    within = await kube.account(namespace, "within", [*STATUS_ONLY, BINDING], [SLICES])
    everywhere = await kube.account(namespace, "everywhere", STATUS_ONLY, [BINDING, SLICES])
    denied = await write(kube, claims, found, status, token=within)
    if await minor(kube) < BINDING_SINCE:
        assert denied.code == 200, denied
        return
    allowed = await write(kube, claims, found, status, token=everywhere)
    denied.refused(422, "Invalid", 'requires resource="resourceclaims/binding", verb="patch" permission')
    assert allowed.code == 200, allowed


# -- pods and their claims --------------------------------------------------------------------------------------------


async def test_the_claims_of_a_pod_cannot_change(kube: Cluster, pods: str) -> None:
    """Why admission adds them: later is too late."""
    await kube.create(pods, pod())
    reply = await kube.patch(f"{pods}/p", [add("/spec/resourceClaims", OF_POD["resourceClaims"])])
    assert (reply.code, reply.reason) == (422, "Invalid")


async def test_a_container_names_only_claims_of_its_pod(kube: Cluster, pods: str) -> None:
    """What a webhook would get wrong by adding the one without the other."""
    body = pod()
    body["spec"]["containers"][0]["resources"] = {"claims": [{"name": "sluice", "request": "main"}]}
    reply = await kube.post(pods, body)
    reply.refused(
        422, "Invalid", 'Not found: "sluice": must be one of the names in pod.spec.resourceClaims which is empty'
    )


async def test_a_gated_pod_gets_claims_of_its_templates(kube: Cluster, namespace: str, pods: str, claims: str) -> None:
    """So they have UIDs before the pod asks for its slice."""
    template = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "t"}}
    await kube.create(claims.replace("resourceclaims", "resourceclaimtemplates"), {**template, "spec": {"spec": SPEC}})
    who = await kube.create(pods, pod(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "t"}]))
    found = await kube.until(f"{pods}/p", lambda reply: reply.body["status"].get("resourceClaimStatuses"))
    (status,) = found.body["status"]["resourceClaimStatuses"]
    generated = (await kube.get(f"{claims}/{status['resourceClaimName']}")).body
    assert status["name"] == "gpu"
    assert status["resourceClaimName"].startswith("p-gpu-")
    assert generated["metadata"]["annotations"] == {"resource.kubernetes.io/pod-claim-name": "gpu"}
    assert [each["uid"] for each in generated["metadata"]["ownerReferences"]] == [who["metadata"]["uid"]]
    assert "finalizers" not in generated["metadata"]


async def test_the_claim_of_a_deleted_pod_goes_with_it(kube: Cluster, pods: str, claims: str) -> None:
    """Reserved or not, nothing is left to clean up; the finalizer is taken off by the claim controller."""
    assert (await reserved(kube, claims, pods))[1].code == 200
    await kube.delete(f"{pods}/p")
    await kube.until(f"{claims}/c", 404)


async def test_an_unreserved_claim_goes_with_its_pod_too(kube: Cluster, pods: str, claims: str) -> None:
    """A pod may go before its slice is granted."""
    await kube.create(claims, claim(owner(await kube.create(pods, pod(**OF_POD)))))
    await kube.delete(f"{pods}/p")
    await kube.until(f"{claims}/c", 404)


async def test_a_users_own_claim_is_deallocated_only_with_the_finalizer(kube: Cluster, pods: str, claims: str) -> None:
    """Why the finalizer is written first: without it the claim stays allocated, and is swept."""
    uids = {}
    for name, finalizers in (("with", (FINALIZER,)), ("without", ())):
        who = await kube.create(pods, pod(name, resourceClaims=[{"name": "gpu", "resourceClaimName": name}]))
        uids[name] = who["metadata"]["uid"]
        found = await kube.create(claims, claim(name=name, finalizers=finalizers))
        status = {"allocation": allocation(device=f"{name}-0"), "reservedFor": [consumer(name, uids[name])]}
        assert (await write(kube, claims, found, status)).code == 200
    for name in uids:
        await kube.delete(f"{pods}/{name}")
    gone = lambda reply: not reply.body["status"].get("reservedFor")  # noqa: E731
    protected = await kube.until(f"{claims}/with", gone)
    bare = await kube.until(f"{claims}/without", gone)
    assert protected.body["status"] == {}
    assert bare.body["status"] == {"allocation": await stored(kube, allocation(device="without-0"))}


async def test_a_reserved_claim_that_is_deleted_stays_until_its_pod_goes(kube: Cluster, pods: str, claims: str) -> None:
    """A person who deletes it does not take the device from the pod; a reservation cannot be added any more."""
    found, reply = await reserved(kube, claims, pods)
    assert reply.code == 200
    mine = consumer("p", found["metadata"]["ownerReferences"][0]["uid"])
    dying = (await kube.delete(f"{claims}/c")).body
    more = await write(kube, claims, dying, {"reservedFor": [mine, consumer("q", "other")]})
    ended = await write(kube, claims, dying, {"allocation": None, "reservedFor": None})
    assert dying["metadata"]["deletionTimestamp"]
    assert (more.code, ended.code) == (422, 200)
    await kube.until(f"{claims}/c", 404)


async def test_a_pod_with_a_reserved_claim_is_scheduled_to_its_node(kube: Cluster, pods: str, claims: str) -> None:
    """The end of the flow: no scheduler allocates or writes anything, it only binds."""
    node = await roomy_node(kube)
    placing = {"affinity": pinned(node), "tolerations": [{"operator": "Exists"}]}
    _, written = await reserved(kube, claims, pods, node, **placing)
    assert (await kube.patch(f"{pods}/p", [remove("/spec/schedulingGates")])).code == 200
    placed = await kube.until(f"{pods}/p", lambda reply: reply.body["spec"].get("nodeName"))
    assert placed.body["spec"]["nodeName"] == node
    assert (await kube.get(f"{claims}/c")).body["status"] == written.body["status"]
