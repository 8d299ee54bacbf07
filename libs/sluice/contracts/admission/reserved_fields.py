"""Fields that only Sluice may put on a pod (a copied mark would pass for a grant), and fields that a gated pod may not
have."""

from collections.abc import Iterator

from sluice.contracts.admission.config import AdmissionConfig
from sluice.contracts.admission.environment import may_share
from sluice.contracts.admission.pod_fields import Container, Pod, Spec
from sluice.contracts.admission.violations import Violation, forbidden
from sluice.contracts.kube.names import ANNOTATION_REQUEST, GATE, LABEL_MANAGED, MANAGED, is_granted
from sluice.contracts.messages import Claim

_LEAVE_OUT = "leave it out"


def was_reviewed(pod: Pod) -> bool:
    """Whether the pod has all marks of the first review; if copied, it is reviewed by its stored request."""
    annotations, labels = pod.metadata.annotations or {}, pod.metadata.labels or {}
    return ANNOTATION_REQUEST in annotations and labels.get(LABEL_MANAGED) == MANAGED and has_gate(pod.spec)


def has_gate(spec: Spec) -> bool:
    return any(gate.name == GATE for gate in spec.scheduling_gates or ())


def validate_marks(pod: Pod) -> Iterator[Violation]:
    """Marks of ours on a pod that has not passed the first review."""
    labels = pod.metadata.labels or {}
    request = (pod.metadata.annotations or {}).get(ANNOTATION_REQUEST)
    if request is not None:
        why = "Sluice writes this when the pod is created"
        yield forbidden(f"metadata.annotations[{ANNOTATION_REQUEST}]", request, why, _LEAVE_OUT)
    if LABEL_MANAGED in labels:
        why = "Sluice sets this label on its pods"
        yield forbidden(f"metadata.labels[{LABEL_MANAGED}]", labels[LABEL_MANAGED], why, _LEAVE_OUT)
    if has_gate(pod.spec):
        why = "Sluice sets its gate itself; one set by hand may never be opened"
        yield forbidden("spec.schedulingGates", GATE, why, _LEAVE_OUT)


def validate_granted_annotations(pod: Pod) -> Iterator[Violation]:
    for key, value in (pod.metadata.annotations or {}).items():
        if is_granted(key):
            yield forbidden(f"metadata.annotations[{key}]", value, "Sluice writes this with a grant", _LEAVE_OUT)


def validate_node_name(spec: Spec) -> Iterator[Violation]:
    """A node that is already set: no gate can hold the pod, and its slice would be created elsewhere."""
    if spec.node_name:
        why = "a pod that is already on a node cannot wait for a slice"
        yield forbidden("spec.nodeName", spec.node_name, why, "nodeSelector or node affinity")


def validate_host_namespaces(spec: Spec, claims: list[Claim], config: AdmissionConfig) -> Iterator[Violation]:
    """Host namespaces that show a pod the devices and processes of others."""
    if config.allow_privileged:
        return
    if spec.host_pid:
        why = "a GPU pod that sees the processes of its node can reach the slices of others through them"
        yield forbidden("spec.hostPID", "true", why, "false, or a cluster that allows privileged GPU pods")
    if spec.host_ipc and any(may_share(claim) for claim in claims):
        why = "a pod on a shared GPU could write into the shared memory of its neighbours"
        yield forbidden("spec.hostIPC", "true", why, "false, or an emptyDir with medium Memory at /dev/shm")


def validate_security_context(path: str, container: Container, config: AdmissionConfig) -> Iterator[Violation]:
    context = container.security_context
    if context is not None and context.privileged and not config.allow_privileged:
        why = "a privileged container of a GPU pod sees every GPU of its node"
        field = f"{path}.securityContext.privileged"
        yield forbidden(field, "true", why, "false, or a cluster that allows privileged GPU pods")
