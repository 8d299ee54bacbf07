"""Read manifests (YAML or JSON, many documents, Lists): the pods in them and their requests, alike for all readers."""

from sluice.contracts.manifests.pod_manifest import ClusterAdmission as ClusterAdmission
from sluice.contracts.manifests.pod_manifest import Namespace as Namespace
from sluice.contracts.manifests.pod_manifest import PodManifest as PodManifest
from sluice.contracts.manifests.pod_manifest import with_classes as with_classes
from sluice.contracts.manifests.reader import read_manifests as read_manifests
from sluice.contracts.manifests.reader import too_large as too_large
from sluice.contracts.manifests.resource_claims import asking as asking
from sluice.contracts.manifests.yaml_documents import ManifestLimits as ManifestLimits

LEASED = ".leased.yaml"
"""Ends a manifest's name that counts while a command on its slice, or its child, has a lock (flock) on it."""


def is_leased(name: str) -> bool:
    return name.endswith(LEASED)
