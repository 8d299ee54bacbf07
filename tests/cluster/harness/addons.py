"""What a cluster has beside its components: rights of kube-proxy, the name server, and an image for them."""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.harness.control_plane import ROUTER
from cluster.harness.network import DNS_SERVICE, DOMAIN
from cluster.images.archive import Image, write_archive
from cluster.images.layers import layer_of

COREDNS = "localhost/coredns:1"
COREFILE = f""".:53 {{
    errors
    health {{
        lameduck 1s
    }}
    ready
    kubernetes {DOMAIN} in-addr.arpa {{
        pods insecure
        ttl 5
    }}
    cache 5
    loadbalance
}}
"""
VOLUMES = "/var/lib/volumes"
"""Where a worker's volumes lie, by number."""
VOLUMES_PER_WORKER = 4
READ = ["get", "list", "watch"]
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
    """kube-proxy's rights, and CoreDNS as any cluster has it."""
    labels = {"k8s-app": "kube-dns"}
    container = {
        "name": "coredns",
        "image": COREDNS,
        "imagePullPolicy": "Never",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "ports": [
            {"name": "dns", "containerPort": 53, "protocol": "UDP"},
            {"name": "dns-tcp", "containerPort": 53, "protocol": "TCP"},
        ],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns", "readOnly": True}],
    }
    pod = {
        "serviceAccountName": "coredns",
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
        "tolerations": [{"operator": "Exists"}],
        "dnsPolicy": "Default",
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
    }
    return [
        _binding(
            "system:kube-proxy",
            "system:node-proxier",
            {"kind": "User", "name": "system:kube-proxy", "apiGroup": "rbac.authorization.k8s.io"},
        ),
        _named("ServiceAccount", "coredns"),
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "system:coredns"},
            "rules": [
                {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
            ],
        },
        _binding(
            "system:coredns",
            "system:coredns",
            {"kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system"},
        ),
        {**_named("ConfigMap", "coredns"), "data": {"Corefile": COREFILE}},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "coredns", "namespace": "kube-system", "labels": labels},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
        {
            **_named("Service", "kube-dns"),
            "spec": {
                "selector": labels,
                "clusterIP": DNS_SERVICE,
                "ports": [
                    {"name": "dns", "port": 53, "protocol": "UDP"},
                    {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
                ],
            },
        },
    ]


def router_rights() -> Json:
    """What kube-router reads to enforce network policies."""
    rules = [
        {"apiGroups": [""], "resources": ["endpoints", "namespaces", "nodes", "pods", "services"], "verbs": READ},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": READ},
        {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": READ},
    ]
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": ROUTER},
        "rules": rules,
    }
    user = {"kind": "User", "name": ROUTER, "apiGroup": "rbac.authorization.k8s.io"}
    return {"apiVersion": "v1", "kind": "List", "items": [role, _binding(ROUTER, ROUTER, user)]}


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
    return [storage, *(_volume(worker, number) for worker in workers for number in range(VOLUMES_PER_WORKER))]


def _volume(worker: str, number: int) -> Json:
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


def _named(kind: str, name: str) -> Json:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "kube-system"}}


def _binding(name: str, role: str, subject: Mapping[str, str]) -> Json:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [dict(subject)],
    }
