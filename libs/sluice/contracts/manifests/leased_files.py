"""
Leased manifests: `*.leased.yaml` counts while a process has a lock (flock) on the file.

A command on a slice locks the manifest that requests it, and so do its children: when the last has ended, the request
ends. Only the name is checked here.
"""

LEASED = ".leased.yaml"
"""The extension of such a file."""


def is_leased(name: str) -> bool:
    return name.endswith(LEASED)
