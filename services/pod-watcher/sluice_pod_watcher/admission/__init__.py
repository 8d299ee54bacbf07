"""
What becomes of a pod at its creation: an AdmissionReview in; a patch, a denial or nothing out.

Pure: no clock, no network, no memory between two reviews. What a pod asks for is understood by the one parser
(`sluice.contracts.request_syntax`), so that a webhook, a folder and `sluice simulate` refuse the same pods in the same
words. Nothing here grants anything: a pod that passes waits behind its gate for what the watcher is told.
"""

from sluice.contracts.admission.asks import Asked, StoredAsk, read_stored
from sluice.contracts.admission.rules import AdmissionRules
from sluice.contracts.admission.shapes import NotAReview
from sluice_pod_watcher.admission.responses import AdmissionResponse
from sluice_pod_watcher.admission.reviewing import review

__all__ = ["AdmissionResponse", "AdmissionRules", "Asked", "NotAReview", "StoredAsk", "read_stored", "review"]
