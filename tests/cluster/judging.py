"""Judges from outside: the kernel's processes and `kubectl get gpus`, not what a service says of itself."""

import re
from collections import defaultdict
from pathlib import Path

from cluster import gpu_pods
from cluster.harness.cluster import Cluster

_POD_UID = re.compile(r"/pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})/")
_VARIABLE = b"NVIDIA_VISIBLE_DEVICES="


def holders(cluster: Cluster) -> dict[str, dict[str, set[int]]]:
    """Device -> UID of a pod -> its live processes that see the device, on all machines of the cluster."""
    found: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    mark = f"/sluice-{cluster.folder.name}-"
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            groups = (folder / "cgroup").read_text()
            if mark not in groups or not (uid := _POD_UID.search(groups)):
                continue
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # the process has ended
            continue
        for each in environment:
            if each.startswith(_VARIABLE):
                for uuid in each.removeprefix(_VARIABLE).decode().split(","):
                    if uuid.startswith("MIG-"):
                        found[uuid][uid[1].replace("_", "-")].add(int(folder.name))
    return {uuid: dict(each) for uuid, each in found.items()}


def faults(cluster: Cluster) -> list[str]:
    """Devices that two pods have at one time: by their processes, by the pods' annotations, by `kubectl get gpus`."""
    return [*_shared_by_processes(cluster), *_shared_by_pods(cluster), *_shared_by_slices(cluster)]


def check(cluster: Cluster) -> None:
    """Raises AssertionError where two pods have one device."""
    assert not (wrong := faults(cluster)), wrong


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


def _shared_by_slices(cluster: Cluster) -> list[str]:
    by_device: dict[str, list[str]] = defaultdict(list)
    for each in gpu_pods.slices(cluster):
        if uuid := each.get("uuid"):
            by_device[uuid].append(f"{each['namespace']}/{each['pod']}")
    return [f"kubectl get gpus: {', '.join(names)} on {uuid}" for uuid, names in by_device.items() if len(names) > 1]
