"""What goes wrong on real machines: processes killed, machines restarted, and how one sees that all is well again."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cluster import product
from cluster.gpu_pods import is_ready
from cluster.harness.cluster import Cluster
from cluster.waiting import Unmet, until

from sluice_node_agent.shell.paths import hardware_path
from sluice_node_agent.simulated.hardware_file import HardwareFile

Json = dict[str, Any]
COMPONENTS: Mapping[str, tuple[str, str]] = {
    "nats": ("sluice-system", "nats"),
    "callout": ("sluice-system", "callout"),
    "allocator": ("sluice-system", "allocator"),
    "inventory": ("sluice-system", "inventory"),
    "pod-watcher": ("sluice-system", "pod-watcher"),
    "webhook": ("sluice-system", "webhook"),
    "web": ("sluice-system", "web"),
    "node-agent": ("sluice-nodes", "node-agent"),
}
"""What has pods of Sluice's own -> namespace, and value of the label `app.kubernetes.io/component`."""


def pods_of(cluster: Cluster, component: str) -> list[Json]:
    """Pods of a component of Sluice that are not on their way out."""
    namespace, value = COMPONENTS[component]
    selector = f"--selector=app.kubernetes.io/component={value}"
    listed = cluster.kubectl(f"--namespace={namespace}", "get", "pods", selector, "--output=json")
    return [each for each in json.loads(listed)["items"] if not each["metadata"].get("deletionTimestamp")]


def force_delete(cluster: Cluster, pod: Json) -> None:
    """`kubectl delete pod --force`: the object goes at once, its processes when the kubelet comes to it."""
    about = pod["metadata"]
    cluster.kubectl(
        f"--namespace={about['namespace']}",
        "delete",
        "pod",
        about["name"],
        "--force",
        "--grace-period=0",
        "--wait=false",
        "--ignore-not-found",
    )


def processes_of(pod: Json) -> list[int]:
    found = []
    ids = [each.get("containerID", "").rpartition("/")[2] for each in pod["status"].get("containerStatuses") or []]
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            groups = (folder / "cgroup").read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        if any(each and f"/{each}" in groups for each in ids):
            found.append(int(folder.name))
    return found


def kill_processes(pod: Json) -> int:
    """SIGKILL for all processes of a pod's containers; returns how many."""
    killed = 0
    for pid in processes_of(pod):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.kill(pid, signal.SIGKILL)
            killed += 1
    return killed


def until_new(cluster: Cluster, component: str, before: list[Json]) -> None:
    """Until a component has as many ready pods as before, and none of their containers is one of before."""
    old = _containers(before)

    def look() -> Unmet | bool:
        now = pods_of(cluster, component)
        if len(now) == len(before) and all(map(is_ready, now)) and not old & _containers(now):
            return True
        return Unmet([(each["metadata"]["name"], each["status"].get("phase"), is_ready(each)) for each in now])

    until(f"{component} is back", look)


def kill_kubelet(cluster: Cluster, worker: str) -> None:
    cluster.node(worker).box.end("kubelet", number=signal.SIGKILL)
    cluster.save()


def start_kubelet(cluster: Cluster, worker: str) -> None:
    cluster.node(worker).start_kubelet()
    cluster.save()


def restart_containerd(cluster: Cluster, worker: str) -> None:
    """Killed and started; containers live on under their shims."""
    cluster.node(worker).box.end("containerd", number=signal.SIGKILL)
    cluster.node(worker).start_containerd()
    cluster.save()


def kill_api_server(cluster: Cluster) -> None:
    """The others of the control plane live on."""
    cluster.control_plane.box.end("kube-apiserver", number=signal.SIGKILL)
    cluster.save()


def start_api_server(cluster: Cluster) -> None:
    """Again, with controllers that gave up meanwhile."""
    cluster.control_plane.start_api_server()
    cluster.save()


def reboot(cluster: Cluster, worker: str) -> None:
    """
    Pull the plug of a worker and start it again.

    Its /run is empty and its MIG instances are gone, as on real GPUs; its disks are kept.
    """
    cluster.reboot(worker, meanwhile=lambda: _reboot_gpus(cluster, worker))


@contextlib.contextmanager
def xid(cluster: Cluster, worker: str, gpu: str, number: int) -> Iterator[None]:
    """The driver reports an error of a GPU meanwhile."""
    hardware = HardwareFile(hardware_path(cluster.node(worker).box.kept["/var/lib/sluice"], worker))
    with hardware.changing() as found:
        (index,) = [each.index for each in found.gpus if each.uuid == gpu]
        found.faults.xid, found.faults.xid_gpu = number, index
    try:
        yield
    finally:
        with hardware.changing() as found:
            found.faults.xid = 0


def is_node_ready(cluster: Cluster, worker: str) -> bool:
    """As `kubectl get nodes` shows it."""
    conditions = json.loads(cluster.kubectl("get", "node", worker, "--output=json"))["status"]["conditions"]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def cordon(cluster: Cluster, *workers: str) -> None:
    """`kubectl cordon`."""
    cluster.kubectl("cordon", *workers)


def uncordon(cluster: Cluster, *workers: str) -> None:
    """`kubectl uncordon`."""
    cluster.kubectl("uncordon", *workers)


def until_whole(cluster: Cluster) -> None:
    """Until every machine is ready and open, and everything of Sluice is rolled out, with the agents' GPUs in sight."""
    for worker in cluster.workers:
        until(f"{worker.name} is ready", lambda name=worker.name: is_node_ready(cluster, name))  # type: ignore[misc]
    until("everything of Sluice is ready", lambda: _is_rolled_out(cluster))
    until("all GPUs are healthy", lambda: _unhealthy(cluster))


def _unhealthy(cluster: Cluster) -> Unmet | bool:
    listed = json.loads(cluster.kubectl("get", "gpus", "--output=json"))["items"]
    states = {each["metadata"]["name"]: (each.get("status") or {}).get("health") for each in listed}
    wanted = len(cluster.workers) * product.GPUS_PER_WORKER
    return (len(states) == wanted and set(states.values()) == {"Healthy"}) or Unmet(states)


def _is_rolled_out(cluster: Cluster) -> Unmet | bool:
    for component in COMPONENTS:
        pods = pods_of(cluster, component)
        if not pods or not all(map(is_ready, pods)):
            return Unmet([(each["metadata"]["name"], each["status"].get("phase")) for each in pods] or component)
    return True


def _containers(pods: list[Json]) -> set[str]:
    return {
        each["containerID"]
        for pod in pods
        for each in pod["status"].get("containerStatuses") or []
        if each.get("containerID")
    }


def _reboot_gpus(cluster: Cluster, worker: str) -> None:
    """As `sluice-node-agent hardware NODE reboot` does."""
    HardwareFile(hardware_path(cluster.node(worker).box.kept["/var/lib/sluice"], worker)).reboot()
