"""The result of reading one object of a manifest: a pod with its request, a PriorityClass, or why it was skipped."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sluice.contracts.admission.violations import Violation
from sluice.contracts.manifests.cluster_admission import Namespace
from sluice.contracts.messages import NO_NEEDS, Claim, HostNeeds
from sluice.contracts.pod_specs import NO_PRIORITY, PodPriority, PriorityClass, unknown_class, with_priority_class
from sluice.contracts.reasons import Refusal
from sluice.contracts.request_syntax import ContainerRequest, PodRequest


@dataclass(frozen=True, slots=True)
class PodManifest:
    """
    One pod of a text. Neither an `ask` nor a `refusal` means a pod without a request; or, if `skipped`, an object that
    is not a pod and creates none.

    With a request: its annotations and containers as the parser reads them, its node needs, and its priority with that
    of the request applied. `defines` is set for a PriorityClass and for a `skipped` Namespace.
    """

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
    """Warnings about a pod that is accepted."""
    skipped: str = ""
    """Why this object was ignored, in a sentence."""
    urgency: PodPriority = NO_PRIORITY
    defines: PriorityClass | Namespace | None = None
    alternatives: tuple[tuple[Claim, ...], ...] = ()
    """By ResourceClaims: instead of the request's claims, in this order."""
    same_gpu: tuple[tuple[str, ...], ...] = ()
    """By ResourceClaims: containers of its claims whose devices must be on one GPU."""
    by_claim: bool = False
    """Whether it asks by ResourceClaims of its own."""


def with_classes(pods: Iterable[PodManifest]) -> tuple[PodManifest, ...]:
    """The same pods, with the PriorityClasses among them applied; a missing class becomes a warning."""
    listed = tuple(pods)
    classes = [pod.defines for pod in listed if isinstance(pod.defines, PriorityClass)]
    return tuple(_with_classes(pod, classes) if pod.ask is not None else pod for pod in listed)


def _with_classes(pod: PodManifest, classes: Iterable[PriorityClass]) -> PodManifest:
    urgency = with_priority_class(pod.urgency, classes)
    missing = unknown_class(urgency, classes)
    return replace(pod, urgency=urgency, warnings=(*pod.warnings, missing) if missing else pod.warnings)
