"""
Nodes of a real API server that has none: this process plays the kubelets of its own nodes, in a thread.

They are ready and stay so (a Lease, as kubelets renew it), pods that the scheduler puts there run at once, and deleted
ones end after their object says so. Nothing is started: what containers would see is for real kubelets.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from factories.cluster.kubernetes import LABEL_TEST, MERGE, Cluster, Json, Reply

RENEW_S = 5.0
"""A node without a renewed Lease is unreachable after 50 s (kubernetes/kubernetes, pkg/controller/nodelifecycle)."""
LOOK_S = 0.1
READY_WITHIN_S = 90.0
TAKEN: Mapping[str, str] = {"cpu": "64", "memory": "512Gi", "pods": "500", "ephemeral-storage": "1Ti"}
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_ENDED = {"Succeeded", "Failed"}


@contextlib.contextmanager
def played_nodes(cluster: Cluster, names: Sequence[str], labels: Mapping[str, Mapping[str, str]]) -> Iterator[None]:
    """These nodes, with more labels by name, while the context lasts; at its end they are removed."""
    play = partial(_play, Cluster(cluster.kubeconfig), names, labels)
    with played(play, "the nodes did not become ready", within_s=READY_WITHIN_S * 2):
        yield


@contextlib.contextmanager
def played(
    play: Callable[[threading.Event, threading.Event], Coroutine[Any, Any, None]], late: str, *, within_s: float
) -> Iterator[None]:
    """Run in a thread what sets the first event when it is ready and ends after the second; raises what it raised."""
    ready, ending = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(play(ready, ending))
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            failed.append(error)
            ready.set()

    thread = threading.Thread(target=run, name="played")
    thread.start()
    try:
        assert ready.wait(within_s), late
        if not failed:
            yield
    finally:
        ending.set()
        thread.join()
        if failed:
            raise failed[0]


async def _play(
    cluster: Cluster,
    names: Sequence[str],
    labels: Mapping[str, Mapping[str, str]],
    ready: threading.Event,
    ending: threading.Event,
) -> None:
    async with cluster.opened() as kube:
        try:
            for name in names:
                await register(kube, name, labels.get(name, {}))
            await kube.until("/api/v1/nodes", lambda reply: take_pods(reply, names))
            ready.set()
            renew_at = 0.0
            clock = asyncio.get_running_loop().time
            while not ending.is_set():
                if clock() >= renew_at:
                    renew_at = clock() + RENEW_S
                    for name in names:
                        await renew(kube, name)
                for name in names:
                    for pod in (await kube.get("/api/v1/pods", fieldSelector=f"spec.nodeName={name}")).items:
                        await _sync(kube, pod)
                await asyncio.sleep(LOOK_S)
        finally:
            for name in names:
                await kube.delete(f"/api/v1/nodes/{name}")
                await kube.delete(f"{LEASES}/{name}")


def take_pods(reply: Reply, names: Sequence[str]) -> bool:
    """Of a list of nodes: whether the server has taken the taint of a node that is not ready off all of them."""
    found = {each["metadata"]["name"]: each["spec"].get("taints") for each in reply.items}
    return all(name in found and not found[name] for name in names)


async def register(kube: Cluster, name: str, labels: Mapping[str, str]) -> None:
    """A Node object with a Lease, ready for pods once the server has seen that."""
    own = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", LABEL_TEST: "true"}
    await kube.create("/api/v1/nodes", {"metadata": {"name": name, "labels": own | dict(labels)}})
    now = _now()
    condition = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "played by a test"}
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    status = {"capacity": dict(TAKEN), "allocatable": dict(TAKEN), "conditions": [condition | times]}
    done = await kube.patch(f"/api/v1/nodes/{name}/status", {"status": status}, MERGE)
    assert done.code == 200, done
    spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": _now(precise=True)}
    await kube.post(LEASES, {"metadata": {"name": name, "namespace": "kube-node-lease"}, "spec": spec})


async def renew(kube: Cluster, name: str) -> None:
    """A node's Lease, so that it stays ready."""
    await kube.patch(f"{LEASES}/{name}", {"spec": {"renewTime": _now(precise=True)}}, MERGE)


async def _sync(kube: Cluster, pod: Json) -> None:
    """One pod, as a kubelet brings it on: it runs, or it has ended and its object goes."""
    meta = pod["metadata"]
    path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
    if meta.get("deletionTimestamp"):
        if pod["status"].get("phase") not in _ENDED:
            containers = [_status(each, running=False) for each in pod["spec"]["containers"]]
            ended = {"phase": "Failed", "containerStatuses": containers}
            await kube.patch(f"{path}/status", {"metadata": {"uid": meta["uid"]}, "status": ended})
        await kube.delete(path, {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}})
    elif pod["status"].get("phase") == "Pending":
        await kube.patch(f"{path}/status", running(pod))


def running(pod: Json) -> Json:
    """The patch of its status by which a kubelet reports that it runs."""
    now, kinds = _now(), ("Initialized", "ContainersReady", "Ready")
    status: Json = {"phase": "Running", "startTime": now}
    status["conditions"] = [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds]
    status["containerStatuses"] = [_status(each, running=True) for each in pod["spec"]["containers"]]
    return {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}


def _status(container: Json, *, running: bool) -> Json:
    now = _now()
    ended = {"exitCode": 143, "reason": "Error", "startedAt": now, "finishedAt": now}
    state: Json = {"running": {"startedAt": now}} if running else {"terminated": ended}
    about = {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0}
    return {**about, "ready": running, "started": running, "state": state}


def _now(*, precise: bool = False) -> str:
    now = datetime.now(UTC)
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if precise else now.strftime("%Y-%m-%dT%H:%M:%SZ")
