"""How much one text of manifests may hold, so that no text takes long to read."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ManifestLimits:
    """What is more than this is refused."""

    file_bytes_max: int = 1024 * 1024
    """Of one text. An object in Kubernetes' own store is at most 1.5 MiB."""
    documents_max: int = 1000
    """Documents in one text; items of a List count."""
    nesting_max: int = 64
    """A Pod needs about ten levels."""
    nodes_max: int = 100_000
    """Values in one text, each alias counted as all it stands for (alias bombs)."""
