"""
What becomes of a pod at its creation: an AdmissionReview in; a patch, a denial or nothing out.

Pure: no clock, no network, no memory between two reviews. What a pod asks for is understood by the one parser
(`sluice.contracts.request_syntax`), so that a webhook, a folder and `sluice simulate` refuse the same pods in the same
words. Nothing here grants anything: a pod that passes waits behind its gate for what the watcher is told.
"""

from sluice.contracts.admission.config import AdmissionConfig
from sluice.contracts.admission.pod_fields import MalformedReview
from sluice.contracts.admission.stored_request import ResolvedRequest, StoredRequest, read_stored
from sluice_pod_watcher.admission.response import AdmissionResponse
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
