"""The tunables of the pod-watcher's decisions, with the reason for each default."""

from dataclasses import dataclass

from sluice.contracts.driver_capabilities import CAPABILITIES
from sluice.contracts.ids import SourceName
from sluice.contracts.manifests import ManifestLimits

DEFAULT_LIMITS = ManifestLimits()
FOLDER = SourceName("folder")


@dataclass(frozen=True, slots=True)
class FolderConfig:
    """Times in seconds of the caller's clock."""

    source: SourceName = FOLDER
    """For whom this watcher asks. Two folders need two names: each source withdraws what it does not list."""
    max_gpus_per_node: int = 8
    """What no node with so many GPUs could hold is refused."""
    driver_capabilities: tuple[str, ...] = CAPABILITIES
    """What a container may choose of the driver."""
    relist_s: float = 5.0
    """The folder is listed at least this often, whatever the file system tells; each listing is a heartbeat."""
    gone_grace_s: float = 1.0
    """
    How long a pod must be missing, or its file be broken, before that counts. Editors that do not replace a file in
    one step move it away or truncate it for some milliseconds.
    """
    closing_ttl_s: int = 4 * 3600
    """How long closing words stay on the bus: far above any pause of any process (PROTOCOL W5)."""
    file_bytes_max: int = DEFAULT_LIMITS.file_bytes_max
    """Larger manifest files are refused."""
    documents_max: int = DEFAULT_LIMITS.documents_max
    """More documents in one file (items of a List count) are refused."""
    nesting_max: int = DEFAULT_LIMITS.nesting_max
    """Deeper nested documents are refused."""
    nodes_max: int = DEFAULT_LIMITS.nodes_max
    """More values in one file, each alias counted as all it stands for, are refused."""
