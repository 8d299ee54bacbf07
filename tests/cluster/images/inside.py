"""
Runs one program in a folder as its root: `inside.py JSON`, in namespaces of its own, so that all mounts end with it.

JSON: `root`, `workdir`, `user` (UID:GID), `env`, `words`, and `mounts` as pairs of a file here and its path there. A
mount whose path is not there is left out: no step leaves a trace of it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_MOUNT_S = 20


def main(argument: str) -> int:
    """Becomes the program; returns 127 where it is not there."""
    task = json.loads(argument)
    root = Path(task["root"])
    if (root / "proc").is_dir():
        mount("-t", "proc", "proc", root / "proc")
    if (root / "dev").is_dir():
        mount("-t", "tmpfs", "-o", "mode=755,size=1m", "tmpfs", root / "dev")
        for name in DEVICES:
            (root / "dev" / name).touch()
            mount("--bind", f"/dev/{name}", root / "dev" / name)
    for source, target in task["mounts"]:
        if (root / target.lstrip("/")).exists():
            mount("--bind", source, root / target.lstrip("/"))
    os.chroot(root)
    os.chdir(task["workdir"])
    os.umask(0o022)
    uid, _, gid = task["user"].partition(":")
    os.setgroups([])
    os.setgid(int(gid or 0))
    os.setuid(int(uid or 0))
    try:
        os.execvpe(task["words"][0], task["words"], task["env"])
    except FileNotFoundError:
        sys.stderr.write(f"the image has no program {task['words'][0]}\n")
    return 127


def mount(*words: str | Path) -> None:
    subprocess.run(["mount", *words], check=True, timeout=_MOUNT_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
