"""
Warn in the log when a file with a secret is readable by others.

A warning, not an error: a readable secret has leaked already, and a service that does not start changes nothing about
it. The group may read: that is how a kubelet gives a Secret to a container's user. The file itself is not read.
"""

import stat
from pathlib import Path

from sluice.runtime import logs

_NOT_FOR_OTHERS = stat.S_IRWXO | stat.S_IWGRP


def warn_if_open(setting: str, path: Path) -> None:
    """Warn when others than owner and group may read the secret in `path`, or others than its owner may change it."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return  # its reader reports the error
    if mode & _NOT_FOR_OTHERS:
        why = "others may read the secret in it, or change it" if mode & stat.S_IRWXO else "its group may change it"
        logs.get("secrets").warning(
            "a secret is not private", setting=setting, file=str(path), mode=f"{mode:04o}", why=why, cure="chmod 600"
        )
