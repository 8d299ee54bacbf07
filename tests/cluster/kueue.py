"""Kueue in a cluster, from its own manifests as it is shipped, and the queues that the tests admit by."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from cluster.harness import addons
from cluster.harness.binaries import build_extra
from cluster.harness.box import BoxError
from cluster.harness.cluster import Cluster
from cluster.objects import Json, apply, has_status, listed, read
from cluster.waiting import Unmet, until

IMAGE = "localhost/kueue"
TAG = "1"
SHIPPED = "us-central1-docker.pkg.dev/k8s-staging-images/kueue/kueue"
"""What its manifests call its image."""
SYSTEM = "kueue-system"
DEPLOYMENT = "kueue-controller-manager"
READY_S = 180
GATE = "kueue.x-k8s.io/admission"
LABEL = "kueue.x-k8s.io/queue-name"
QUEUE = "team"
"""The LocalQueue of each namespace that `open_queue` serves."""
API = "kueue.x-k8s.io/v1beta2"


def install(cluster: Cluster) -> None:
    """Its default manifests: certificates of its own, every integration. Raises BoxError with what is not ready."""
    built = build_extra("kueue")
    folder = _folder(cluster)
    folder.mkdir(exist_ok=True)
    archive = folder / "image.tar"
    addons.write_image(f"{IMAGE}:{TAG}", built.executables["kueue"], archive, path="/manager", user="65532:65532")
    cluster.import_images(archive)
    archive.unlink()
    never = {"op": "replace", "path": "/spec/template/spec/containers/0/imagePullPolicy", "value": "Never"}
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(built.folder / "manifests/config/default", folder)],
        "images": [{"name": SHIPPED, "newName": IMAGE, "newTag": TAG}],
        "patches": [{"target": {"kind": "Deployment"}, "patch": json.dumps([never])}],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(overlay))
    cluster.kubectl("apply", "--server-side", "--kustomize", folder)
    try:
        waits = ["rollout", "status", f"deployment/{DEPLOYMENT}", f"--timeout={READY_S}s"]
        cluster.kubectl(f"--namespace={SYSTEM}", *waits, timeout_s=READY_S + 10)
    except BoxError as error:
        log = cluster.kubectl(f"--namespace={SYSTEM}", "logs", f"deployment/{DEPLOYMENT}", "--tail=50", check=False)
        raise BoxError(f"Kueue is not ready: {error}\n{log[-4000:]}") from None
    until("Kueue's webhooks answer", lambda: apply(cluster, "default", _flavor("probe")))
    cluster.kubectl("delete", "resourceflavor", "probe", "--timeout=60s", timeout_s=70)


def remove(cluster: Cluster) -> None:
    """All of it; queues are removed before it, for it opens their finalizers."""
    folder = _folder(cluster)
    if (folder / "kustomization.yaml").exists():
        cluster.kubectl("delete", "--ignore-not-found", "--timeout=120s", "--kustomize", folder, timeout_s=130)
    shutil.rmtree(folder, ignore_errors=True)


def open_queue(
    cluster: Cluster, namespace: str, quota: Mapping[str, str], *, node_labels: Mapping[str, str] | None = None
) -> None:
    """
    A ClusterQueue with the namespace's name and this quota, and its LocalQueue in the namespace.

    node_labels: of the nodes that its pods may run on, else all.
    """
    resources = [{"name": name, "nominalQuota": quantity} for name, quantity in quota.items()]
    flavors = [{"name": namespace, "resources": resources}]
    queue = {
        "apiVersion": API,
        "kind": "ClusterQueue",
        "metadata": {"name": namespace},
        "spec": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "resourceGroups": [{"coveredResources": list(quota), "flavors": flavors}],
        },
    }
    local = {"apiVersion": API, "kind": "LocalQueue", "metadata": {"name": QUEUE}, "spec": {"clusterQueue": namespace}}
    apply(cluster, namespace, _flavor(namespace, node_labels), queue, local)


def close_queue(cluster: Cluster, namespace: str) -> None:
    for kinds in ("jobs,pods", "workloads", "localqueues"):
        cluster.kubectl(f"--namespace={namespace}", "delete", kinds, "--all", "--timeout=120s", timeout_s=130)
    for kind in ("clusterqueue", "resourceflavor"):
        cluster.kubectl("delete", kind, namespace, "--timeout=60s", timeout_s=70)


def hold(cluster: Cluster, namespace: str, *, is_held: bool) -> None:
    policy = {"spec": {"stopPolicy": "Hold" if is_held else "None"}}
    cluster.kubectl("patch", "clusterqueue", namespace, "--type=merge", f"--patch={json.dumps(policy)}")


def used(cluster: Cluster, namespace: str) -> dict[str, str]:
    """Resource -> what Kueue counts as used in the namespace's ClusterQueue; those of which nothing is are absent."""
    flavors = read(cluster, "clusterqueue", namespace).get("status", {}).get("flavorsUsage", [])
    found = {each["name"]: each["total"] for flavor in flavors for each in flavor["resources"]}
    return {name: total for name, total in found.items() if total != "0"}


def workload(cluster: Cluster, namespace: str, owner: str) -> Json:
    """Kueue's object for a Job or a pod of this name. Raises AssertionError where it makes none."""

    def look() -> Json | Unmet:
        found = listed(cluster, namespace, "workloads")
        owned = [each for each in found if owner in (of["name"] for of in each["metadata"].get("ownerReferences", []))]
        return owned[0] if owned else Unmet([each["metadata"]["name"] for each in found])

    made = until(f"Kueue has a workload for {owner}", look)
    assert isinstance(made, dict)
    return made


def until_admitted(cluster: Cluster, namespace: str, owner: str) -> None:
    """Until Kueue has admitted a Job or a pod of this name."""

    def look() -> bool | Unmet:
        found = workload(cluster, namespace, owner)
        return has_status(found, "Admitted") or Unmet(found.get("status"))

    until(f"Kueue admits {owner}", look)


def until_over_quota(cluster: Cluster, namespace: str, owner: str) -> str:
    """Why Kueue does not admit it, once it says so."""

    def look() -> str | Unmet:
        conditions = workload(cluster, namespace, owner).get("status", {}).get("conditions", [])
        said = [each["message"] for each in conditions if each["type"] == "QuotaReserved" and each["status"] == "False"]
        return said[0] if said else Unmet(conditions)

    return str(until(f"Kueue keeps {owner} waiting", look))


def _flavor(name: str, node_labels: Mapping[str, str] | None = None) -> Json:
    spec = {"nodeLabels": dict(node_labels or {})}
    return {"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": spec}


def _folder(cluster: Cluster) -> Path:
    return cluster.folder / "kueue"
