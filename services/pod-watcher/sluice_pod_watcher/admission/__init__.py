"""Review a pod at its creation: an AdmissionReview in; a patch, a denial or nothing out. Pure: no clock, no network, no
state between reviews. `sluice.contracts.request_syntax` parses the request, so that webhook, folder and `sluice
simulate` refuse the same pods with the same messages. Admission grants nothing: a pod that passes waits behind its gate
until the watcher binds it."""

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
