"""The tunables of a folder's pod-watcher, with the reason for each default."""

from dataclasses import dataclass

from sluice.contracts.driver_capabilities import CAPABILITIES
from sluice.contracts.ids import SourceName
from sluice.contracts.manifests import ManifestLimits

DEFAULT_LIMITS = ManifestLimits()
FOLDER = SourceName("folder")


@dataclass(frozen=True, slots=True)
class FolderConfig:
    """Times in seconds of the caller's clock."""

    source: SourceName = FOLDER  # each folder needs its own: a source withdraws what it does not list
    max_gpus_per_node: int = 8  # requests above this are refused: no node has so many GPUs
    driver_capabilities: tuple[str, ...] = CAPABILITIES  # the driver capabilities that a container may choose
    relist_s: float = 5.0  # at least this often, whatever the file system tells; each listing is a heartbeat
    gone_grace_s: float = 1.0
    """How long a pod must be missing, or its file broken, before that counts. Editors that do not replace a file
    atomically move it away or truncate it for some milliseconds."""
    closing_ttl_s: int = 4 * 3600  # time to live of final messages: far above any pause of any process (PROTOCOL W5)
    file_bytes_max: int = DEFAULT_LIMITS.file_bytes_max  # larger manifest files are refused
    documents_max: int = DEFAULT_LIMITS.documents_max  # files with more documents (items of a List count) are refused
    nesting_max: int = DEFAULT_LIMITS.nesting_max  # more deeply nested documents are refused
    nodes_max: int = DEFAULT_LIMITS.nodes_max  # files with more values, each alias counted in full, are refused
