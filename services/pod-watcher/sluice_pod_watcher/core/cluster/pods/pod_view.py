"""A pod as the API server has validated it, reduced to the fields used."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from sluice.contracts.dra.names import POD_CLAIM
from sluice.contracts.ids import AllocationId, NodeName, RequestId, is_token
from sluice.contracts.kube import names
from sluice.contracts.pod_specs import unknown_demands
from sluice_pod_watcher.core.cluster.events import Raw, mapping_in, mappings_in
from sluice_pod_watcher.core.cluster.pods.volume_claims import claims_of

DONE = frozenset({"Succeeded", "Failed"})
_EDITABLE = ("nodeSelector", "affinity", "tolerations")  # while gated (Kubernetes docs, pod-scheduling-readiness)
_VERSION_MAX = 20  # digits of a resourceVersion: the store counts in 64 bits


class PodCondition(msgspec.Struct, frozen=True):
    """Our condition on a pod."""

    status: str
    reason: str
    message: str


class NodePin(msgspec.Struct, frozen=True):
    """The node terms of a pod's spec, as a pin depends on them. `terms`: the node that each required term names (empty:
    none); None without any. `has_...`: whether those objects exist."""

    has_affinity: bool = False
    has_node_affinity: bool = False
    terms: tuple[str, ...] | None = None

    @property
    def node(self) -> str:
        names = set(self.terms or ())
        return names.pop() if len(names) == 1 else ""


@dataclass(frozen=True, slots=True)
class PodView:
    """One version of one pod."""

    uid: RequestId
    namespace: str
    name: str
    version: int  # the resourceVersion: newer is larger; 0 when it is not a number, so its age is unknown
    generation: int  # how often its spec was edited; 0 where the API server does not count that for pods (before 1.33)
    editable: tuple[Any, ...]  # the editable part of its spec, where edits are not counted
    dying: bool
    nothing_holds_it: bool  # terminating, past its grace period and without finalizers: it is gone
    labels: Mapping[str, str]
    claims: tuple[str, ...]  # names of its volume claims
    pod_claim: str  # the ResourceClaim that admission added for it; empty where a ticket hands its devices over
    resource_claims: Mapping[str, str]  # by their names in the pod; empty for one of a template not made yet
    unknown: tuple[str, ...]  # constraints on its node that Sluice does not evaluate
    is_ignored: bool  # it has the label that excludes it from Sluice
    gates: tuple[str, ...]
    request: str  # text of the request annotation; empty without
    granted: Mapping[str, str]  # the annotations that only Sluice writes
    keeps_node: frozenset[str]  # of the annotations that node autoscalers follow, those that it has, whatever they say
    node: NodeName  # the node that the scheduler chose; empty before that
    pinning: NodePin
    controller: str  # the kind of the owner that recreates it; empty for a bare pod
    owner: str  # the UID of that owner
    has_ended: bool
    has_started: bool
    unschedulable: str  # the scheduler's message about a pod that it cannot place
    condition: PodCondition | None

    @property
    def has_own_claims(self) -> bool:
        """Whether it names ResourceClaims besides the one that admission added."""
        return len(self.resource_claims) > bool(self.pod_claim)

    @property
    def is_left_to_others(self) -> bool:
        """Whether it has none of our marks: neither label nor gate nor slice."""
        return names.LABEL_MANAGED not in self.labels and not self.is_gated and not self.granted

    @property
    def is_gated(self) -> bool:
        return names.GATE in self.gates

    @property
    def others_gates(self) -> tuple[str, ...]:
        """Other scheduling gates; while there are any, ours stays closed."""
        return tuple(gate for gate in self.gates if gate != names.GATE)

    @property
    def declined(self) -> AllocationId | None:
        """The last slice that it declined, by its own annotation."""
        text = self.granted.get(names.GRANTED_DECLINED, "")
        return AllocationId(text) if is_token(text) else None

    @property
    def place(self) -> str:
        return self.node or self.pinning.node


def read_pod(raw: Raw) -> PodView | None:
    """The view of a pod; None for an object without a usable identity."""
    meta, spec, status = mapping_in(raw, "metadata"), mapping_in(raw, "spec"), mapping_in(raw, "status")
    uid = meta.get("uid")
    if not isinstance(uid, str) or not is_token(uid) or not meta.get("name"):
        return None
    annotations = mapping_in(meta, "annotations")
    conditions = {str(each.get("type")): each for each in mappings_in(status, "conditions")}
    scheduled, ours = conditions.get("PodScheduled", {}), conditions.get(names.CONDITION_READY)
    dying = bool(meta.get("deletionTimestamp"))
    generation = counted if isinstance(counted := meta.get("generation"), int) else 0
    owner = next((each for each in mappings_in(meta, "ownerReferences") if each.get("controller")), {})
    return PodView(
        uid=RequestId(uid),
        namespace=str(meta.get("namespace", "")),
        name=str(meta["name"]),
        version=version_of(meta.get("resourceVersion")),
        generation=generation,
        editable=tuple(spec.get(each) for each in _EDITABLE) if not generation else (),
        dying=dying,
        nothing_holds_it=dying and meta.get("deletionGracePeriodSeconds") == 0 and not meta.get("finalizers"),
        labels={str(key): str(text) for key, text in mapping_in(meta, "labels").items()},
        claims=claims_of(str(meta["name"]), spec),
        pod_claim=_pod_claim(spec),
        resource_claims=_resource_claims(spec, status),
        unknown=unknown_demands(spec),
        is_ignored=names.LABEL_IGNORE in mapping_in(meta, "labels"),
        gates=tuple(str(each.get("name")) for each in mappings_in(spec, "schedulingGates")),
        request=str(annotations.get(names.ANNOTATION_REQUEST, "")),
        keeps_node=frozenset(names.KEEPS_NODE.keys() & annotations.keys()),
        granted={key: str(text) for key, text in annotations.items() if names.is_granted(key)},
        node=NodeName(str(spec.get("nodeName") or "")),
        pinning=_pinning(spec),
        controller="" if owner.get("kind") == "Node" else str(owner.get("kind", "")),
        owner="" if owner.get("kind") == "Node" else str(owner.get("uid", "")),
        has_ended=containers_ended(spec, status, dying=dying),
        has_started=any("running" in each or "terminated" in each for each in _states(status)),
        unschedulable=_unschedulable(scheduled),
        condition=PodCondition(*(str(ours.get(key) or "") for key in ("status", "reason", "message")))
        if ours
        else None,
    )


def is_marked(raw: Raw) -> bool:
    """Whether a pod has our gate or our granted annotations. Cheap: called for all pods of a cluster."""
    if mapping_in(mapping_in(raw, "metadata"), "annotations").get(names.GRANTED_ALLOCATION):
        return True
    return any(each.get("name") == names.GATE for each in mappings_in(mapping_in(raw, "spec"), "schedulingGates"))


def uid_of(raw: Raw) -> str:
    """The UID of an object; empty without one."""
    return str(mapping_in(raw, "metadata").get("uid", ""))


def version_of(text: object) -> int:
    """A resourceVersion as a number, 0 if it is not one."""
    return int(text) if isinstance(text, str) and len(text) <= _VERSION_MAX and text.isdecimal() else 0


def node_name_of(node: Raw) -> NodeName:
    return NodeName(str(mapping_in(node, "metadata").get("name", "")))


def containers_ended(spec: Mapping[str, Any], status: Mapping[str, Any], *, dying: bool) -> bool:
    """Whether the kubelet reports that no container of the pod runs, or will run again. Seen on a real kubelet:
    `terminated` of all containers always came after their processes were gone; it is no end while the pod is neither
    done nor terminating, as they are restarted. `phase` alone proves nothing, as others than the kubelet write it too;
    and a container that a done pod never started stays `waiting` forever."""
    done = str(status.get("phase")) in DONE
    states = list(_states(status))
    if any("running" in state for state in states):
        return False
    if done:
        return True
    named = {str(each.get("name")) for key in ("initContainers", "containers") for each in mappings_in(spec, key)}
    terminated = {str(each.get("name")) for each in _statuses(status) if "terminated" in mapping_in(each, "state")}
    return dying and bool(named) and named <= terminated


def _states(status: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return (mapping_in(each, "state") for each in _statuses(status))


def _statuses(status: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    for key in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
        yield from mappings_in(status, key)


def _pod_claim(spec: Mapping[str, Any]) -> str:
    for entry in mappings_in(spec, "resourceClaims"):
        name = str(entry.get("resourceClaimName") or "")
        if entry.get("name") == POD_CLAIM and names.is_claim_name(name):
            return name
    return ""


def _resource_claims(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Mapping[str, str]:
    """Without those of templates for which the claim controller found none necessary, and kinds of later servers."""
    made = {
        str(each.get("name")): str(each.get("resourceClaimName") or "")
        for each in mappings_in(status, "resourceClaimStatuses")
    }
    found = {}
    for entry in mappings_in(spec, "resourceClaims"):
        name, claim = str(entry.get("name")), str(entry.get("resourceClaimName") or "")
        if claim:
            found[name] = claim
        elif entry.get("resourceClaimTemplateName") and made.get(name) != "":
            found[name] = made.get(name, "")
    return found


def _pinning(spec: Mapping[str, Any]) -> NodePin:
    affinity = spec.get("affinity")
    if not isinstance(affinity, dict):
        return NodePin()
    node_affinity = affinity.get("nodeAffinity")
    if not isinstance(node_affinity, dict):
        return NodePin(has_affinity=True)
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not isinstance(required, dict):
        return NodePin(has_affinity=True, has_node_affinity=True)
    return NodePin(True, True, tuple(_named(term) for term in mappings_in(required, "nodeSelectorTerms")))


def _named(term: Mapping[str, Any]) -> str:
    for field in mappings_in(term, "matchFields"):
        values = list(field.get("values") or ())
        if field.get("key") == "metadata.name" and field.get("operator") == "In" and len(values) == 1:
            return str(values[0])
    return ""


def _unschedulable(scheduled: Mapping[str, Any]) -> str:
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return str(scheduled.get("message") or "the scheduler gave no reason")
    return ""
