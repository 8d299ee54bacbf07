"""Objects of the API server: how a pod, a bystander and a node look there, and what may be read from a pod.

Written for the simulation; the judge reads pods with this and not with the code that it judges.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from simulation.plans.pods import Pod

from sluice.contracts.admission.stored_request import stored_from

Json = dict[str, Any]
GATE, MANAGED, REQUEST, CONDITION = (
    "sluice.dev/slice",
    "sluice.dev/managed",
    "sluice.dev/request",
    "sluice.dev/SliceReady",
)
GRANTED = "granted.sluice.dev"


def pod_object(pod: Pod, uid: str, *, finalizer: bool) -> Json:
    """A pod as admission leaves it: with its gate, its label, and its ask stored as it was written."""
    spec: Json = {"containers": [{"name": name, "image": "cuda"} for name in pod.ask.containers]}
    spec |= pod.terms.spec()
    spec["containers"][0] |= pod.terms.container()
    if pod.user is not None:
        spec["securityContext"] = {"runAsUser": pod.user}
    if not pod.preempts:
        spec["preemptionPolicy"] = "Never"
    annotations = dict(pod.ask.annotations)
    stored = stored_from(annotations, spec).as_text()
    labels = {MANAGED: "true", **pod.terms.labels()}
    meta = _meta(pod.namespace, pod.name, uid, labels, {**annotations, REQUEST: stored})
    if finalizer:
        meta["finalizers"] = ["example.com/keeps-books"]
    spec["schedulingGates"] = [{"name": GATE}]
    if pod.by_claim:
        spec["resourceClaims"] = [{"name": "sluice", "resourceClaimName": claim_name(uid)}]
    return {"kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Pending"}}


def claim_name(uid: str) -> str:
    """The claim that admission names for a pod."""
    return f"sluice-{sha256(uid.encode()).hexdigest()[:20]}"


def bystanders(node: str) -> list[Json]:
    """Pods that request nothing: one has our label, one is ignored and waits by hand, one belongs to others."""
    labels: tuple[dict[str, str], ...] = ({MANAGED: "true"}, {MANAGED: "true", "sluice.dev/ignore": ""}, {})
    found: list[Json] = []
    for number, each in enumerate(labels):
        name = f"bystander-{number}"
        spec: Json = {"containers": [{"name": "main", "image": "web"}]}
        if number == 1:
            spec["schedulingGates"] = [{"name": GATE}]
        else:
            spec["nodeName"] = node
        meta = _meta("lab", name, f"{name}-u0", dict(each), {})
        found.append({"kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Running"}})
    return found


def others_claim() -> Json:
    """A claim that no pod uses, of another driver's class."""
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]
    meta = {"namespace": "lab", "name": "somebody-elses"}
    return {"metadata": meta, "spec": {"devices": {"requests": requests}}}


def node_object(name: str) -> Json:
    """A node with more room than all pods of a seed could take."""
    allocatable = {"cpu": "512", "memory": "4Ti", "pods": "1000"}
    meta = {"name": name, "uid": f"node-{name}", "labels": {"kubernetes.io/hostname": name}}
    return {"kind": "Node", "metadata": meta, "spec": {}, "status": {"allocatable": allocatable}}


def _meta(namespace: str, name: str, uid: str, labels: dict[str, str], annotations: dict[str, str]) -> Json:
    owner = {"kind": "Job", "name": name, "uid": f"job-{name}", "controller": True}
    return {
        "namespace": namespace,
        "name": name,
        "uid": uid,
        "generation": 1,
        "labels": labels,
        "annotations": annotations,
        "ownerReferences": [owner],
    }


# -- reading ----------------------------------------------------------------------------------------------------------


def uid_of(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"]["uid"])


def key_of(pod: Mapping[str, Any]) -> tuple[str, str, str]:
    """Under what it is stored: kind, namespace, name."""
    return pod["kind"], pod["metadata"].get("namespace", ""), pod["metadata"]["name"]


def is_managed(pod: Mapping[str, Any]) -> bool:
    return pod["metadata"].get("labels", {}).get(MANAGED) == "true"


def is_gated(pod: Mapping[str, Any]) -> bool:
    return {"name": GATE} in pod["spec"].get("schedulingGates", [])


def is_dying(pod: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def pinned_to(pod: Mapping[str, Any]) -> str:
    """The one node that its required affinity names; empty where there is none."""
    required = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = required.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    fields = [field for term in terms for field in term.get("matchFields", [])]
    named = {value for field in fields if field.get("key") == "metadata.name" for value in field.get("values", [])}
    return named.pop() if len(named) == 1 else ""


def granted_of(pod: Mapping[str, Any]) -> dict[str, str]:
    """What its annotations say of its slice."""
    annotations = pod["metadata"].get("annotations", {})
    return {key: text for key, text in annotations.items() if GRANTED in key.partition("/")[0]}


def condition_of(pod: Mapping[str, Any]) -> Json | None:
    found = [each for each in pod["status"].get("conditions", []) if each["type"] == CONDITION]
    return found[0] if found else None
