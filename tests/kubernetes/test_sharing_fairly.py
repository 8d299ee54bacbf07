"""Jobs, preemption, quotas and drains as `kubectl describe` shows them: real parts, two nodes of two fake A100."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from factories.cluster.described_pods import Described, Said, described_in
from factories.cluster.kubernetes import Cluster, Json, remove, test
from factories.cluster.scenes import Scene, distinct, user_pod

from sluice.contracts.messages import AllocationRequested
from sluice_console.core.fleet.pods import pods_document

pytestmark = pytest.mark.slow
NODES = ("gpu-1", "gpu-2")
SYSTEM = {"watcher": {"EVICT_RETRY_S": "0.5"}, "own_nodes": True}
"""What is evicted is tried again often: a cluster's pause is ten seconds."""
GPUS = 4
WHOLE = {"sluice.dev/profile": "7g.40gb"}
KUEUE = "kueue.x-k8s.io/admission"


class Reader:
    """A person with kubectl, who reads the first message about a pod: newer ones come after seconds, or a minute."""

    def __init__(self, home: Path) -> None:
        """`home` is theirs."""
        self.home = home

    async def sees(self, scene: Scene, name: str) -> Described:
        return (await described_in(scene.cluster, self.home, scene.namespace))[name]

    async def is_told(self, scene: Scene, name: str, *words: str) -> Said:
        """Wait until a pod's condition contains this text; the Event that `kubectl describe` shows then."""

        async def look() -> str:
            said = (await scene.condition(name)).get("message", "")
            return said if all(word in said for word in words) else ""

        message = await scene.until(look, f"{words} at {name}")
        await scene.until(lambda: _has_note(scene, name, message, whole=True), f"an Event of {message}")
        seen = await self.sees(scene, name)
        assert seen.conditions["sluice.dev/SliceReady"] == "False"
        (said,) = [each for each in seen.events if each.note == message]
        return said


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


def member(name: str, job: str, size: int, **spec: object) -> Json:
    """A pod of a job; each needs a GPU of its own."""
    annotations = {**WHOLE, "sluice.dev/group": job, "sluice.dev/group-size": str(size)}
    return user_pod(name, annotations=annotations, **spec)


async def _has_note(scene: Scene, name: str, words: str, *, whole: bool = False) -> bool:
    return any(words == each if whole else words in each for each in await scene.notes(name))


async def _why_evicted(scene: Scene, name: str) -> list[str]:
    """Events are for people: they are written beside the eviction, not before it."""
    return [note for note in await scene.notes(name) if note.startswith("evicting the pod")]


def _asks(scene: Scene) -> list[str]:
    asked = [message for _, message in scene.live.fleet_state.of("request", AllocationRequested)]
    return sorted(each.name for each in asked if each.namespace == scene.namespace)


def _booked(scene: Scene) -> list[str]:
    return sorted(each.name for _, each in scene.live.fleet_state.bookings() if each.namespace == scene.namespace)


# -- jobs -----------------------------------------------------------------------------------------------------------


async def test_the_pods_of_a_job_start_together_or_hold_nothing(scene: Scene, reader: Reader) -> None:
    """Three of four workers would hold three GPUs and compute nothing, and no other pod could use them."""
    for number in range(3):
        await scene.apply(member(f"first-{number}", "first", 4))
    said = await reader.is_told(scene, "first-2", "3 of 4 pods")
    assert said == Said(
        "Normal",
        "WaitsForSlice",
        "3 of 4 pods of group first have asked. "
        "It starts when as many pods have asked as sluice.dev/group-size says. [GroupIncomplete]",
    )
    assert _booked(scene) == []
    await scene.apply(member("first-3", "first", 4))
    pods = await scene.started(4)
    assert distinct(uuid for each in pods.values() for uuid in scene.devices(each)) == GPUS
    for number in range(2):
        await scene.apply(member(f"second-{number}", "second", 2))
    said = await reader.is_told(scene, "second-0", "0 of 2 pods of group second have a place")
    assert said.note.endswith("[GroupNotFit]"), said
    await scene.delete("first-0")
    await scene.until(lambda: "first-0" not in _booked(scene), "one place to be free")
    assert not [name for name in _booked(scene) if name.startswith("second")], "half of a job has a place"
    await scene.delete("first-1")
    pods = await scene.started(4)
    assert sorted(pods) == ["first-2", "first-3", "second-0", "second-1"]
    await scene.delete("first-2")
    await scene.apply(member("second-2", "second", 2))  # a Deployment's update brings one more before one goes
    pods = await scene.started(4)
    assert sorted(pods) == ["first-3", "second-0", "second-1", "second-2"]


async def test_a_job_that_can_never_fit_says_so(scene: Scene, reader: Reader) -> None:
    """Its owner would wait forever beside an empty fleet."""
    for number in range(GPUS + 1):
        await scene.apply(member(f"worker-{number}", "huge", GPUS + 1))
    said = await reader.is_told(scene, "worker-0", "empty fleet")
    assert said.note == (
        "4 of 5 pods of group huge have a place; the 5th (worker-4): 4 x NVIDIA A100-SXM4-40GB: no free place of "
        "that size; even an empty fleet could not hold it: it takes 5 GPUs at least, and 4 could serve it. "
        "It starts when all pods of the group fit at once; fewer or smaller ones may start now. [GroupNotFit]"
    )
    assert _booked(scene) == []


async def test_nobody_of_a_job_asks_before_kueue_has_let_it_in(scene: Scene, reader: Reader) -> None:
    """The slice of a pod that Kueue holds back could be what a pod needs that it has let in: both would wait."""
    names = ["worker-0", "worker-1"]
    for name in names:
        await scene.apply(member(name, "queued", 2, schedulingGates=[{"name": KUEUE}]))
    said = await reader.is_told(scene, "worker-0", KUEUE)
    assert said.note == f"it waits for other scheduling gates before it requests a slice: {KUEUE}"
    assert _asks(scene) == []
    await _let_in(scene, "worker-0")
    await scene.until(lambda: "1 of 2 pods of group queued have asked" in _answer(scene, "worker-0"), "one to ask")
    assert (_asks(scene), _booked(scene)) == (["worker-0"], [])
    await _let_in(scene, "worker-1")
    pods = await scene.started(2)
    for name in names:
        await scene.is_on_its_slice(pods[name])


def _answer(scene: Scene, name: str) -> str:
    listed = pods_document(scene.live.fleet_state).pods
    return next((each.message for each in listed if (each.namespace, each.name) == (scene.namespace, name)), "")


async def _let_in(scene: Scene, name: str) -> None:
    opened = [test("/spec/schedulingGates/0/name", KUEUE), remove("/spec/schedulingGates/0")]
    assert (await scene.cluster.patch(f"{scene.path}/{name}", opened)).code == 200


# -- who goes for whom ----------------------------------------------------------------------------------------------


async def test_a_budget_holds_up_an_eviction_and_then_lets_it_pass(scene: Scene, reader: Reader) -> None:
    """A service waits no longer than its owner's own rules say, and both sides can read why."""
    await scene.deploy("batch", GPUS, {**WHOLE, "sluice.dev/preemptible": "true"})
    await scene.started(GPUS)
    budget = f"/apis/policy/v1/namespaces/{scene.namespace}/poddisruptionbudgets"
    spec = {"minAvailable": GPUS, "selector": {"matchLabels": {"app": "batch"}}}
    await scene.cluster.create(budget, {"metadata": {"name": "batch"}, "spec": spec})
    await scene.apply(user_pod("service", annotations={**WHOLE, "sluice.dev/priority": "100"}))
    said = await reader.is_told(scene, "service", "to be evicted for it")
    victim = said.note.partition(f"{scene.namespace}/")[2].partition(" ")[0]
    node = said.note.partition("its place on ")[2].partition(" ")[0]
    held_up = " (cannot be evicted: Cannot evict pod as it would violate the pod's disruption budget.)"
    assert said.note.replace(held_up, "") == (  # the budget may have held it up before the first reason came
        f"its place on {node} is reserved and waits for {scene.namespace}/{victim} to be evicted for it. "
        "It starts when the pods that still hold the place have left it. [PlaceBeingFreed]"
    )
    await scene.until(lambda: scene.is_told("service", victim + held_up), "the budget as the service's reason")
    blocked = "cannot evict the pod now, retrying: Cannot evict pod as it would violate the pod's disruption"
    await scene.until(lambda: _has_note(scene, victim, blocked), "the budget to hold it up")
    await scene.until(lambda: _why_evicted(scene, victim), "an Event that says why")
    (evicting,) = (await reader.sees(scene, victim)).notes("Evicting")
    assert evicting == f"evicting the pod: its place is needed for {scene.namespace}/service"
    assert len(await scene.pods()) == GPUS + 1, "no pod has gone"
    assert (await scene.cluster.delete(f"{budget}/batch")).code == 200
    await scene.until(lambda: _is_placed(scene, "service"), "the service to have its place")
    pods = await scene.started(GPUS)
    assert ((await scene.is_on_its_slice(pods["service"])).node, victim in pods) == (node, False)
    (recreated,) = [name for name in await scene.pods() if name not in pods]
    said = await reader.is_told(scene, recreated, "no free place")
    assert said.note.endswith("[GpuLayoutFull, elsewhere CardMigTopologyInfeasible]"), said


@pytest.fixture
async def classes(server: Cluster) -> AsyncIterator[tuple[str, str]]:
    """A PriorityClass that preempts, and one of the same value that never does. They are of the whole cluster."""
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    said = {"fair-urgent": "PreemptLowerPriority", "fair-patient": "Never"}
    async with server.opened() as opened:
        for name, policy in said.items():
            body = {"metadata": {"name": name}, "value": 1_000_000, "preemptionPolicy": policy}
            await opened.create(path, body)
    yield "fair-urgent", "fair-patient"
    async with server.opened() as opened:
        for name in said:
            await opened.delete(f"{path}/{name}")


async def test_a_priority_class_counts_and_one_that_never_preempts_only_waits(
    classes: tuple[str, str], scene: Scene, reader: Reader
) -> None:
    """What clusters govern urgency by: production would wait behind experiments, or evict whom it promised to spare."""
    urgent, patient = classes
    await scene.deploy("batch", GPUS, {**WHOLE, "sluice.dev/preemptible": "true"})
    await scene.started(GPUS)
    await scene.apply(user_pod("patient", annotations=WHOLE, priorityClassName=patient))
    await reader.is_told(scene, "patient", "no free place")
    assert len(await scene.pods()) == GPUS + 1, "no pod has gone"
    await scene.apply(user_pod("urgent", annotations=WHOLE, priorityClassName=urgent))
    await scene.until(lambda: _is_placed(scene, "urgent"), "the urgent one to have a place")
    pods = await scene.started(GPUS)
    await scene.is_on_its_slice(pods["urgent"])
    assert "patient" not in pods


async def test_who_is_over_the_quota_of_its_namespace_reads_the_numbers(scene: Scene, reader: Reader) -> None:
    """A free GPU beside a waiting pod looks like a fault."""
    scene.system.done("quota", "set", scene.namespace, "--gpus", "1")
    await scene.apply(user_pod("one", annotations=WHOLE))
    await scene.started(1)
    await scene.apply(user_pod("two", annotations=WHOLE))
    said = await reader.is_told(scene, "two", "namespace")
    assert said == Said(
        "Normal",
        "WaitsForSlice",
        f"namespace {scene.namespace} may have 1 device and has 1; this one asks for 1, and none is left. "
        "It starts when pods of its namespace end, or when its quota is raised (sluice quota); asking for less "
        "helps. [QuotaExceeded, elsewhere ResourceQuotaNotFit]",
    )
    scene.system.done("quota", "set", scene.namespace, "--gpus", "2")
    await scene.started(2)


async def test_a_drained_node_is_left_and_who_insists_on_it_reads_why(scene: Scene, reader: Reader) -> None:
    """Otherwise the pod waits for a node that an operator has open on a table."""
    await scene.deploy("train", 1, WHOLE)
    ((name, pod),) = (await scene.started(1)).items()
    node = pod["spec"]["nodeName"]
    scene.system.done("drain", node, "--yes", "--why", "new fans")
    await scene.until(lambda: scene.is_gone(name), "the pod to be evicted and recreated")
    notes = await scene.until(lambda: _why_evicted(scene, name), "an Event that says why")
    assert notes == [f"evicting the pod: {node} is drained (new fans)"]
    ((_, moved),) = (await scene.started(1)).items()
    assert moved["spec"]["nodeName"] != node
    shown = await scene.until(lambda: _nodes_once_idle(scene, node), f"{node} to be shown as idle")
    assert (shown[node]["state"], shown[node]["why"], shown[node]["pods"]) == ("draining", "new fans", 0)
    assert (shown[node]["idle"], bool(shown[node]["idle_since"])) == (True, True)
    assert (shown[moved["spec"]["nodeName"]]["state"], shown[moved["spec"]["nodeName"]]["pods"]) == ("open", 1)
    await scene.apply(user_pod("insists", annotations=WHOLE, nodeSelector={"kubernetes.io/hostname": node}))
    said = await reader.is_told(scene, "insists", "new fans")
    assert said.note == (
        f"2 x NVIDIA A100-SXM4-40GB (kubernetes.io/hostname={node}): cordoned; 1 node (kubernetes.io/hostname="
        f"{moved['spec']['nodeName']}): not selected by the pod; {node} is cordoned (new fans). "
        "It starts when the cordon is lifted, or elsewhere when there is room. "
        "[NodeCordoned, elsewhere CardCordoned]"
    )
    scene.system.done("uncordon", node)
    assert (await scene.started(2))["insists"]["spec"]["nodeName"] == node


def _nodes_once_idle(scene: Scene, node: str) -> dict[str, Json]:
    """What `sluice nodes` shows, by name; empty while a pod is on `node`: its agent takes slices back after pods."""
    shown = {each["node"]: each for each in json.loads(scene.system.done("nodes", "--json"))["nodes"]}
    return shown if shown[node]["idle"] else {}


async def _is_placed(scene: Scene, name: str) -> bool:
    return bool((await scene.pods())[name]["spec"].get("nodeName"))
