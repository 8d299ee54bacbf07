"""The installed version of Sluice. For people: nothing may be decided from it."""

import functools


@functools.cache
def sluice_version() -> str:
    """The version, or empty where Sluice runs from a folder without being installed."""
    import importlib.metadata  # noqa: PLC0415 - slow to load, and most processes never say their version

    try:
        return importlib.metadata.version("sluice-gpu")
    except importlib.metadata.PackageNotFoundError:
        return ""
