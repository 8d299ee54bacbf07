"""
Read one pod as it was written: its request, and what a cluster refuses or warns about.

Every reader of pods uses this package (the webhook, a folder of manifests, `sluice simulate`), so that they give one
answer in one set of words. Pure: no clock, no network, no memory. Nothing here changes a pod or grants anything.
"""

from sluice.contracts.admission.config import AdmissionConfig
from sluice.contracts.admission.stored_request import ResolvedRequest, StoredRequest, read_stored

__all__ = ["AdmissionConfig", "ResolvedRequest", "StoredRequest", "read_stored"]
