"""Data read from a cluster: kinds of objects, and the names that deploy/kubernetes installs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sluice.contracts.kube.names import CRD_GPUS, CSI_DRIVER, LABEL_MANAGED
from sluice_console.core.doctor.kube_objects import Object, at, by_name

SYSTEM = "sluice-system"
WEBHOOK = "sluice"
POLICIES = ("sluice-keep", "sluice-no-side-door", "sluice-left-alone", "sluice-bindings")
ROLES = ("sluice-pod-watcher", "sluice-webhook")
WATCHER = "sluice-pod-watcher"
DEPLOYMENTS = ("sluice-allocator", "sluice-inventory", WATCHER, "sluice-webhook")
BROKER = "sluice-nats"
APPLY = "kubectl apply -k, with your overlay (docs/install.md)"


@dataclass(frozen=True, slots=True)
class AdmissionTrial:
    """The API server's answer to the dry run of a pod that asks for a GPU.

    `problem` is empty if the pod would be created; `pod` is then the result."""

    namespace: str
    problem: str = ""
    pod: Object = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedCluster:
    """All data that was read. Kinds that could not be read are not in `lists`; `problems` says why.

    `now_s` is the local clock in unix seconds."""

    where: str
    lists: Mapping[str, Sequence[Object]]
    problems: Mapping[str, str] = field(default_factory=dict)
    now_s: float
    trial: AdmissionTrial | None = None

    def of(self, kind: str) -> Sequence[Object] | None:
        """The objects of a kind; None if they could not be read."""
        return self.lists.get(kind)


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """One kind to read: its resource, the `kind` of its objects, and options of kubectl that select them."""

    resource: str
    kind: str
    which: tuple[str, ...] = ()


_IN_SYSTEM = ("--namespace", SYSTEM)
_IN_NODES = ("--namespace", "sluice-nodes")
_OF_AGENTS = ("--selector", "app.kubernetes.io/part-of=sluice,app.kubernetes.io/component=node-agent")
_EVERYWHERE = ("--all-namespaces",)
_REGISTRATION = "admissionregistration.k8s.io"
KINDS: Mapping[str, ResourceKind] = {
    "namespaces": ResourceKind("namespaces", "Namespace"),
    "nodes": ResourceKind("nodes", "Node"),
    "csinodes": ResourceKind("csinodes.storage.k8s.io", "CSINode"),
    "webhooks": ResourceKind(f"mutatingwebhookconfigurations.{_REGISTRATION}", "MutatingWebhookConfiguration"),
    "policies": ResourceKind(f"validatingadmissionpolicies.{_REGISTRATION}", "ValidatingAdmissionPolicy"),
    "bindings": ResourceKind(f"validatingadmissionpolicybindings.{_REGISTRATION}", "ValidatingAdmissionPolicyBinding"),
    "drivers": ResourceKind("csidrivers.storage.k8s.io", "CSIDriver"),
    "definitions": ResourceKind("customresourcedefinitions.apiextensions.k8s.io", "CustomResourceDefinition"),
    "roles": ResourceKind("clusterroles.rbac.authorization.k8s.io", "ClusterRole"),
    "rolebindings": ResourceKind("clusterrolebindings.rbac.authorization.k8s.io", "ClusterRoleBinding"),
    "runtimes": ResourceKind("runtimeclasses.node.k8s.io", "RuntimeClass"),
    "deployments": ResourceKind("deployments.apps", "Deployment", _IN_SYSTEM),
    "brokers": ResourceKind("statefulsets.apps", "StatefulSet", _IN_SYSTEM),
    "claims": ResourceKind("persistentvolumeclaims", "PersistentVolumeClaim", _IN_SYSTEM),
    "classes": ResourceKind("storageclasses.storage.k8s.io", "StorageClass"),
    "daemonsets": ResourceKind("daemonsets.apps", "DaemonSet", _IN_NODES),
    "agents": ResourceKind("pods", "Pod", (*_IN_NODES, *_OF_AGENTS)),
    "waiting": ResourceKind("pods", "Pod", (*_EVERYWHERE, "--field-selector", "status.phase=Pending")),
    "managed": ResourceKind("pods", "Pod", (*_EVERYWHERE, "--selector", LABEL_MANAGED)),
    "quotas": ResourceKind("resourcequotas", "ResourceQuota", _EVERYWHERE),
    "limits": ResourceKind("limitranges", "LimitRange", _EVERYWHERE),
}
"""Kinds to read, by our name."""


def groups() -> list[tuple[str, ...]]:
    """Our names of the kinds that one call reads."""
    by_which: dict[tuple[str, ...], list[str]] = {}
    for ours, kind in KINDS.items():
        by_which.setdefault(kind.which, []).append(ours)
    return [tuple(names) for names in by_which.values()]


def is_installed(seen: ObservedCluster) -> bool:
    """Whether any part of Sluice is present. Unreadable kinds count as present."""
    return any(
        objects is None or wanted in by_name(objects)
        for objects, wanted in (
            (seen.of("webhooks"), WEBHOOK),
            (seen.of("drivers"), CSI_DRIVER),
            (seen.of("definitions"), CRD_GPUS),
            (seen.of("namespaces"), SYSTEM),
        )
    )


def replicas(of: Object) -> tuple[int, int]:
    """Ready and desired replicas."""
    wanted = at(of, "spec", "replicas")
    return int(at(of, "status", "readyReplicas") or 0), 1 if wanted is None else int(wanted)
