"""
Read manifests (YAML or JSON, one document or many, Lists): the pods in them and their requests.

A folder of manifests, a cluster and a simulation all read them here, with the same result.
"""

from sluice.contracts.manifests.leased_files import LEASED, is_leased
from sluice.contracts.manifests.pod_manifest import ClusterAdmission, Namespace, PodManifest, with_classes
from sluice.contracts.manifests.reader import read_manifests, too_large
from sluice.contracts.manifests.resource_claims import asking
from sluice.contracts.manifests.yaml_documents import ManifestLimits

__all__ = [
    "LEASED",
    "ClusterAdmission",
    "ManifestLimits",
    "Namespace",
    "PodManifest",
    "asking",
    "is_leased",
    "read_manifests",
    "too_large",
    "with_classes",
]
