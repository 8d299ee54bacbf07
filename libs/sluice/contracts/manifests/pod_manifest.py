"""The result of reading one object of a manifest: a pod with its request, a PriorityClass, or why it was skipped."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.contracts.admission import AdmissionConfig
from sluice.contracts.admission.violations import Violation
from sluice.contracts.kube.names import DEFAULT_MODES, LABEL_DEFAULT_MODE, LABEL_IGNORE
from sluice.contracts.messages import NO_NEEDS, Claim, HostNeeds
from sluice.contracts.pod_specs import NO_PRIORITY, PodPriority, PriorityClass, unknown_class, with_priority_class
from sluice.contracts.reasons import Refusal
from sluice.contracts.request_syntax import ContainerRequest, PodRequest


@dataclass(frozen=True, slots=True)
class Namespace:
    """The labels of a Namespace among the manifests, as the API server reads them (docs/admission.md)."""

    name: str
    is_ignored: bool = False
    default_mode: str = ""
    """For containers that name none; empty leaves it to the cluster's default."""


@dataclass(frozen=True, slots=True)
class ClusterAdmission:
    """By default, a cluster without any settings."""

    config: AdmissionConfig = field(default_factory=AdmissionConfig)
    namespaces: Mapping[str, Namespace] = field(default_factory=dict)

    def with_namespaces(self, namespaces: Iterable[Namespace]) -> "ClusterAdmission":
        return replace(self, namespaces={**self.namespaces, **{each.name: each for each in namespaces}})

    def exempts(self, namespace: str) -> bool:
        known = self.namespaces.get(namespace)
        return namespace in self.config.exempt_namespaces or (known is not None and known.is_ignored)

    def default_mode(self, namespace: str) -> str:
        known = self.namespaces.get(namespace)
        return (known.default_mode if known is not None else "") or self.config.default_mode


def read_namespace(name: str, labels: Mapping[str, Any]) -> Namespace:
    """The Namespace of that name. An unknown mode is ignored, as by the API server's selectors."""
    mode = labels.get(LABEL_DEFAULT_MODE)
    return Namespace(name, LABEL_IGNORE in labels, mode if isinstance(mode, str) and mode in DEFAULT_MODES else "")


@dataclass(frozen=True, slots=True)
class PodManifest:
    """One pod of a text: with an `ask`, with a `refusal`, or without a request; or an object that is `skipped`."""

    namespace: str
    name: str
    annotations: Mapping[str, object] = field(default_factory=dict)
    containers: tuple[ContainerRequest, ...] = ()
    host: HostNeeds = NO_NEEDS
    labels: Mapping[str, str] = field(default_factory=dict)
    ask: PodRequest | None = None
    refusal: Refusal | None = None
    problems: tuple[Violation, ...] = ()
    """Everything a cluster would deny the pod for: the refusal, and rules that only apply there."""
    warnings: tuple[str, ...] = ()
    skipped: str = ""
    urgency: PodPriority = NO_PRIORITY
    defines: PriorityClass | Namespace | None = None
    alternatives: tuple[tuple[Claim, ...], ...] = ()
    """By ResourceClaims: instead of the request's claims, in this order."""
    same_gpu: tuple[tuple[str, ...], ...] = ()
    """By ResourceClaims: containers of its claims whose devices must be on one GPU."""
    by_claim: bool = False


def with_classes(pods: Iterable[PodManifest]) -> tuple[PodManifest, ...]:
    """The same pods, with the PriorityClasses among them applied; a missing class becomes a warning."""
    listed = tuple(pods)
    classes = [pod.defines for pod in listed if isinstance(pod.defines, PriorityClass)]
    return tuple(_with_classes(pod, classes) if pod.ask is not None else pod for pod in listed)


def _with_classes(pod: PodManifest, classes: Iterable[PriorityClass]) -> PodManifest:
    urgency = with_priority_class(pod.urgency, classes)
    missing = unknown_class(urgency, classes)
    return replace(pod, urgency=urgency, warnings=(*pod.warnings, missing) if missing else pod.warnings)
