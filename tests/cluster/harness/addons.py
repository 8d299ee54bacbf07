"""What a cluster has beside its components (its manifests: addons.yaml, router.yaml): volumes, and images of them."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from cluster.images.archive import Image, write_archive
from cluster.images.layers import layer_of

COREDNS = "localhost/coredns:1"
MANIFESTS = Path(__file__).parent.parent / "manifests"
ROUTER_RIGHTS = MANIFESTS / "router.yaml"
VOLUMES = "/var/lib/volumes"
"""Where a worker's volumes lie, by number."""
VOLUMES_PER_WORKER = 4
Json = dict[str, Any]


def write_image(name: str, executable: Path, out: Path, *, path: str = "", user: str = "") -> None:
    """
    An archive of an image with one static executable in it.

    path: where it lies in the image, else below `/` by its name. user: a number that it runs as, else root.
    """
    path = path or f"/{executable.name}"
    with tempfile.TemporaryDirectory(dir=out.parent) as work:
        target = Path(work, "root", path.lstrip("/"))
        target.parent.mkdir(parents=True)
        shutil.copy(executable, target)
        layer = layer_of(Path(work, "root"), Path(work, "layer.tar"), mtime=0)
        write_archive([Image(name, {"Entrypoint": [path], "User": user}, (layer,))], out)


def manifests() -> list[Json]:
    return list(yaml.safe_load_all((MANIFESTS / "addons.yaml").read_text()))


def volumes(workers: Sequence[str]) -> list[Json]:
    """A default StorageClass, and volumes on each worker's disk that it binds where a pod is placed."""
    storage = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "local", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
        "reclaimPolicy": "Retain",
    }
    return [storage, *(volume(worker, number) for worker in workers for number in range(VOLUMES_PER_WORKER))]


def volume(worker: str, number: int) -> Json:
    """One on a machine's disk, at VOLUMES/number."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [worker]}]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{worker}-{number}"},
        "spec": {
            "capacity": {"storage": "20Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "local",
            "local": {"path": f"{VOLUMES}/{number}"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
    }
