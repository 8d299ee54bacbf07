"""
One pod as somebody wrote it: what it asks for, and what a cluster finds wrong with it or warns of.

Every reader of pods reads them here (the webhook, a folder of manifests, `sluice simulate`), so that they give one
answer in one set of words. Pure: no clock, no network, no memory. Nothing here changes a pod or grants anything.
"""

from sluice.contracts.admission.asks import Asked, StoredAsk, read_stored
from sluice.contracts.admission.rules import AdmissionRules

__all__ = ["AdmissionRules", "Asked", "StoredAsk", "read_stored"]
