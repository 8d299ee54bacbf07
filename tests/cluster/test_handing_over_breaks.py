"""What breaks while the kubelet takes or gives back devices by a ResourceClaim costs no pod and no device."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from cluster import breaking, gpu_pods, handed_over, judging
from cluster.gpu_pods import Json, create, delete, is_granted, is_ready, pod, pods, until_pods, until_ready
from cluster.harness.cluster import Cluster
from cluster.waiting import Unmet, until

WORKER = "worker-1"
HERE = {"nodeSelector": gpu_pods.on(WORKER)}
SMALL = {"sluice.dev/profile": "1g.5gb"}
AGENT = ("--namespace=sluice-nodes", "daemonset/sluice-node-agent")
FINALIZER = "resource.kubernetes.io/delete-protection"
pytestmark = pytest.mark.parametrize("namespace", ["dra"], indirect=True)


@pytest.fixture(autouse=True)
def left_whole(installed: Cluster, handed_back: None, namespace: str) -> Iterator[None]:
    """Nothing that a test broke stays so."""
    yield
    delete(installed, namespace, pods(installed, namespace))
    gpu_pods.until_gone(installed, namespace)
    breaking.until_whole(installed)


def test_pods_start_and_end_after_their_nodes_agent_was_away(installed: Cluster, namespace: str) -> None:
    """Its kubelet's calls fail meanwhile: what comes waits, what ends waits, what runs runs on; then all go on."""
    create(installed, namespace, [pod(name, SMALL, **HERE) for name in ("stays", "ends")])
    before = until_ready(installed, namespace, ["stays", "ends"])
    with without_agent(installed):
        delete(installed, namespace, ["ends"])
        create(installed, namespace, [pod("comes", SMALL, **HERE)])
        until(
            "no process of the deleted pod is left",
            lambda: not any(before["ends"]["metadata"]["uid"] in each for each in judging.holders(installed).values()),
        )
        gpu_pods.until_waiting(installed, namespace, ["comes"])
        assert "ends" in pods(installed, namespace), "its claim is not given back: no agent answers"
    found = until_ready(installed, namespace, ["stays", "comes"])
    until_pods(installed, namespace, "the deleted pod is gone", lambda found: "ends" not in found)
    assert _started(found["stays"]) == _started(before["stays"])
    judging.check(installed)


@pytest.mark.parametrize("ends", ["", "deleted", "deleted by force"])
def test_a_call_for_devices_that_hangs_is_survived(installed: Cluster, namespace: str, ends: str) -> None:
    """The agent hangs while its kubelet asks for a pod's devices: the pod starts later, or goes, if it was deleted."""
    with asked_of_a_hanging_agent(installed, namespace, "asks"):
        if ends:
            delete(installed, namespace, ["asks"], *(gpu_pods.FORCED if ends == "deleted by force" else ()))
    if not ends:
        until_ready(installed, namespace, ["asks"])
        return
    gpu_pods.until_gone(installed, namespace)
    gpu_pods.until_returned(installed, namespace)


def test_pods_start_though_the_api_server_was_killed_when_their_claims_were_written(
    installed: Cluster, namespace: str
) -> None:
    """Allocations that landed without an answer, and those that did not land, end in one allocation each."""
    names = [f"pod-{number}" for number in range(6)]
    for round_, name in enumerate(("created", "allocated")):
        these = [f"{each}-{round_}" for each in names]
        create(installed, namespace, [pod(each, SMALL) for each in these])
        until(f"a claim is {name}", lambda is_enough=round_: _claims(installed, namespace, allocated=bool(is_enough)))
        breaking.kill_api_server(installed)
        breaking.start_api_server(installed)
        until_ready(installed, namespace, these)
        judging.check(installed)
        delete(installed, namespace, these)
        gpu_pods.until_gone(installed, namespace)


def test_a_claim_that_is_deleted_by_hand_costs_no_pod(installed: Cluster, namespace: str) -> None:
    """That of a waiting pod is made again; that of a running pod stays until the pod has ended."""
    create(installed, namespace, gpu_pods.fill(WORKER))
    running = until_ready(installed, namespace, ["filler"])["filler"]
    create(installed, namespace, [pod("waits", SMALL, **HERE)])
    gpu_pods.until_waiting(installed, namespace, ["waits"])
    waiting = pods(installed, namespace)["waits"]
    first, held = (_claim(installed, each) for each in (waiting, running))
    names = [each["metadata"]["name"] for each in (first, held)]
    installed.kubectl(f"--namespace={namespace}", "delete", "resourceclaims", *names, "--wait=false")

    def made_again() -> Unmet | bool:
        found = handed_over.claim_of(installed, waiting)
        is_other = found is not None and found["metadata"]["uid"] != first["metadata"]["uid"]
        return is_other or Unmet(found and found["metadata"])

    until("the waiting pod has another claim", made_again)
    kept = _claim(installed, running)
    assert kept["metadata"]["uid"] == held["metadata"]["uid"]
    assert kept["metadata"]["deletionTimestamp"]
    assert FINALIZER in kept["metadata"]["finalizers"]
    found = pods(installed, namespace)
    assert is_ready(found["filler"])
    assert not is_granted(found["waits"])
    delete(installed, namespace, ["filler"])
    until_ready(installed, namespace, ["waits"])


def test_a_pod_starts_again_though_all_cdi_files_were_removed(installed: Cluster, namespace: str) -> None:
    """By a mistake, with their folder and without: running containers need none, and the agent writes them again."""
    create(installed, namespace, [pod("again", SMALL, **{**HERE, "restartPolicy": "Always"})])
    for removed in (f"{handed_over.FOLDER}/*", handed_over.FOLDER):
        before = until_ready(installed, namespace, ["again"])["again"]
        installed.node(WORKER).box.run("sh", "-c", f"rm -r {removed}")
        assert breaking.kill_processes(before)
        until(f"it runs again after {removed} was removed", lambda old=before: _runs_again(installed, old))
    judging.check(installed)


@contextmanager
def without_agent(cluster: Cluster) -> Iterator[None]:
    """The pod of WORKER's agent is away; the other node's stays as it is."""
    strategy = json.loads(cluster.kubectl("get", *AGENT, "--output=json"))["spec"]["updateStrategy"]
    elsewhere = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [WORKER]}
    terms = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [elsewhere]}]}
    }
    on_delete = {"type": "OnDelete", "rollingUpdate": None}
    _patch(cluster, {"updateStrategy": on_delete, "template": {"spec": {"affinity": {"nodeAffinity": terms}}}})
    try:
        until("the agent's pod is gone", lambda: not _is_there(cluster))
        yield
    finally:
        _patch(cluster, {"updateStrategy": strategy, "template": {"spec": {"affinity": None}}})
    until("the agent's pod is back", lambda: _is_there(cluster))


@contextmanager
def asked_of_a_hanging_agent(cluster: Cluster, namespace: str, name: str) -> Iterator[None]:
    """A pod that has its slice, and a kubelet that asks for its devices an agent that does not answer meanwhile."""
    cluster.control_plane.box.end("kube-scheduler")
    try:
        create(cluster, namespace, [pod(name, SMALL, **HERE)])
        until_pods(cluster, namespace, "its gate is open", lambda found: _is_open(found[name]))
        agent = _agents_processes(cluster)
        _signal(agent, signal.SIGSTOP)
    finally:
        cluster.control_plane.restart_controllers()
        cluster.save()
    try:
        until_pods(cluster, namespace, "its kubelet is at it", lambda found: _is_taken_up(found[name]))
        yield
    finally:
        _signal(agent, signal.SIGCONT)


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # a probe, which has ended
            os.kill(pid, number)


def _is_open(found: Json) -> bool:
    return not found["spec"].get("schedulingGates")


def _is_taken_up(found: Json) -> bool:
    return bool(found["status"].get("containerStatuses"))


def _agents_processes(cluster: Cluster) -> list[int]:
    (found,) = [each for each in breaking.pods_of(cluster, "node-agent") if each["spec"]["nodeName"] == WORKER]
    return breaking.processes_of(found)


def _is_there(cluster: Cluster) -> bool:
    selector = "--selector=app.kubernetes.io/component=node-agent"
    listed = json.loads(cluster.kubectl(AGENT[0], "get", "pods", selector, "--output=json"))["items"]
    return WORKER in [each["spec"].get("nodeName") for each in listed]


def _patch(cluster: Cluster, spec: Json) -> None:
    cluster.kubectl("patch", *AGENT, "--type=merge", f"--patch={json.dumps({'spec': spec})}")


def _claims(cluster: Cluster, namespace: str, *, allocated: bool) -> list[Json]:
    found = handed_over.claims(cluster, namespace)
    return [each for each in found if not allocated or each.get("status", {}).get("allocation")]


def _claim(cluster: Cluster, found: Json) -> Json:
    claim = handed_over.claim_of(cluster, found)
    assert claim is not None, found["metadata"]["name"]
    return claim


def _runs_again(cluster: Cluster, old: Json) -> Unmet | bool:
    found = pods(cluster, old["metadata"]["namespace"])[old["metadata"]["name"]]
    return (is_ready(found) and _started(found) != _started(old)) or Unmet(gpu_pods.seen(found))


def _started(found: Json) -> list[str]:
    return [each.get("containerID", "") for each in found["status"].get("containerStatuses") or []]
