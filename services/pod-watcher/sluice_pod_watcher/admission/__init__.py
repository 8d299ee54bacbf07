"""Review a pod at its creation: an AdmissionReview in; a patch, a denial or nothing out. Pure. It parses requests as
the folder does (`sluice.contracts.request_syntax`), and grants nothing: the watcher opens the gate."""

from sluice.contracts.admission.config import AdmissionConfig
from sluice.contracts.admission.pod_fields import MalformedReview
from sluice.contracts.admission.stored_request import ResolvedRequest, StoredRequest, read_stored
from sluice_pod_watcher.admission.mutate import AdmissionResponse
from sluice_pod_watcher.admission.review import review_pod

__all__ = [
    "AdmissionConfig",
    "AdmissionResponse",
    "MalformedReview",
    "ResolvedRequest",
    "StoredRequest",
    "read_stored",
    "review_pod",
]
