"""Objects of a large cluster, about as large as real ones: pods of 3 KiB, nodes of 10 KiB (50 images each)."""

import json
from typing import Any

Json = dict[str, Any]
NAMESPACE = "lab"
UNKNOWN_S = "2026-11-21T10:00:00Z"
IMAGE = "registry.example/team/image"
KEYS = ("visible-devices", "ticket", "driver-capabilities", "mps-pipe-directory", "active-thread-percentage")
EMPTY = ("mps-pipe-directory", "pinned-memory-limit", "quota-socket", "quota-preload")
"""Granted annotations that an instance leaves empty."""


def node_name(number: int) -> str:
    return f"gpu-{number}.example.internal"


def node(number: int, beat: int = 0) -> Json:
    """A node; `beat` is how often its kubelet has reported."""
    name = node_name(number)
    labels = {f"feature.node.kubernetes.io/cpu-cpuid.{each}": "true" for each in range(20)}
    labels |= {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"z{number % 3}"}
    labels |= {"nvidia.com/gpu.count": "8"}
    amounts = {"cpu": "64", "memory": "515898Mi", "pods": "110", "nvidia.com/gpu": "8", "example.com/nic": "4"}
    beaten = f"2026-11-21T10:{beat // 60 % 60:02}:{beat % 60:02}Z"
    times = {"status": "False", "lastHeartbeatTime": beaten, "lastTransitionTime": UNKNOWN_S}
    conditions = [
        {"type": kind, "reason": f"KubeletHas{kind}", "message": f"kubelet has no {kind}", **times}
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    ]
    images = [{"names": [f"{IMAGE}-{each}@sha256:{each:064x}", f"{IMAGE}-{each}:1"]} for each in range(35)]
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "uid": f"node-{number}",
            "creationTimestamp": UNKNOWN_S,
            "labels": labels,
            "annotations": {f"node.example/{each}": "x" * 40 for each in range(8)},
            "managedFields": _managed(),
        },
        "spec": {"podCIDR": "10.0.0.0/24", "providerID": f"metal://{name}"},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": conditions,
            "images": [{**each, "sizeBytes": 10**9} for each in images],
            "nodeInfo": {"kernelVersion": "6.8.0", "kubeletVersion": "v1.36.2", "osImage": "Debian 13"},
        },
    }


def other_pod(number: int, nodes: int, restarts: int = 0) -> Json:
    """A running pod that is none of ours."""
    resources = {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}}
    body = _pod(f"web-{number}", restarts, resources=resources)
    body["metadata"]["labels"] = {"app": f"web-{number % 100}", "pod-template-hash": "6d4b75cb6d"}
    body["spec"]["nodeName"] = node_name(number % nodes)
    return body


def our_pod(number: int, *, on: str = "", restarts: int = 0) -> Json:
    """A pod as admission leaves it; with `on`, bound to that node and running."""
    body = _pod(f"train-{number}", restarts)
    for at, key in enumerate(KEYS):
        path = f"metadata.annotations['main.granted.sluice.dev/{key}']"
        variable = {"name": f"V{at}", "valueFrom": {"fieldRef": {"fieldPath": path}}}
        body["spec"]["containers"][0]["env"].append(variable)
    ask = {"version": 1, "first": "main", "annotations": {"sluice.dev/profile": "1g.5gb"}}
    body["metadata"]["labels"] = {"sluice.dev/managed": "true", "app": "train"}
    body["metadata"]["annotations"] = {"sluice.dev/request": json.dumps(ask), "sluice.dev/profile": "1g.5gb"}
    body["spec"]["volumes"].append({"name": "sluice", "csi": {"driver": "slice.sluice.dev", "readOnly": True}})
    if on:
        granted = {"visible-devices": f"MIG-{number}", "ticket": "t-1", "driver-capabilities": "compute,utility"}
        granted |= {"active-thread-percentage": "100", **dict.fromkeys(EMPTY, "")}
        body["metadata"]["annotations"] |= {f"main.granted.sluice.dev/{key}": text for key, text in granted.items()}
        body["metadata"]["annotations"]["granted.sluice.dev/allocation"] = f"{body['metadata']['uid']}_r_1"
        body["spec"]["nodeName"] = on
    else:
        body["spec"]["schedulingGates"] = [{"name": "sluice.dev/slice"}]
        body["status"] = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]}
    return body


def _pod(name: str, restarts: int, **of_container: Json) -> Json:
    env = [{"name": f"SETTING_{each}", "value": "x" * 20} for each in range(10)]
    main = {"name": "main", "image": f"{IMAGE}:1", "env": env, "imagePullPolicy": "IfNotPresent", **of_container}
    status = {"name": "main", "ready": True, "restartCount": restarts, "state": {"running": {"startedAt": UNKNOWN_S}}}
    status |= {"image": f"{IMAGE}:1", "imageID": "sha256:" + "0" * 64}
    kinds = ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"u-{name}",
            "generation": 1,
            "creationTimestamp": UNKNOWN_S,
            "ownerReferences": [{"kind": "Job", "name": name, "uid": f"j-{name}", "controller": True}],
            "managedFields": _managed(),
        },
        "spec": {
            "containers": [main],
            "volumes": [{"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}],
            "tolerations": [{"key": f"node.kubernetes.io/{each}", "operator": "Exists"} for each in ("a", "b")],
            "serviceAccountName": "default",
            "restartPolicy": "Always",
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": each, "status": "True", "lastTransitionTime": UNKNOWN_S} for each in kinds],
            "containerStatuses": [status],
            "hostIP": "10.0.0.1",
            "podIP": "10.1.0.1",
        },
    }


def _managed() -> list[Json]:
    fields = {f"f:field-{each}": {} for each in range(25)}
    return [{"manager": who, "operation": "Update", "fieldsV1": {"f:spec": fields}} for who in ("one", "two")]
