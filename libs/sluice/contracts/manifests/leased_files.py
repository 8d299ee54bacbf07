"""
Leased manifests: `*.leased.yaml` counts while a process has a lock (flock) on the file.

The process that runs a command on a slice locks the manifest that requests it, and so do the command and its children.
When the last of them has ended, however it ended, the request ends. Only the name is checked here; the reader of the
folder checks the lock.
"""

LEASED = ".leased.yaml"
"""The extension of such a file."""


def is_leased(name: str) -> bool:
    return name.endswith(LEASED)
