"""Processes in the real cgroups of pods, as a kubelet and its runtime put them there."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

CGROUPS = {"v1": Path("/sys/fs/cgroup/pids"), "v2": Path("/sys/fs/cgroup/unified"), "v2-only": Path("/sys/fs/cgroup")}
WITHIN_S = 60.0
SLEEPS = ("sleep", "600")
IGNORES_TERM = ("sh", "-c", "trap '' TERM; while :; do sleep 1; done")


def names_of(uid: str) -> dict[str, str]:
    """What a pod's cgroup is called, by the driver of its kubelet."""
    return {"cgroupfs": f"burstable/pod{uid}", "systemd": f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"}


class PodCgroups:
    """What was started; all of it is ended, and every cgroup removed, by `close`."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.tops: list[Path] = []

    def start(self, *, version: str, name: str, command: Sequence[str] = SLEEPS) -> subprocess.Popen[bytes]:
        """A process in a cgroup called `name`. Skips where none of this version can be made."""
        base = CGROUPS[version]
        if not (base / "cgroup.procs").exists() or (version != "v1" and not (base / "cgroup.controllers").exists()):
            pytest.skip(f"no cgroup {version} here")
        top = base / f"sluice-test-{os.getpid()}-{id(self)}-{len(self.tops)}"
        cgroup = top / "kubepods" / name
        try:
            cgroup.mkdir(parents=True)
        except OSError as error:
            pytest.skip(f"no cgroup can be made here: {error}")
        self.tops.append(top)
        process = subprocess.Popen(command)
        self.processes.append(process)
        (cgroup / "cgroup.procs").write_text(str(process.pid))
        return process

    def start_anywhere(self, uid: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """A process of a pod, under whichever version this machine has."""
        version = next((one for one in CGROUPS if (CGROUPS[one] / "cgroup.procs").exists()), "v1")
        return self.start(version=version, name=names_of(uid)["systemd"], command=command)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(WITHIN_S)
        for top in self.tops:
            for path in sorted([top, *top.rglob("*")], key=lambda path: -len(path.parts)):
                if path.is_dir():
                    _remove(path)


@contextlib.contextmanager
def pod_cgroups() -> Iterator[PodCgroups]:
    with closing(PodCgroups()) as there:
        yield there


def _remove(cgroup: Path) -> None:
    until = time.monotonic() + WITHIN_S
    while cgroup.exists():
        for left in (cgroup / "cgroup.procs").read_text().split():  # what a killed shell has started
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(left), 9)
        try:
            cgroup.rmdir()
        except OSError:
            assert time.monotonic() < until, f"{cgroup} cannot be removed"
            time.sleep(0.01)
