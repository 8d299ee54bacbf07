"""
The first process of a box: makes its root file system, mounts and loopback, says `ready`, and reaps what is left.

Run by `unshare` in fresh namespaces, with one argument: a JSON object of `Plan`. Imports nothing of the project.
"""

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

WRITTEN_BY_A_KUBELET = {
    "/proc/sys/vm/overcommit_memory": "1",
    "/proc/sys/vm/panic_on_oom": "0",
    "/proc/sys/kernel/panic": "10",
    "/proc/sys/kernel/panic_on_oops": "1",
    "/proc/sys/kernel/keys/root_maxkeys": "1000000",
    "/proc/sys/kernel/keys/root_maxbytes": "25000000",
}
"""Tunables of the whole machine, and what a kubelet sets: it finds them set, so that the machine keeps its own."""


def run(*arguments: str) -> None:
    """Or end with what the command said."""
    ended = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if ended.returncode:
        sys.exit(f"{' '.join(arguments)}: {ended.stdout.strip()}")


def mount_root(plan: dict) -> Path:
    """The machine's files, seen through a layer in memory: what the box writes is gone with it."""
    base = Path(plan["folder"]) / "root"
    base.mkdir(exist_ok=True)
    run("mount", "--make-rprivate", "/")
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(base))
    for name in ("upper", "work", "merged"):
        (base / name).mkdir()
    merged = base / "merged"
    run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={base}/upper,workdir={base}/work", str(merged))
    return merged


def mount_inside(root: Path, plan: dict) -> None:
    """Kernel file systems of the new namespaces, an empty /run and /tmp, and the folders that outlive a reboot."""
    run("mount", "-t", "proc", "proc", f"{root}/proc")
    run("mount", "-t", "sysfs", "sysfs", f"{root}/sys")
    run("mount", "--rbind", "/dev", f"{root}/dev")
    run("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", f"{root}/dev/shm")
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", f"{root}/run")
    run("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", f"{root}/tmp")
    (root / "run/lock").mkdir()
    for inside, outside in plan["kept"].items():
        Path(outside).mkdir(parents=True, exist_ok=True)
        (root / inside.lstrip("/")).mkdir(parents=True, exist_ok=True)
        run("mount", "--bind", outside, f"{root}{inside}")
    for inside, text in plan["files"].items():
        (root / inside.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (root / inside.lstrip("/")).unlink(missing_ok=True)
        (root / inside.lstrip("/")).write_text(text)


def mount_cgroups(root: Path, plan: dict) -> None:
    """The box's own cgroups as the root of what is seen."""
    top = root / "sys/fs/cgroup"
    if plan["unified"]:
        run("mount", "-t", "cgroup2", "cgroup2", str(top))
        controllers = (top / "cgroup.controllers").read_text().split()
        (top / "cgroup.subtree_control").write_text(" ".join(f"+{each}" for each in controllers))
        return
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(top))
    for name, options in plan["hierarchies"].items():
        (top / name).mkdir()
        run("mount", "-t", "cgroup", "-o", options, "cgroup", str(top / name))


def cover_tunables(root: Path) -> None:
    """What a kubelet would set for the whole machine, and an identity of this boot."""
    covers = root / "run/covers"
    covers.mkdir()
    for number, (path, value) in enumerate(
        [*WRITTEN_BY_A_KUBELET.items(), ("/proc/sys/kernel/random/boot_id", str(uuid.uuid4()))]
    ):
        if Path(path).exists():
            (covers / str(number)).write_text(f"{value}\n")
            run("mount", "--bind", str(covers / str(number)), f"{root}{path}")


def change_root(root: Path) -> None:
    """The box's root is the only one; mounts made in it are seen by all in it."""
    (root / "mnt/before").mkdir(parents=True, exist_ok=True)
    os.chdir(root)
    run("pivot_root", ".", "mnt/before")
    os.chroot(".")
    os.chdir("/")
    run("umount", "-l", "/mnt/before")
    run("mount", "--make-rshared", "/")


def main() -> None:
    """Until it is killed: then the kernel ends everything else in its namespaces."""
    plan = json.loads(sys.argv[1])
    root = mount_root(plan)
    mount_inside(root, plan)
    mount_cgroups(root, plan)
    cover_tunables(root)
    change_root(root)
    run("hostname", plan["hostname"])
    run("ip", "link", "set", "lo", "up")
    for key, value in plan["tunables"].items():
        Path("/proc/sys", key).write_text(value)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
