"""The result of reading one object of a manifest: a pod with its request, a PriorityClass, or why it was skipped."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sluice.contracts.admission.violations import Violation
from sluice.contracts.manifests.cluster_admission import Namespace
from sluice.contracts.messages import NO_NEEDS, HostNeeds
from sluice.contracts.pod_specs import NO_PRIORITY, PodPriority, PriorityClass, unknown_class, with_priority_class
from sluice.contracts.reasons import Refusal
from sluice.contracts.request_syntax import ContainerRequest, PodRequest


@dataclass(frozen=True, slots=True)
class PodManifest:
    """
    One pod of a text. Neither an `ask` nor a `refusal` means a pod that asks for nothing; or, where it is `skipped`,
    an object that is no pod and makes none.

    Of a pod that asks: its annotations and containers as the one parser reads them, what it needs of its node, and how
    urgent it is, where what the ask says of that is in already. `defines` is set for a PriorityClass, which asks for
    nothing, and for a Namespace, which is `skipped`.
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
    """All that a cluster would deny the pod for: the refusal, and rules that hold only there."""
    warnings: tuple[str, ...] = ()
    """What a person should know of a pod that is taken as it is."""
    skipped: str = ""
    """Why this object was not looked at, in a sentence."""
    urgency: PodPriority = NO_PRIORITY
    defines: PriorityClass | Namespace | None = None


def with_classes(pods: Iterable[PodManifest]) -> tuple[PodManifest, ...]:
    """The same pods, with what the PriorityClasses among them say; a class that is not among them is warned of."""
    listed = tuple(pods)
    classes = [pod.defines for pod in listed if isinstance(pod.defines, PriorityClass)]
    return tuple(_with_classes(pod, classes) if pod.ask is not None else pod for pod in listed)


def _with_classes(pod: PodManifest, classes: Iterable[PriorityClass]) -> PodManifest:
    urgency = with_priority_class(pod.urgency, classes)
    missing = unknown_class(urgency, classes)
    return replace(pod, urgency=urgency, warnings=(*pod.warnings, missing) if missing else pod.warnings)
