"""Which version of Sluice this process runs, as it was installed. For people: nothing may be decided from it."""

import functools
import importlib.metadata

DISTRIBUTION = "sluice-gpu"


@functools.cache
def release() -> str:
    """The version, or empty where Sluice runs from a folder without having been installed."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return ""
