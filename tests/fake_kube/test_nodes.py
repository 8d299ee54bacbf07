"""The fake's scheduler and kubelets do what real ones were seen to do."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from factories.cluster.kubernetes import Cluster, Json, add, pinned, pod, remove
from fake_kube.server import FakeKube

from sluice.contracts.kube.names import ENV_TICKET, ENV_VISIBLE_DEVICES, granted, granted_field_path

PODS = "/api/v1/namespaces/default/pods"
DEVICES, TICKET = granted("main", "visible-devices"), granted("main", "ticket")


@pytest.fixture
def fake() -> Iterator[FakeKube]:
    """A server with one node, n1."""
    with FakeKube() as server:
        server.nodes.add("n1")
        yield server


@pytest.fixture
async def kube(fake: FakeKube, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(fake.kubeconfig(tmp_path / "config"), fake).opened() as opened:
        yield opened


def sliced(name: str = "p", **spec: object) -> Json:
    """A pod in the form that admission gives it."""
    body = pod(
        name,
        annotations={"sluice.dev/profile": "1g.5gb"},
        volumes=[{"name": "s", "csi": {"driver": "slice.sluice.dev"}}],
        **spec,
    )
    variables = ((ENV_VISIBLE_DEVICES, "visible-devices"), (ENV_TICKET, "ticket"))
    env = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": granted_field_path("main", key)}}}
        for name, key in variables
    ]
    mounts = [{"name": "s", "mountPath": "/run/sluice/slice", "subPathExpr": "$(SLUICE_TICKET)", "readOnly": True}]
    body["spec"]["containers"][0] |= {"env": env, "volumeMounts": mounts}
    return body


def opening(devices: str | None = "MIG-1", ticket: str | None = "t1") -> list[Json]:
    known = [(DEVICES, devices), (TICKET, ticket)]
    told = [add(f"/metadata/annotations/{key.replace('/', '~1')}", value) for key, value in known if value is not None]
    return [*told, add("/spec/affinity", pinned("n1")), remove("/spec/schedulingGates")]


async def phase(kube: Cluster, wanted: str, name: str = "p") -> Json:
    """The pod, once it is in this phase."""
    reply = await kube.until(
        lambda: kube.get(f"{PODS}/{name}"), lambda found: found.body.get("status", {}).get("phase") == wanted
    )
    return reply.body


async def waiting(kube: Cluster, reason: str) -> str:
    """Why the container waits, once it waits for this reason."""

    def state(body: Json) -> Json:
        statuses = body.get("status", {}).get("containerStatuses") or [{}]
        return statuses[0].get("state", {}).get("waiting") or {}

    reply = await kube.until(lambda: kube.get(f"{PODS}/p"), lambda found: state(found.body).get("reason") == reason)
    return str(state(reply.body).get("message", ""))


async def test_an_opened_pod_runs_with_what_its_annotations_say(kube: Cluster, fake: FakeKube) -> None:
    """Gate, patch, node, environment."""
    await kube.post(PODS, sliced())
    assert (await kube.patch(f"{PODS}/p", opening())).code == 200

    found = await phase(kube, "Running")

    assert found["spec"]["nodeName"] == "n1"
    assert fake.nodes.running[found["metadata"]["uid"]] == {"main": {ENV_VISIBLE_DEVICES: "MIG-1", ENV_TICKET: "t1"}}
    assert {each["type"]: each["status"] for each in found["status"]["conditions"]}["Ready"] == "True"


async def test_a_missing_ticket_holds_the_container_until_it_is_named(kube: Cluster) -> None:
    """The second gate: the annotation's patch itself wakes the kubelet."""
    await kube.post(PODS, sliced())
    await kube.patch(f"{PODS}/p", opening(ticket=None))

    assert await waiting(kube, "CreateContainerConfigError") == "missing value for SLUICE_TICKET"

    await kube.patch(f"{PODS}/p", [add(f"/metadata/annotations/{TICKET.replace('/', '~1')}", "t2")])
    await phase(kube, "Running")


async def test_a_ticket_that_is_not_there_holds_until_the_kubelet_looks_again(kube: Cluster, fake: FakeKube) -> None:
    """A directory made after the patch is found only at the next look."""
    there: set[str] = set()
    fake.nodes.tickets(lambda uid, path: path in there)
    await kube.post(PODS, sliced())
    await kube.patch(f"{PODS}/p", opening())

    assert (await waiting(kube, "CreateContainerConfigError")).startswith(
        "failed to create subPath directory for volumeMount"
    )

    there.add("t1")
    fake.nodes.poke()
    await phase(kube, "Running")


async def test_a_running_container_keeps_its_environment_until_it_starts_again(kube: Cluster, fake: FakeKube) -> None:
    """New values are read at a restart, not before."""
    await kube.post(PODS, sliced())
    await kube.patch(f"{PODS}/p", opening())
    uid = (await phase(kube, "Running"))["metadata"]["uid"]
    await kube.patch(f"{PODS}/p", [add(f"/metadata/annotations/{DEVICES.replace('/', '~1')}", "MIG-2")])
    kept = fake.nodes.running[uid]["main"][ENV_VISIBLE_DEVICES]

    fake.nodes.finish("default", "p", 3)
    await kube.until(lambda: kube.get(f"{PODS}/p"), lambda reply: fake.nodes.starts[uid, "main"] == 2)

    assert (kept, fake.nodes.running[uid]["main"][ENV_VISIBLE_DEVICES]) == ("MIG-1", "MIG-2")


async def watched(kube: Cluster, end: str = "DELETED") -> list[tuple[str, str, object, bool]]:
    """Type, phase, grace and whether something runs, of each event until the deletion."""
    version = (await kube.get(PODS)).body["metadata"]["resourceVersion"]
    async with kube.watch(PODS, resourceVersion=version) as stream:
        await kube.delete(f"{PODS}/p", {"gracePeriodSeconds": 0} if end == "forced" else None)
        events = await stream.until("DELETED")
    seen = []
    for event in events:
        status = event["object"]["status"]
        runs = any("running" in each["state"] for each in status.get("containerStatuses") or [])
        seen.append(
            (event["type"], status["phase"], event["object"]["metadata"].get("deletionGracePeriodSeconds"), runs)
        )
    return seen


async def test_a_graceful_end_is_told_before_the_object_goes(kube: Cluster) -> None:
    """Terminated, then DELETED: the status of that uid is the word to wait for."""
    await kube.post(PODS, pod(gates=()))
    await phase(kube, "Running")

    assert await watched(kube) == [
        ("MODIFIED", "Running", 30, True),
        ("MODIFIED", "Succeeded", 30, False),
        ("MODIFIED", "Succeeded", 0, False),
        ("DELETED", "Succeeded", 0, False),
    ]


async def test_a_forced_end_proves_nothing(kube: Cluster, fake: FakeKube) -> None:
    """DELETED while the status still says running, and the processes live on."""
    await kube.post(PODS, pod(gates=()))
    uid = (await phase(kube, "Running"))["metadata"]["uid"]
    fake.nodes.linger("default", "p")

    seen = await watched(kube, "forced")

    assert [each[0] for each in seen] == ["MODIFIED", "DELETED"]
    assert all(runs for *_, runs in seen)
    assert uid in fake.nodes.running
    fake.nodes.let_go("default", "p")
    assert uid not in fake.nodes.running


async def test_a_kubelet_that_is_down_leaves_the_pod_running_for_ever(kube: Cluster, fake: FakeKube) -> None:
    """Deleted and still there; on its return the kubelet ends it."""
    await kube.post(PODS, pod(gates=()))
    await phase(kube, "Running")
    fake.nodes.down("n1")

    await kube.delete(f"{PODS}/p")
    left = (await kube.get(f"{PODS}/p")).body
    fake.nodes.down("n1", on=False)

    assert (left["status"]["phase"], bool(left["metadata"]["deletionTimestamp"])) == ("Running", True)
    await kube.until(lambda: kube.get(f"{PODS}/p"), 404)


async def test_a_graceful_deletion_waits_for_the_volume(kube: Cluster, fake: FakeKube) -> None:
    """Terminated, but not gone, until the driver has let go."""
    await kube.post(PODS, sliced())
    await kube.patch(f"{PODS}/p", opening())
    uid = (await phase(kube, "Running"))["metadata"]["uid"]
    fake.nodes.volume_in_use(uid)

    await kube.delete(f"{PODS}/p")
    await phase(kube, "Succeeded")
    assert (await kube.get(f"{PODS}/p")).code == 200
    fake.nodes.volume_in_use(uid, on=False)

    await kube.until(lambda: kube.get(f"{PODS}/p"), 404)


@pytest.mark.parametrize(("code", "ended"), [(0, "Succeeded"), (137, "Failed")])
async def test_a_pod_that_ends_by_itself_stays_with_its_result(
    kube: Cluster, fake: FakeKube, code: int, ended: str
) -> None:
    """Its slice can go back although the object is still there."""
    await kube.post(PODS, pod(gates=(), restartPolicy="Never"))
    await phase(kube, "Running")

    fake.nodes.finish("default", "p", code)

    found = await phase(kube, ended)
    assert found["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == code


async def test_init_containers_end_and_sidecars_stay(kube: Cluster, fake: FakeKube) -> None:
    """A main container waits for its init containers, and runs beside native sidecars."""
    init = [{"name": "init", "image": "i:1"}, {"name": "side", "image": "i:1", "restartPolicy": "Always"}]
    await kube.post(PODS, pod(gates=(), initContainers=init))

    found = await phase(kube, "Running")

    states = [next(iter(each["state"])) for each in found["status"]["initContainerStatuses"]]
    assert states == ["terminated", "running"]
    assert set(fake.nodes.running[found["metadata"]["uid"]]) == {"side", "main"}


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"nodeSelector": {"kubernetes.io/hostname": "other"}}, "1 node(s) didn't match Pod's node affinity/selector"),
        ({"affinity": pinned("other")}, "1 node(s) didn't satisfy plugin(s) [NodeAffinity]"),
    ],
)
async def test_a_pin_to_another_node_waits_and_says_why(kube: Cluster, spec: Json, why: str) -> None:
    """Unschedulable, with an event: what the watchdog reads as a pin that failed."""
    await kube.post(PODS, pod(gates=(), **spec))

    def unschedulable(reply: object) -> bool:
        return "Unschedulable" in str(reply)

    found = await kube.until(lambda: kube.get(f"{PODS}/p"), unschedulable)
    events = await kube.get("/api/v1/namespaces/default/events", fieldSelector="involvedObject.name=p")

    assert found.body["status"]["conditions"][0]["message"] == f"0/1 nodes are available: {why}."
    assert [each["reason"] for each in events.items] == ["FailedScheduling"]


async def test_a_full_or_cordoned_node_takes_a_pod_when_it_can(kube: Cluster, fake: FakeKube) -> None:
    """CPU and cordon count; room that appears is used."""
    fake.nodes.cordon("n1")
    body = pod(gates=())
    body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "16"}}
    await kube.post(PODS, body)
    await kube.until(lambda: kube.get(f"{PODS}/p"), lambda reply: "1 node(s) were unschedulable" in str(reply.body))

    fake.nodes.cordon("n1", on=False)
    await phase(kube, "Running")
    await kube.post(PODS, {**body, "metadata": {"name": "second"}})
    await kube.until(lambda: kube.get(f"{PODS}/second"), lambda reply: "1 Insufficient cpu" in str(reply.body))

    await kube.delete(f"{PODS}/p")
    await phase(kube, "Running", "second")
