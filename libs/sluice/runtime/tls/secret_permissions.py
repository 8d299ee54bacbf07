"""
Whether a file that holds a secret is its owner's alone, said in the log when it is not.

A warning and not an end: a secret that others could read is known to them already, and a service that does not start
keeps nobody from it. A group may read: that is how a kubelet gives a Secret to a container's user. It reads no file.
"""

import stat
from pathlib import Path

from sluice.runtime import logs

_NOT_FOR_OTHERS = stat.S_IRWXO | stat.S_IWGRP


def warn_if_open(setting: str, path: Path) -> None:
    """Say so where others than owner and group may use the secret in `path`, or others than its owner may change it."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return  # who reads it says why that cannot be
    if mode & _NOT_FOR_OTHERS:
        why = "others may read the secret in it, or change it" if mode & stat.S_IRWXO else "its group may change it"
        logs.get("secrets").warning(
            "a secret is not private", setting=setting, file=str(path), mode=f"{mode:04o}", why=why, cure="chmod 600"
        )
