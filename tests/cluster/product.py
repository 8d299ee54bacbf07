"""Sluice in a cluster, installed and removed as docs/install.md tells a user."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.harness.box import BoxError
from cluster.harness.cluster import Cluster
from cluster.harness.node import Node
from cluster.images.build import build

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy/kubernetes"
IMAGES = "SLUICE_CLUSTER_IMAGES"
ROLLED_OUT_S = 180
GPUS_PER_WORKER = 2
"""Simulated, as fleet.toml of the overlay says."""
WORKLOADS = (
    ("sluice-system", "statefulset/sluice-nats"),
    ("sluice-system", "deployment/sluice-callout"),
    ("sluice-system", "deployment/sluice-allocator"),
    ("sluice-system", "deployment/sluice-inventory"),
    ("sluice-system", "deployment/sluice-pod-watcher"),
    ("sluice-system", "deployment/sluice-web"),
    ("sluice-system", "deployment/sluice-webhook"),
    ("sluice-nodes", "daemonset/sluice-node-agent"),
)
TAGS = {
    "docker.io/library/sluice-broker:2.15.1": "docker.io/library/nats:2.15.1-alpine",
    "localhost/sluice-test:1": "docker.io/library/ubuntu:24.04",
}
"""What stands for the images of a registry: the broker in the manifests, and the image of examples/."""
Json = dict[str, Any]


def images() -> Path:
    """The archive of every image that the manifests and examples name: SLUICE_CLUSTER_IMAGES, or the one built here."""
    named = os.environ.get(IMAGES)
    return Path(named) if named else build("auto", say=print).path


def bring_images(cluster: Cluster, machines: Sequence[Node] = ()) -> None:
    cluster.import_images(images(), TAGS, machines)


def install(cluster: Cluster, *, overlay: str = "simulated", components: Sequence[str] = ()) -> None:
    """As the page says. Raises BoxError with what is not ready."""
    folder = REPOSITORY / "out" / f"overlay-{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        (folder / "kustomization.yaml").write_text(json.dumps(_overlay(overlay, components)))
        cluster.kubectl("apply", "--server-side", "--kustomize", folder)
    finally:
        shutil.rmtree(folder)
    wait(cluster)


def wait(cluster: Cluster, *, without: str = "") -> None:
    """Until everything that was applied is rolled out, but one. Raises BoxError with the state of the pods."""
    end = time.monotonic() + ROLLED_OUT_S
    for namespace, workload in WORKLOADS:
        if without and workload.endswith(f"/{without}"):
            continue
        left = max(1, int(end - time.monotonic()))
        try:
            cluster.kubectl(
                f"--namespace={namespace}", "rollout", "status", workload, f"--timeout={left}s", timeout_s=left + 10
            )
        except BoxError as error:
            raise BoxError(f"{workload} is not ready: {error}\n{state_of_pods(cluster)}") from None


def state_of_pods(cluster: Cluster) -> str:
    """All pods, and the last warnings."""
    pods = cluster.kubectl("get", "pods", "--all-namespaces", "--output=wide")
    events = cluster.kubectl("get", "events", "--all-namespaces", "--field-selector=type=Warning", check=False)
    return f"{pods}\n{events[-4000:]}"


def uninstall(cluster: Cluster, what: str = "all", *, wait_s: int = 120) -> str:
    """What the script said. wait_s: for each thing that it waits for. Raises BoxError where it fails."""
    kubectl = f"{cluster.binaries['kubectl']} --kubeconfig={cluster.kubeconfig}"
    ended = subprocess.run(
        ["sh", str(DEPLOY / "uninstall.sh"), what],
        env={**os.environ, "KUBECTL": kubectl, "KUBECONFIG": str(cluster.kubeconfig), "WAIT_S": str(wait_s)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    if ended.returncode:
        raise BoxError(f"uninstall.sh {what} ended with {ended.returncode}: {ended.stdout.strip()[-3000:]}")
    return ended.stdout


def _overlay(overlay: str, components: Sequence[str]) -> Json:
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"../../deploy/kubernetes/overlays/{overlay}"],
        "components": [f"../../deploy/kubernetes/components/{each}" for each in components],
    }
