"""Other programs, each with a limit of time; what they started ends with them."""

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.images.errors import ImageError

CONTAINED = (
    "setpriv", "--pdeathsig", "KILL",
    "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
)  # fmt: skip
"""Before a program's arguments: its processes and mounts end with it, and it with us, also by SIGKILL. Needs root."""
_SHOWN_LINES = 25


def run(
    words: Sequence[str | Path],
    *,
    limit_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: bytes | None = None,
) -> str:
    """Run a program; returns what it wrote, both streams. Raises ImageError when it fails or takes longer."""
    words = [str(word) for word in words]
    shown = without_passwords(" ".join(words[len(CONTAINED) if tuple(words[: len(CONTAINED)]) == CONTAINED else 0 :]))
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise ImageError(f"there is no program {words[0]} on PATH") from None
    try:
        written, _ = process.communicate(stdin, timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise ImageError(f"`{shown}` took longer than {limit_s:.0f} s") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
    text = without_passwords(written.decode(errors="replace"))
    if process.returncode != 0:
        tail = "\n".join(text.splitlines()[-_SHOWN_LINES:])
        raise ImageError(f"`{shown}` ended with {process.returncode}:\n{tail}")
    return text


def without_passwords(text: str) -> str:
    """A text whose addresses name no user and no password."""
    return re.sub(r"://[^/\s@]+@", "://...@", text)
