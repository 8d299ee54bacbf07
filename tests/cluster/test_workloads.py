"""What makes pods in a cluster makes pods with slices, and everything is given back when it goes."""

import json
import secrets
from collections.abc import Iterator

import pytest
from cluster.gpu_pods import SLEEPS
from cluster.harness.cluster import Cluster
from cluster.objects import (
    PROFILE,
    Json,
    apply,
    devices,
    free_volumes,
    has_status,
    is_gated,
    listed,
    read,
    template,
    wait_for,
    wait_for_no_slice,
)
from cluster.waiting import until

NOWHERE = {**PROFILE, "sluice.dev/gpu-model": "H100"}
"""A request that no node here can serve."""
SHOW = "echo $NVIDIA_VISIBLE_DEVICES"
KEEP = f"echo $NVIDIA_VISIBLE_DEVICES >> /data/devices; {SLEEPS}"


@pytest.fixture(scope="module")
def space(installed: Cluster) -> Iterator[str]:
    """A namespace in which jobs, a StatefulSet and a DaemonSet start at once. They print what a ticket names."""
    name = f"workloads-{secrets.token_hex(3)}"
    installed.kubectl("create", "namespace", name)
    installed.kubectl("label", "namespace", name, "sluice.dev/hand-over=tickets")
    try:
        yield name
    finally:
        volumes = [each["spec"]["volumeName"] for each in listed(installed, name, "persistentvolumeclaims")]
        installed.kubectl("delete", "namespace", name, "--timeout=120s", timeout_s=130)
        free_volumes(installed, volumes)
        wait_for_no_slice(installed)


@pytest.fixture(scope="module")
def started(installed: Cluster, space: str) -> str:
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    kept = _template("kept", script=KEEP)
    kept["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    parallel = _job("parallel", SHOW, completions=4, parallelism=2)
    at_times = {
        "schedule": "* * * * *",
        "concurrencyPolicy": "Forbid",
        "jobTemplate": {"spec": _job("nightly", SHOW)["spec"]},
    }
    apply(
        installed,
        space,
        parallel,
        _job("failing", f"{SHOW}; exit 3", backoffLimit=1),
        _job("late", SHOW, annotations=NOWHERE, activeDeadlineSeconds=5),
        {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly"}, "spec": at_times},
        _set("StatefulSet", "kept", kept, replicas=2, serviceName="kept", volumeClaimTemplates=[claim]),
        _set("DaemonSet", "each", _template("each")),
    )
    return space


def test_the_pods_of_a_parallel_job_run_and_give_back(installed: Cluster, started: str) -> None:
    """Two at a time, each with a slice of its own; a pod that has completed holds none."""
    wait_for(installed, started, "condition=Complete", "job/parallel", within_s=180)
    assert len(listed(installed, started, "pods", "--selector=job-name=parallel")) == 4
    printed = installed.kubectl(f"--namespace={started}", "logs", "--selector=job-name=parallel", "--tail=-1").split()
    assert len(printed) == 4
    assert all(device.startswith("MIG-") for device in printed)


def test_a_job_that_fails_is_tried_again_with_a_slice_each_time(installed: Cluster, started: str) -> None:
    """And has failed after its limit, as without Sluice."""
    wait_for(installed, started, "condition=Failed", "job/failing", within_s=180)
    pods = listed(installed, started, "pods", "--selector=job-name=failing")
    assert [each["status"]["phase"] for each in pods] == ["Failed", "Failed"]
    assert len(devices(installed, started, "--selector=job-name=failing")) == 2


def test_waiting_counts_for_the_deadline_of_a_job(installed: Cluster, started: str) -> None:
    """As operations.md says; its waiting pod is gone, and nothing is kept for it."""
    wait_for(installed, started, "condition=Failed", "job/late")
    failed = next(each for each in listed(installed, started, "jobs") if each["metadata"]["name"] == "late")
    reasons = [each["reason"] for each in failed["status"]["conditions"] if each["type"] == "Failed"]
    assert reasons == ["DeadlineExceeded"]
    assert not devices(installed, started, "--selector=job-name=late")
    until(
        "the waiting pod is gone",
        lambda: not [each for each in listed(installed, started, "pods", "--selector=job-name=late") if is_gated(each)],
    )


def test_a_cron_job_runs_with_a_slice(installed: Cluster, started: str) -> None:
    """Each minute a job of its own."""

    def completed() -> list[Json]:
        owned = [each for each in listed(installed, started, "jobs") if "ownerReferences" in each["metadata"]]
        return [each for each in owned if has_status(each, "Complete")]

    job = until("a job of the CronJob has completed", completed)[0]["metadata"]["name"]
    assert installed.kubectl(f"--namespace={started}", "logs", f"job/{job}").startswith("MIG-")


def test_a_stateful_pod_comes_back_to_its_volume(installed: Cluster, started: str) -> None:
    """Its slice is where its volume is: scaled down and up, it finds what it wrote, on the same node."""
    _rolled_out(installed, started, "statefulset/kept")
    home = {each["metadata"]["name"]: each["spec"]["nodeName"] for each in _pods(installed, started, "kept")}
    _scale(installed, started, "statefulset/kept", 1)
    installed.kubectl(f"--namespace={started}", "wait", "--for=delete", "pod/kept-1", "--timeout=120s", timeout_s=130)
    _scale(installed, started, "statefulset/kept", 2)
    _rolled_out(installed, started, "statefulset/kept")
    assert {each["metadata"]["name"]: each["spec"]["nodeName"] for each in _pods(installed, started, "kept")} == home
    lines = installed.kubectl(f"--namespace={started}", "exec", "kept-1", "--", "cat", "/data/devices").split()
    assert len(lines) == 2
    assert all(device.startswith("MIG-") for device in lines)


def test_each_node_runs_its_pod_of_a_daemon_set(installed: Cluster, started: str) -> None:
    """With a slice of that node, also after a restart of all."""
    _rolled_out(installed, started, "daemonset/each")
    workers = sorted(node.name for node in installed.workers)
    assert sorted(each["spec"]["nodeName"] for each in _pods(installed, started, "each")) == workers
    first = devices(installed, started, "--selector=app=each")
    installed.kubectl(f"--namespace={started}", "rollout", "restart", "daemonset/each")
    _rolled_out(installed, started, "daemonset/each")
    pods = [each for each in _pods(installed, started, "each") if "deletionTimestamp" not in each["metadata"]]
    assert sorted(each["spec"]["nodeName"] for each in pods) == workers
    second = devices(installed, started, "--selector=app=each")
    assert not first.keys() & {each["metadata"]["name"] for each in pods}
    assert len({second[each["metadata"]["name"]] for each in pods}) == len(workers)


def test_everything_is_given_back_when_it_is_deleted(installed: Cluster, started: str) -> None:
    """Controllers delete their pods, and no slice is left."""
    kinds = "jobs,cronjobs,statefulsets,daemonsets"
    installed.kubectl(f"--namespace={started}", "delete", kinds, "--all", "--timeout=120s", timeout_s=130)
    wait_for_no_slice(installed)


def test_a_deployment_is_updated_on_a_fleet_that_is_nearly_full(installed: Cluster, space: str) -> None:
    """One GPU is free, no pod may be missing: update, rollback and restart go through it, one pod after the other."""
    wait_for_no_slice(installed)
    gpus = len(read(installed, "gpus")["items"])
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    whole = _template("served", annotations={}, limits={"nvidia.com/gpu": "1"})
    apply(installed, space, _set("Deployment", "served", whole, replicas=gpus - 1, strategy=strategy))
    _rolled_out(installed, space, "deployment/served")
    for change in (
        ("set", "env", "deployment/served", "VERSION=2"),
        ("rollout", "undo", "deployment/served"),
        ("rollout", "restart", "deployment/served"),
    ):
        old = {each["metadata"]["name"] for each in _live(installed, space)}
        installed.kubectl(f"--namespace={space}", *change)
        _rolled_out(installed, space, "deployment/served")
        _check_served(installed, space, old, gpus - 1)


def test_a_deployment_grows_over_the_fleet_and_shrinks_again(installed: Cluster, space: str) -> None:
    """What has no GPU waits and says so; on a full fleet an update replaces one pod at a time."""
    gpus = len(read(installed, "gpus")["items"])
    _scale(installed, space, "deployment/served", gpus + 1)
    until("all GPUs are taken", lambda: len(_ready(installed, space)) == gpus)
    waiting = until("one pod waits", lambda: [each for each in _live(installed, space) if is_gated(each)])
    assert all(until("it says why", lambda: _why(installed, space, waiting[0]["metadata"]["name"])))
    _scale(installed, space, "deployment/served", gpus)
    until("the waiting pod is gone", lambda: len(_live(installed, space)) == gpus)
    replaced = {"spec": {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}}}
    old = {each["metadata"]["name"] for each in _live(installed, space)}
    installed.kubectl(f"--namespace={space}", "patch", "deployment", "served", f"--patch={json.dumps(replaced)}")
    installed.kubectl(f"--namespace={space}", "rollout", "restart", "deployment/served")
    _rolled_out(installed, space, "deployment/served")
    _check_served(installed, space, old, gpus)
    _scale(installed, space, "deployment/served", 0)
    wait_for_no_slice(installed)


def _template(name: str, *, annotations: dict[str, str] | None = None, **options: object) -> Json:
    wanted = PROFILE if annotations is None else annotations
    return template(labels={"app": name}, annotations=wanted, **options)  # type: ignore[arg-type]


def _job(name: str, script: str, *, annotations: dict[str, str] | None = None, **spec: object) -> Json:
    body = _template(name, script=script, annotations=annotations, restartPolicy="Never")
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": body, **spec}}


def _set(kind: str, name: str, body: Json, **spec: object) -> Json:
    spec = {"selector": {"matchLabels": {"app": name}}, "template": body, **spec}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def _rolled_out(cluster: Cluster, namespace: str, workload: str) -> None:
    cluster.kubectl(f"--namespace={namespace}", "rollout", "status", workload, "--timeout=180s", timeout_s=190)


def _scale(cluster: Cluster, namespace: str, workload: str, replicas: int) -> None:
    cluster.kubectl(f"--namespace={namespace}", "scale", workload, f"--replicas={replicas}")


def _pods(cluster: Cluster, namespace: str, app: str) -> list[Json]:
    return listed(cluster, namespace, "pods", f"--selector=app={app}")


def _live(cluster: Cluster, namespace: str) -> list[Json]:
    return [each for each in _pods(cluster, namespace, "served") if "deletionTimestamp" not in each["metadata"]]


def _ready(cluster: Cluster, namespace: str) -> list[Json]:
    return [each for each in _live(cluster, namespace) if has_status(each, "Ready")]


def _why(cluster: Cluster, namespace: str, name: str) -> list[str]:
    pod = next(each for each in _live(cluster, namespace) if each["metadata"]["name"] == name)
    return [each["message"] for each in pod["status"].get("conditions", []) if each["type"] == "sluice.dev/SliceReady"]


def _check_served(cluster: Cluster, namespace: str, old: set[str], count: int) -> None:
    """All pods are new, and each has a GPU of its own."""
    pods = {each["metadata"]["name"] for each in _ready(cluster, namespace)}
    assert len(pods) == count
    assert not pods & old
    served = devices(cluster, namespace, "--selector=app=served")
    assert len({served[name] for name in pods}) == count
