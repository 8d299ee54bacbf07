"""Where built binaries, images and running clusters lie: outside the tree, so that a clean checkout keeps them."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path


def cache_folder() -> Path:
    """SLUICE_CLUSTER_CACHE, or a folder of ours in the user's cache."""
    named = os.environ.get("SLUICE_CLUSTER_CACHE")
    if named:
        return Path(named).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "sluice-cluster"


def key_of(parts: Iterable[bytes]) -> str:
    """A short name for what these bytes make: equal inputs, equal name."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8) + part)
    return digest.hexdigest()[:16]
