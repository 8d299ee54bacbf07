"""Objects that the suites make in a cluster, and what they read of it."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from cluster import gpu_pods
from cluster.gpu_pods import SLEEPS, container
from cluster.harness.box import BoxError
from cluster.harness.cluster import Cluster
from cluster.waiting import until

Json = dict[str, Any]
PROFILE = {"sluice.dev/profile": "1g.5gb"}
WHOLE_GPU = {"nvidia.com/gpu": "1"}
GATE = "sluice.dev/slice"


def template(
    *,
    annotations: Mapping[str, str] | None = None,
    limits: Mapping[str, str] | None = None,
    script: str = SLEEPS,
    labels: Mapping[str, str] | None = None,
    **spec: object,
) -> Json:
    """Metadata and spec of a pod with one container, `main`, that runs a script of busybox's shell."""
    main = container("main", script, **({"resources": {"limits": dict(limits)}} if limits else {}))
    metadata = {"annotations": dict(annotations or {}), "labels": dict(labels or {})}
    return {"metadata": metadata, "spec": {"terminationGracePeriodSeconds": 5, "containers": [main], **spec}}


def pod(name: str, *, annotations: Mapping[str, str] | None = None, **options: Any) -> Json:
    """A pod with `restartPolicy: Never`; see `template`. Without annotations and limits it asks for a 1g.5gb."""
    if annotations is None and "limits" not in options:
        annotations = PROFILE
    made = template(annotations=annotations, **{"restartPolicy": "Never", **options})
    made["metadata"]["name"] = name
    return {"apiVersion": "v1", "kind": "Pod", **made}


def apply(cluster: Cluster, namespace: str, *objects: Json) -> str:
    """What kubectl printed, warnings among it. Raises BoxError where one is refused."""
    items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    return cluster.kubectl(f"--namespace={namespace}", "apply", "--filename=-", stdin=json.dumps(items))


def refusal(cluster: Cluster, namespace: str, *arguments: str, stdin: Json | None = None) -> str:
    """The sentence with which a command is refused. Raises AssertionError where it is not."""
    given = None if stdin is None else json.dumps(stdin)
    try:
        printed = cluster.kubectl(f"--namespace={namespace}", *arguments, stdin=given)
    except BoxError as error:
        return str(error)
    raise AssertionError(f"kubectl {' '.join(arguments)} was not refused: {printed}")


def read(cluster: Cluster, *arguments: str) -> Json:
    """`kubectl get ... --output=json`."""
    found: Json = json.loads(cluster.kubectl("get", *arguments, "--output=json"))
    return found


def listed(cluster: Cluster, namespace: str, what: str = "pods", *arguments: str) -> list[Json]:
    """Objects of a kind in a namespace."""
    items: list[Json] = read(cluster, f"--namespace={namespace}", what, *arguments)["items"]
    return items


def wait_for(cluster: Cluster, namespace: str, condition: str, *names: str, within_s: int = 120) -> None:
    """`kubectl wait`: condition as it takes it, `condition=Ready`."""
    waits = ["wait", f"--for={condition}", *names, f"--timeout={within_s}s"]
    cluster.kubectl(f"--namespace={namespace}", *waits, timeout_s=within_s + 10)


def devices(cluster: Cluster, namespace: str, *arguments: str) -> dict[str, str]:
    """Pod -> the device of its container `main`, of those that have one: by ticket, or while they run by claim."""
    key = "main.granted.sluice.dev/visible-devices"
    found = {}
    for each in listed(cluster, namespace, "pods", *arguments):
        name, annotations = each["metadata"]["name"], each["metadata"].get("annotations", {})
        if key in annotations:
            found[name] = annotations[key]
        elif gpu_pods.is_granted(each) and gpu_pods.is_held(each):
            found[name] = until(f"the slice of {name} is shown", partial(_shown_device, cluster, namespace, name))
    return found


def _shown_device(cluster: Cluster, namespace: str, pod: str) -> str:
    """As `kubectl get gpus` has it; empty where it is not there."""
    shown = gpu_pods.slices(cluster, namespace)
    return next((each["uuid"] for each in shown if (each["pod"], each["container"]) == (pod, "main")), "")


def is_gated(each: Json) -> bool:
    """Whether a pod waits for its slice."""
    return any(gate["name"] == GATE for gate in each["spec"].get("schedulingGates", []))


def slices(cluster: Cluster) -> list[str]:
    """`gpu place` of each slice of Sluice on any GPU, as `kubectl get gpus` has it."""
    return [
        f"{gpu['metadata']['name']} {each['place']}"
        for gpu in read(cluster, "gpus")["items"]
        for each in gpu.get("status", {}).get("slices", [])
        if each["state"] not in ("Foreign", "Quarantined")
    ]


def wait_for_no_slice(cluster: Cluster) -> None:
    """Until all that was granted is given back."""
    until("every slice is given back", lambda: not slices(cluster))


def free_volumes(cluster: Cluster, names: Sequence[str]) -> None:
    """Empty volumes of claims that are gone, and offer them again: their class keeps both name and content."""
    for name in names:
        spec = read(cluster, f"persistentvolume/{name}")["spec"]
        node = spec["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0]["values"][0]
        cluster.node(node).box.run("find", spec["local"]["path"], "-mindepth", "1", "-delete")
        cluster.kubectl("patch", "persistentvolume", name, "--type=merge", '--patch={"spec":{"claimRef":null}}')


def has_status(each: Json, kind: str, status: str = "True") -> bool:
    """Whether an object has a condition of that type and status."""
    conditions: Sequence[Json] = each.get("status", {}).get("conditions", [])
    return any(condition["type"] == kind and condition["status"] == status for condition in conditions)
