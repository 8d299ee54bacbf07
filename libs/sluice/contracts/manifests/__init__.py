"""
Manifests as people write them (YAML or JSON, one document or many, Lists): the pods in them and what they ask for.

Whoever has a manifest reads it here, so that a folder of them, a cluster and a question are understood alike.
"""

from sluice.contracts.manifests.clusters import Cluster, Namespace
from sluice.contracts.manifests.leased import LEASED, is_leased
from sluice.contracts.manifests.limits import ManifestLimits
from sluice.contracts.manifests.pods import PodManifest, with_classes
from sluice.contracts.manifests.reading import read_manifests, too_large

__all__ = [
    "LEASED",
    "Cluster",
    "ManifestLimits",
    "Namespace",
    "PodManifest",
    "is_leased",
    "read_manifests",
    "too_large",
    "with_classes",
]
