"""
Manifests that somebody must hold: `*.leased.yaml` counts for as long as a process has a lock (flock) on the file.

Whoever runs a command on a slice holds the manifest that asks for it, and so do the command and what it starts. When
the last of them has ended, however it ended, nobody asks any more. Only the name is decided here; who holds a file is
looked at by whoever reads it.
"""

LEASED = ".leased.yaml"
"""How the name of such a file ends."""


def is_leased(name: str) -> bool:
    """Whether a manifest of this name counts only while it is held."""
    return name.endswith(LEASED)
