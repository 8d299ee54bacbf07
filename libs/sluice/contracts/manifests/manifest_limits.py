"""Limits of one text of manifests, so that reading it stays fast."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ManifestLimits:
    """Anything above is refused."""

    file_bytes_max: int = 1024 * 1024
    """Of one text. An object in Kubernetes' own store is at most 1.5 MiB."""
    documents_max: int = 1000
    """Documents in one text; items of a List count."""
    nesting_max: int = 64
    """A Pod needs about ten levels."""
    nodes_max: int = 100_000
    """Values in one text, each alias counted in full (alias bombs)."""
