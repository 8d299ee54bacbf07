"""Judges from outside: the kernel's processes and `kubectl get gpus`, not what a service says of itself."""

import json
import re
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cluster import gpu_pods
from cluster.harness.cluster import Cluster

from sluice_node_agent.shell.paths import hardware_path
from sluice_node_agent.simulated.hardware_file import HardwareFile

_POD_UID = re.compile(r"/pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})/")
_CLAIM = re.compile(r" /run/sluice/claims/([0-9a-f-]{36})\.json ")
_VARIABLE = b"NVIDIA_VISIBLE_DEVICES="
_SHARED = b"CUDA_MPS_PIPE_DIRECTORY="
_CAPABILITY = "nvidia-cap"
_PER_GPU, _PER_INSTANCE, _FIRST = 135, 9, 3
"""Capability files of GPU instances: 3 + 135 per GPU + 9 per instance (NVIDIA's kernel module, nv-caps.c)."""
_LOOK_S = 0.3


def holders(cluster: Cluster) -> dict[str, dict[str, set[int]]]:
    """
    Device -> UID of a pod -> its live processes that see the device, on all machines of the cluster. Pods that share a
    ResourceClaim count as one, by that claim's UID.

    A process sees what its environment names (tickets), and what /dev of its container has (ResourceClaims). There a
    device that no GPU has any more is `MACHINE nvidia-capN`. Shares of a device are left out.
    """
    found: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    mark = re.compile(rf"/sluice-{re.escape(cluster.folder.name)}-([^/]+)/")
    there = {node.name: _instances(cluster, node.name) for node in cluster.workers}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            groups = (folder / "cgroup").read_text()
            if not (machine := mark.search(groups)) or not (uid := _POD_UID.search(groups)):
                continue
            environment = (folder / "environ").read_bytes().split(b"\0")
            capabilities = _capabilities(folder)
            claim = _CLAIM.search((folder / "mountinfo").read_text())
        except OSError:  # the process has ended
            continue
        if any(each.startswith(_SHARED) for each in environment):
            continue
        named = {
            uuid
            for each in environment
            if each.startswith(_VARIABLE)
            for uuid in each.removeprefix(_VARIABLE).decode().split(",")
            if uuid.startswith("MIG-")
        }
        instances = there.get(machine[1], {})
        named |= {instances.get(each, f"{machine[1]} {_CAPABILITY}{each}") for each in capabilities}
        for uuid in named:
            found[uuid][claim[1] if claim else uid[1].replace("_", "-")].add(int(folder.name))
    return {uuid: dict(each) for uuid, each in found.items()}


def faults(cluster: Cluster) -> list[str]:
    """
    Devices that two pods have at one time.

    By their processes, by the pods' annotations, by the allocations of claims, by `kubectl get gpus`.
    """
    by_processes, by_pods = _shared_by_processes(cluster), _shared_by_pods(cluster)
    return [*by_processes, *by_pods, *_shared_by_claims(cluster), *_shared_by_slices(cluster)]


def check(cluster: Cluster) -> None:
    """Raises AssertionError where two pods have one device."""
    assert not (wrong := faults(cluster)), wrong


@contextmanager
def watched(cluster: Cluster) -> Iterator[None]:
    """Look at the processes all the time. Raises AssertionError at the end where two pods had one device."""
    wrong: set[str] = set()
    looks, ended = [0], threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_S):
            wrong.update(_shared_by_processes(cluster))
            looks[0] += 1

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert not wrong, sorted(wrong)
    assert looks[0], "no look was taken"


def _instances(cluster: Cluster, machine: str) -> Mapping[int, str]:
    """Capability of a GPU instance -> UUID of its device, of those that exist."""
    path = hardware_path(cluster.node(machine).box.kept["/var/lib/sluice"], machine)
    if not path.exists():
        return {}
    return {
        _FIRST + _PER_GPU * gpu.index + _PER_INSTANCE * instance.gi_id: instance.uuid
        for gpu in HardwareFile(path).read().gpus
        for instance in gpu.instances
        if instance.uuid
    }


def _capabilities(folder: Path) -> set[int]:
    """Those of GPU instances, without those of compute instances, that a process can open."""
    try:
        names = [each.name for each in (folder / "root/dev/nvidia-caps").iterdir()]
    except FileNotFoundError:
        return set()
    numbers = {int(name.removeprefix(_CAPABILITY)) for name in names if name.startswith(_CAPABILITY)}
    return {each for each in numbers if (each - _FIRST) % _PER_GPU % _PER_INSTANCE == 0}


def _shared_by_processes(cluster: Cluster) -> list[str]:
    """A device passes on between two reads of /proc: only what a second look confirms is shared."""
    first = {uuid: each for uuid, each in holders(cluster).items() if len(each) > 1}
    if not first:
        return []
    second = holders(cluster)
    wrong = []
    for uuid, by_pod in first.items():
        alive = [uid for uid, pids in by_pod.items() if pids & second.get(uuid, {}).get(uid, set())]
        if len(alive) > 1:
            wrong.append(f"processes of the pods {', '.join(sorted(alive))} see {uuid}")
    return wrong


def _shared_by_pods(cluster: Cluster) -> list[str]:
    by_device: dict[str, list[str]] = defaultdict(list)
    for name, pod in gpu_pods.pods(cluster).items():
        if gpu_pods.is_held(pod):
            for uuid in gpu_pods.devices(pod):
                by_device[uuid].append(name)
    return [f"{', '.join(names)} were granted {uuid}" for uuid, names in by_device.items() if len(names) > 1]


def _shared_by_claims(cluster: Cluster) -> list[str]:
    by_device: dict[str, list[str]] = defaultdict(list)
    for each in json.loads(cluster.kubectl("get", "resourceclaims", "--all-namespaces", "--output=json"))["items"]:
        name = f"{each['metadata']['namespace']}/{each['metadata']['name']}"
        for result in each.get("status", {}).get("allocation", {}).get("devices", {}).get("results", []):
            by_device[f"{result['pool']}/{result['device']}"].append(name)
    return [f"claims {', '.join(names)} have {device}" for device, names in by_device.items() if len(names) > 1]


def _shared_by_slices(cluster: Cluster) -> list[str]:
    by_device: dict[str, list[str]] = defaultdict(list)
    for each in gpu_pods.slices(cluster):
        if uuid := each.get("uuid"):
            by_device[uuid].append(f"{each['namespace']}/{each['pod']}")
    return [f"kubectl get gpus: {', '.join(names)} on {uuid}" for uuid, names in by_device.items() if len(names) > 1]
