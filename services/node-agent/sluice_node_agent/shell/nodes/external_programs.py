"""External programs that the agent runs, found at its start."""

import re
import shutil
import subprocess
from pathlib import Path

from sluice_node_agent.settings import QUOTA_OFF
from sluice_node_agent.shell.nodes.node_backend import NodeBackendError

QUOTA_IN_IMAGE = Path("/opt/sluice/lib/libsluice-quota.so")
"""The time quota's library in our image, if it was built with it (deploy/docker/Dockerfile)."""
TOOLKIT = "nvidia-ctk"
_ANSWER_S = 5.0
_VERSION = re.compile(r"\bversion v?(\d[\w.+~-]*)")
"""In `NVIDIA Container Toolkit CLI version 1.17.4`, the first line of `nvidia-ctk --version`."""


def on_path(name: str) -> Path | None:
    """The absolute path of a program, by its name or path; None when there is none that can be run."""
    found = shutil.which(name)
    return Path(found).absolute() if found else None


def find_program(name: str, setting: str) -> Path:
    """As `on_path`, for a program that a setting names. Raises NodeBackendError, naming the setting."""
    found = on_path(name)
    if found is None:
        raise NodeBackendError(
            f"{setting} is {name!r}, which is no program that can be run; install it or set {setting} to off"
        )
    return found


def quota_library(wanted: str) -> Path | None:
    """
    The client library of the time quota: the one in the settings, or else the image's; None for no time quota.

    Raises NodeBackendError when the one in the settings does not exist.
    """
    if wanted == QUOTA_OFF:
        return None
    if not wanted:
        return QUOTA_IN_IMAGE if QUOTA_IN_IMAGE.is_file() else None
    if not Path(wanted).is_file():
        raise NodeBackendError(
            f"quota_library is {wanted!r}, which is no file; build it (make quota) or say {QUOTA_OFF}"
        )
    return Path(wanted)


def toolkit_version(program: str = TOOLKIT) -> str:
    """The version of NVIDIA's container toolkit; empty when it is missing, or does not answer within 5 s."""
    found = on_path(program)
    if found is None:
        return ""
    try:
        done = subprocess.run(  # noqa: S603 - the path is from PATH, which is the operator's
            [found, "--version"], capture_output=True, timeout=_ANSWER_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = _VERSION.search(done.stdout.decode(errors="replace"))
    return match[1] if match else ""
