"""
Private name spaces of the kernel for a run, where they are allowed: networks that can be cut, disks that fill up.

A run enters them by restarting itself under `unshare`; when its last process ends, the kernel takes all of it away.
Without the right to that (it needs root, or user name spaces) a run does without: `kinds_without` says what it leaves
out, and a full disk is then a limit on the size of one process's files.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from factories.processes import tied

INSIDE = "SLUICE_TEST_NAME_SPACES"
"""Marks the second start as the second; tests' own, no setting of a service."""
WAYS = (("--mount", "--net"), ("--user", "--map-root-user", "--mount", "--net"))
NEEDED = ("unshare", "nsenter", "mount", "umount", "ip", "sleep")
WITHIN_S = 10.0
NETWORK = "10.99.0"
"""Visible only inside the name space."""
DISK_BYTES = 8 * 1024 * 1024
"""Enough for a journal and its rewriting, and little to fill up."""


def enter(arguments: Sequence[str]) -> None:
    """Restart this program in name spaces of its own; returns where that is not allowed, or was done."""
    if INSIDE in os.environ:
        _run("ip", "link", "set", "lo", "up")
        return
    if any(shutil.which(program) is None for program in NEEDED):
        return
    for way in WAYS:
        tried = subprocess.run(["unshare", *way, "true"], capture_output=True, timeout=WITHIN_S, check=False)
        if tried.returncode == 0:
            command = ["unshare", *way, sys.executable, str(Path(__file__).parent), *arguments]
            os.execvpe(command[0], command, os.environ | {INSIDE: "1"})


def entered() -> bool:
    """Whether this run has name spaces of its own."""
    return INSIDE in os.environ


def kinds_without() -> tuple[str, ...]:
    """The kinds of faults that cannot be done without them."""
    return () if entered() else ("server-cut",)


@contextmanager
def small_disks(folders: Sequence[Path]) -> Iterator[None]:
    """A small file system of its own in each of the folders. What is in it in the end is left in a copy beside it."""
    mounted: list[Path] = []
    try:
        for folder in folders:
            folder.mkdir(parents=True)
            _run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "none", str(folder))
            mounted.append(folder)
        yield
    finally:
        for folder in mounted:
            shutil.copytree(folder, folder.with_name(f"{folder.name}.left"), ignore=shutil.ignore_patterns("*.sock"))
            _run("umount", "--lazy", str(folder))


class Islands:
    """Networks of their own for some servers, each reachable by a cable that can be cut, as a context."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._holders: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        _run("ip", "link", "add", "bridge", "type", "bridge")
        _run("ip", "address", "add", f"{NETWORK}.254/24", "dev", "bridge")
        _run("ip", "link", "set", "bridge", "up")
        for number in range(self._count):
            self._lay(number)
        return self

    def __exit__(self, *_: object) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait(WITHIN_S)
        _run("ip", "link", "delete", "bridge")

    def _lay(self, number: int) -> None:
        holder = subprocess.Popen(tied("unshare", "--net", "sleep", "infinity"), stdin=subprocess.DEVNULL)
        self._holders.append(holder)
        _until_apart(holder.pid)
        near, far = f"near{number}", f"far{number}"
        _run("ip", "link", "add", near, "type", "veth", "peer", "name", far)
        _run("ip", "link", "set", far, "netns", str(holder.pid))
        _run("ip", "link", "set", near, "master", "bridge")
        _run("ip", "link", "set", near, "up")
        _run(*self.inside(number), "ip", "link", "set", "lo", "up")
        _run(*self.inside(number), "ip", "address", "add", f"{self.address(number)}/24", "dev", far)
        _run(*self.inside(number), "ip", "link", "set", far, "up")

    def inside(self, number: int) -> tuple[str, ...]:
        """The arguments before a command that is to run there."""
        return ("nsenter", f"--net=/proc/{self._holders[number].pid}/ns/net")

    @staticmethod
    def address(number: int) -> str:
        return f"{NETWORK}.{number + 1}"

    @contextmanager
    def cut(self, number: int) -> Iterator[None]:
        """The cable carries nothing meanwhile, without any error."""
        _run("ip", "link", "set", f"near{number}", "down")
        try:
            yield
        finally:
            _run("ip", "link", "set", f"near{number}", "up")


def _until_apart(pid: int) -> None:
    """Wait until that process has left our network."""
    own = Path("/proc/self/ns/net").readlink()
    for _ in range(int(WITHIN_S / 0.01)):
        if Path(f"/proc/{pid}/ns/net").readlink() != own:
            return
        time.sleep(0.01)
    raise TimeoutError(f"process {pid} has no network of its own after {WITHIN_S:g} s")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
