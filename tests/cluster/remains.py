"""What is in a cluster and on its machines, to compare before an installation and after its removal."""

import json
import time
from pathlib import Path
from typing import Any

from cluster.harness.cluster import Cluster
from cluster.harness.node import Node

TRANSIENT = ("componentstatuses", "endpoints", "events", "events.events.k8s.io", "leases.coordination.k8s.io")
"""Resources that change by themselves, and one that is deprecated for another in the list."""
DIRECTORIES = ("/run/sluice", "/var/lib/sluice")
BOUND = "pv.kubernetes.io/bound-by-controller"
KUBELET = "/var/lib/kubelet"
OURS = "slice.sluice.dev"
TICKET = "sluice-slice"
"""The name of a pod's volume."""
Content = dict[str, Any]


def objects(cluster: Cluster) -> dict[str, Content]:
    """`resource namespace/name` -> what a client wrote into the object, for all objects that the API server lists."""
    kinds = cluster.kubectl("api-resources", "--verbs=list", "--output=name").split()
    wanted = ",".join(sorted(set(kinds) - set(TRANSIENT)))
    listed = json.loads(cluster.kubectl("get", wanted, "--all-namespaces", "--output=json", timeout_s=120))
    return {_identity(each): _written(each) for each in listed["items"]}


def changes(before: dict[str, Content], after: dict[str, Content]) -> list[str]:
    """A line for each object that came, went or was changed."""
    came = [f"came: {name}" for name in after.keys() - before.keys()]
    went = [f"went: {name}" for name in before.keys() - after.keys()]
    changed = [
        f"changed: {name}: {json.dumps(before[name])} -> {json.dumps(after[name])}"
        for name in before.keys() & after.keys()
        if before[name] != after[name]
    ]
    return sorted(came + went + changed)


def keep(cluster: Cluster) -> None:
    """Save the objects before the installation, for whichever run removes it."""
    _file(cluster).write_text(json.dumps(objects(cluster)))


def kept(cluster: Cluster) -> dict[str, Content]:
    """Those that `keep` saved."""
    found: dict[str, Content] = json.loads(_file(cluster).read_text())
    return found


def wait_for_none(cluster: Cluster, *, within_s: float = 60.0) -> None:
    """Until every object is as `keep` saved it. Raises AssertionError with what came, went or changed."""
    before = kept(cluster)
    end = time.monotonic() + within_s
    while found := changes(before, objects(cluster)):
        if time.monotonic() > end:
            raise AssertionError("\n".join(found))
        time.sleep(1.0)


def on_node(node: Node) -> list[str]:
    """Mounts, directories and sockets of Sluice on a machine."""
    mounts = [line.split()[4] for line in node.box.run("cat", "/proc/1/mountinfo").splitlines()]
    directories = [path for path in DIRECTORIES if node.box.run("ls", "-d", path, check=False).strip() == path]
    kubelets = node.box.run("find", *(f"{KUBELET}/{each}" for each in ("plugins", "plugins_registry")))
    return sorted(
        [f"mount {path}" for path in mounts if path.startswith("/run/sluice") or OURS in path or TICKET in path]
        + directories
        + [path for path in kubelets.split() if OURS in path]
    )


def _file(cluster: Cluster) -> Path:
    return cluster.folder / "objects-before-sluice.json"


def _identity(each: Content) -> str:
    metadata = each["metadata"]
    return f"{each['kind']}.{each['apiVersion']} {metadata.get('namespace', '')}/{metadata['name']}"


def _written(each: Content) -> Content:
    metadata = each["metadata"]
    content = {key: value for key, value in each.items() if key not in ("metadata", "status")}
    if each["kind"] == "PersistentVolume":
        # A class that keeps volumes keeps the name of the claim, too.
        content["spec"] = {key: value for key, value in content["spec"].items() if key != "claimRef"}
    # Kubernetes' own note of how it was bound.
    annotations = {key: value for key, value in metadata.get("annotations", {}).items() if key != BOUND}
    return {"labels": metadata.get("labels", {}), "annotations": annotations, **content}
