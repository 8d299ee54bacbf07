"""Review one pod as written, alike for all readers of pods: its request, and what a cluster refuses or warns about."""

from sluice.contracts.admission.config import AdmissionConfig as AdmissionConfig
from sluice.contracts.admission.stored_request import ResolvedRequest as ResolvedRequest
from sluice.contracts.admission.stored_request import StoredRequest as StoredRequest
from sluice.contracts.admission.stored_request import read_stored as read_stored
