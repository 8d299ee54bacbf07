"""
Review one pod as written: its request, and what a cluster refuses or warns about.

All readers of pods use this package (the webhook, a folder of manifests, `sluice simulate`), so that they give the same
answer. Pure: no clock, no network, no state. Nothing here changes a pod or grants anything.
"""

from sluice.contracts.admission.config import AdmissionConfig as AdmissionConfig
from sluice.contracts.admission.stored_request import ResolvedRequest as ResolvedRequest
from sluice.contracts.admission.stored_request import StoredRequest as StoredRequest
from sluice.contracts.admission.stored_request import read_stored as read_stored
