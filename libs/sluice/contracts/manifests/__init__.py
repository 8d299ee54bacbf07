"""Read manifests (YAML or JSON, many documents, Lists): the pods in them and their requests, alike for all readers."""

from sluice.contracts.manifests.leased_files import LEASED as LEASED
from sluice.contracts.manifests.leased_files import is_leased as is_leased
from sluice.contracts.manifests.pod_manifest import ClusterAdmission as ClusterAdmission
from sluice.contracts.manifests.pod_manifest import Namespace as Namespace
from sluice.contracts.manifests.pod_manifest import PodManifest as PodManifest
from sluice.contracts.manifests.pod_manifest import with_classes as with_classes
from sluice.contracts.manifests.reader import read_manifests as read_manifests
from sluice.contracts.manifests.reader import too_large as too_large
from sluice.contracts.manifests.resource_claims import asking as asking
from sluice.contracts.manifests.yaml_documents import ManifestLimits as ManifestLimits
