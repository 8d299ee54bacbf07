"""
Manifests as people write them (YAML or JSON, one document or many, Lists): the pods in them and what they ask for.

Whoever has a manifest reads it here, so that a folder of them, a cluster and a question are understood alike.
"""

from sluice.contracts.manifests.cluster_admission import ClusterAdmission, Namespace
from sluice.contracts.manifests.leased_files import LEASED, is_leased
from sluice.contracts.manifests.manifest_limits import ManifestLimits
from sluice.contracts.manifests.pod_manifest import PodManifest, with_classes
from sluice.contracts.manifests.reader import read_manifests, too_large

__all__ = [
    "LEASED",
    "ClusterAdmission",
    "ManifestLimits",
    "Namespace",
    "PodManifest",
    "is_leased",
    "read_manifests",
    "too_large",
    "with_classes",
]
