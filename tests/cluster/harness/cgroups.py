"""A box's own cgroups, of whichever version the machine has: made before it starts, removed after its end."""

import contextlib
import os
import signal
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
REMOVED_S = 20.0
"""Until every process of a killed box has left its cgroups."""


def is_unified() -> bool:
    """Whether the machine has cgroup v2 alone."""
    return (ROOT / "cgroup.controllers").exists()


def hierarchies() -> dict[str, str]:
    """Folder below /sys/fs/cgroup -> options of its mount: one for each v1 hierarchy, empty for v2."""
    found: dict[str, str] = {}
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup" and Path(where).parent == ROOT:
            kept = [
                each
                for each in options.split(",")
                if each not in ("rw", "ro", "relatime", "nosuid", "nodev", "noexec", "xattr")
            ]
            found[Path(where).name] = ",".join(
                ["none", *kept] if any(each.startswith("name=") for each in kept) else kept
            )
    return found


def why_closed() -> str | None:
    """Why no box can have cgroups here, or None."""
    if not is_unified() and not hierarchies():
        return f"no cgroups below {ROOT}"
    tried = f"sluice-tried-{os.getpid()}"
    try:
        for folder in folders(tried):
            folder.mkdir()
            folder.rmdir()
    except OSError as error:
        return f"no cgroup can be made here: {error}"
    return None


def folders(name: str) -> list[Path]:
    """Of the box of this name."""
    if is_unified():
        return [ROOT / name]
    return [ROOT / hierarchy / name for hierarchy in hierarchies()]


def make(name: str) -> None:
    """An empty cgroup in every hierarchy."""
    for folder in folders(name):
        folder.mkdir(exist_ok=True)
        _entrance(folder).mkdir(exist_ok=True)
        for inherited in ("cpuset.cpus", "cpuset.mems"):
            if not is_unified() and (folder / inherited).exists():
                (folder / inherited).write_text((folder.parent / inherited).read_text())


def entering(name: str) -> str:
    """A shell command by which its process enters them; what it starts stays in them."""
    return " && ".join(f"echo $$ > {_entrance(folder)}/cgroup.procs" for folder in folders(name))


def _entrance(folder: Path) -> Path:
    """With cgroup v2 no process may be where controllers are handed down, which is the root of what a box sees."""
    return folder / "init" if is_unified() else folder


def remove(name: str) -> None:
    """
    Kill what still runs in them, and remove them from the leaves up.

    Raises TimeoutError where a process does not end.
    """
    end = time.monotonic() + REMOVED_S
    while left := [folder for folder in folders(name) if folder.exists()]:
        if time.monotonic() > end:
            raise TimeoutError(f"cgroups of {name} cannot be removed: {', '.join(map(str, left))}")
        for folder in left:
            for path, _, _ in os.walk(folder, topdown=False):
                with contextlib.suppress(OSError):
                    for pid in Path(path, "cgroup.procs").read_text().split():
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(int(pid), signal.SIGKILL)
                with contextlib.suppress(OSError):
                    Path(path).rmdir()
        time.sleep(0.05)
