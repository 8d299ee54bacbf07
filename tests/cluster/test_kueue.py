"""Kueue, as it is shipped, admits jobs and pods before Sluice places them: neither waits for the other's gate."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cluster import kueue, remains
from cluster.gpu_pods import fill, holders, is_ready, on, until_held_by, until_pods, until_ready, until_waiting
from cluster.harness.cluster import Cluster
from cluster.objects import (
    GATE,
    PROFILE,
    Json,
    apply,
    devices,
    listed,
    pod,
    read,
    template,
    wait_for,
    wait_for_no_slice,
)
from cluster.waiting import Unmet, until

ONE = "nvidia.com/mig-1g.5gb"
QUEUED = {kueue.LABEL: kueue.QUEUE}
PRINTS = "echo $NVIDIA_VISIBLE_DEVICES"


@pytest.fixture(scope="module")
def admitting(installed: Cluster) -> Iterator[Cluster]:
    """The cluster with Sluice and Kueue; nothing of Kueue is left in it."""
    before = remains.objects(installed)
    try:
        kueue.install(installed)
        yield installed
    finally:
        kueue.remove(installed)

    def look() -> bool | Unmet:
        came = [each for each in remains.changes(before, remains.objects(installed)) if each.startswith("came: ")]
        return Unmet(came) if came else True

    until("nothing is left of Kueue", look)


@pytest.fixture
def queue(admitting: Cluster, given_back: None, namespace: str) -> Iterator[str]:
    """A namespace with a LocalQueue: one small slice by NVIDIA's resource, two pods; closed with all that is in it."""
    del given_back
    kueue.open_queue(admitting, namespace, {"cpu": "4", "pods": "2", ONE: "1"})
    try:
        yield namespace
    finally:
        kueue.close_queue(admitting, namespace)


def test_a_job_has_no_pod_until_kueue_admits_it_and_then_a_slice(admitting: Cluster, queue: str) -> None:
    """Kueue counts NVIDIA's resources in a Job's template; what it has not admitted has neither pod nor slice."""
    kueue.hold(admitting, queue, is_held=True)
    apply(admitting, queue, _job("first", limits={ONE: "1"}))
    kueue.until_over_quota(admitting, queue, "first")
    assert not listed(admitting, queue)
    assert not holders(admitting, queue)
    kueue.hold(admitting, queue, is_held=False)
    kueue.until_admitted(admitting, queue, "first")
    _until_runs(admitting, queue, "first")
    assert [each.startswith("MIG-") for each in devices(admitting, queue).values()] == [True]
    assert kueue.used(admitting, queue) == {"pods": "1", ONE: "1"}
    apply(admitting, queue, _job("second", limits={ONE: "1"}, script=PRINTS))
    assert ONE in kueue.until_over_quota(admitting, queue, "second")
    assert not listed(admitting, queue, "pods", "--selector=job-name=second")
    until_held_by(admitting, queue, _names(admitting, queue))
    admitting.kubectl(f"--namespace={queue}", "delete", "job", "first", "--timeout=120s", timeout_s=130)
    wait_for(admitting, queue, "condition=Complete", "job/second")
    assert admitting.kubectl(f"--namespace={queue}", "logs", "job/second").startswith("MIG-")
    until("Kueue has the quota back", lambda: not kueue.used(admitting, queue))
    wait_for_no_slice(admitting)


def test_a_job_that_kueue_stops_gives_its_slice_back_and_gets_one_again(admitting: Cluster, queue: str) -> None:
    """As when Kueue preempts it: a suspended job has no pod."""
    apply(admitting, queue, _job("stopped", limits={ONE: "1"}))
    _until_runs(admitting, queue, "stopped")
    before = _names(admitting, queue)
    _activate(admitting, queue, "stopped", is_active=False)
    until("the job has no pod", lambda: not listed(admitting, queue))
    wait_for_no_slice(admitting)
    _activate(admitting, queue, "stopped", is_active=True)
    _until_runs(admitting, queue, "stopped")
    assert not before & _names(admitting, queue)
    assert len(devices(admitting, queue)) == 1


def test_a_pod_over_quota_has_both_gates_and_no_slice(admitting: Cluster, queue: str) -> None:
    """Its GPU resources are gone before Kueue counts, so that Kueue counts it as a pod."""
    names = ["one", "two"]
    apply(admitting, queue, *(pod(name, limits={ONE: "1"}, labels=QUEUED) for name in names))
    until_ready(admitting, queue, names)
    assert kueue.used(admitting, queue) == {"pods": "2"}
    apply(admitting, queue, pod("three", labels=QUEUED))
    assert until_waiting(admitting, queue, ["three"])["three"].startswith("OtherGates")
    assert "pods" in kueue.until_over_quota(admitting, queue, "three")
    assert _gates(admitting, queue, "three") >= {GATE, kueue.GATE}
    until_held_by(admitting, queue, names)
    admitting.kubectl(f"--namespace={queue}", "delete", "pod", "one", "--timeout=120s", timeout_s=130)
    until_ready(admitting, queue, ["two", "three"])
    until_held_by(admitting, queue, ["two", "three"])
    assert kueue.used(admitting, queue) == {"pods": "2"}


def test_an_admitted_pod_waits_for_its_slice_alone(admitting: Cluster, queue: str) -> None:
    """Kueue's gate opens on a full fleet, its quota is taken, and ours opens when there is room."""
    workers = [node.name for node in admitting.workers]
    fillers = [each for name in workers for each in fill(name, [f"filler-{name}"])]
    apply(admitting, queue, *fillers)
    until_ready(admitting, queue, [each["metadata"]["name"] for each in fillers])
    apply(admitting, queue, pod("late", labels=QUEUED))
    kueue.until_admitted(admitting, queue, "late")
    until_pods(admitting, queue, "only Sluice's gate is left", lambda _: _gates(admitting, queue, "late") == {GATE})
    until("it says what it waits for", lambda: "OtherGates" not in until_waiting(admitting, queue, ["late"])["late"])
    admitting.kubectl(f"--namespace={queue}", "delete", "pod", f"filler-{workers[0]}", "--timeout=120s", timeout_s=130)
    until_ready(admitting, queue, ["late"])


def test_a_group_is_admitted_and_placed_as_a_whole(admitting: Cluster, queue: str) -> None:
    """As docs/groups.md shows it: Kueue's pod group and ours are of the same size."""
    names = ["rank-0", "rank-1"]
    kueue.hold(admitting, queue, is_held=True)
    apply(admitting, queue, *(_member(name, "trainer-42", 2) for name in names))
    assert all(why.startswith("OtherGates") for why in until_waiting(admitting, queue, names).values())
    assert not holders(admitting, queue)
    kueue.hold(admitting, queue, is_held=False)
    until_ready(admitting, queue, names)
    until_held_by(admitting, queue, names)


def test_the_slice_is_on_a_node_of_the_flavor_that_kueue_chose(admitting: Cluster, queue: str) -> None:
    """Kueue writes the flavor's labels into the pod when it opens its gate: Sluice reads the pod after that."""
    chosen = admitting.workers[-1].name
    kueue.close_queue(admitting, queue)
    kueue.open_queue(admitting, queue, {"pods": "4"}, node_labels=on(chosen))
    apply(admitting, queue, _job("spread", annotations=PROFILE, parallelism=2), pod("alone", labels=QUEUED))
    found = until_pods(
        admitting, queue, "three pods run", lambda found: len(list(filter(is_ready, found.values()))) == 3
    )
    assert {each["spec"]["nodeName"] for each in found.values()} == {chosen}
    assert len(devices(admitting, queue)) == 3
    assert kueue.used(admitting, queue) == {"pods": "3"}


def test_kueue_admits_no_gpu_word_that_its_queue_does_not_cover(admitting: Cluster, queue: str) -> None:
    """In a Job's template, as docs/groups.md says; an annotation is none."""
    apply(admitting, queue, _job("unknown", limits={"nvidia.com/gpu": "1"}))
    assert "nvidia.com/gpu" in kueue.until_over_quota(admitting, queue, "unknown")
    assert not listed(admitting, queue)


def _job(name: str, *, parallelism: int = 1, **options: Any) -> Json:
    body = template(restartPolicy="Never", **options)
    metadata = {"name": name, "labels": QUEUED}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {"parallelism": parallelism, "completions": parallelism, "backoffLimit": 0, "template": body},
    }


def _until_runs(cluster: Cluster, namespace: str, job: str) -> None:
    until_pods(
        cluster,
        namespace,
        f"a pod of {job} runs",
        lambda found: any(name.startswith(f"{job}-") and is_ready(each) for name, each in found.items()),
    )


def _member(name: str, group: str, size: int) -> Json:
    annotations = {
        **PROFILE,
        "sluice.dev/group": group,
        "sluice.dev/group-size": str(size),
        "kueue.x-k8s.io/pod-group-total-count": str(size),
    }
    return pod(name, annotations=annotations, labels={**QUEUED, "kueue.x-k8s.io/pod-group-name": group})


def _gates(cluster: Cluster, namespace: str, name: str) -> set[str]:
    spec = read(cluster, f"--namespace={namespace}", "pod", name)["spec"]
    return {each["name"] for each in spec.get("schedulingGates", [])}


def _names(cluster: Cluster, namespace: str) -> set[str]:
    return {each["metadata"]["name"] for each in listed(cluster, namespace)}


def _activate(cluster: Cluster, namespace: str, job: str, *, is_active: bool) -> None:
    name = kueue.workload(cluster, namespace, job)["metadata"]["name"]
    patch = json.dumps({"spec": {"active": is_active}})
    cluster.kubectl(f"--namespace={namespace}", "patch", "workload", name, "--type=merge", f"--patch={patch}")
