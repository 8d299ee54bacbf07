"""
A box: namespaces and cgroups that stand for one machine, and the processes in them.

Killing its first process ends everything in it, and its mounts and network with it. Nothing is kept but `Box.folder`.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cluster.harness import cgroups

READY_S = 30.0
ENDED_S = 15.0
INIT = Path(__file__).with_name("box_init.py")


class BoxError(RuntimeError):
    """A box or a process in it did not start, or did not end."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the machine, known by its number and the time of its start: numbers are used again."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "Process":
        """Raises BoxError where there is none."""
        started = _started(pid)
        if started is None:
            raise BoxError(f"process {pid} has ended")
        return cls(pid, started)

    def is_alive(self) -> bool:
        """Whether it is there and no zombie."""
        return _started(self.pid) == self.started

    def kill(self, number: int) -> None:
        """A signal, where it is still there."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def launch(command: Sequence[str], log: Path) -> Process:
    """Start a process that outlives this one and writes to the end of `log`. Raises BoxError where it ends at once."""
    pids = log.with_suffix(".pid")
    pids.unlink(missing_ok=True)
    script = f"echo $$ > {shlex.quote(str(pids))} && exec {shlex.join(command)}"
    with log.open("ab") as out:
        subprocess.run(
            ["setsid", "--fork", "sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            timeout=READY_S,
            check=True,
            cwd="/",
        )
    end = time.monotonic() + READY_S
    while not pids.exists() or not pids.read_text().endswith("\n"):
        if time.monotonic() > end:
            raise BoxError(f"{command[0]} did not start")
        time.sleep(0.005)
    return Process.of(int(pids.read_text()))


@dataclass(slots=True)
class Box:
    """
    One machine of a cluster.

    folder: its logs, and everything that outlives a reboot. kept: path inside -> folder outside. files: path inside
    -> text. tunables: below /proc/sys, of its own network.
    """

    name: str
    identity: str
    folder: Path
    kept: Mapping[str, Path]
    files: Mapping[str, str] = field(default_factory=dict)
    tunables: Mapping[str, str] = field(default_factory=dict)
    init: Process | None = None
    processes: dict[str, Process] = field(default_factory=dict)

    def start(self) -> None:
        """Make the namespaces. Raises BoxError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        cgroups.make(self.identity)
        plan = {
            "folder": str(self.folder),
            "hostname": self.name,
            "kept": {inside: str(outside) for inside, outside in self.kept.items()},
            "files": dict(self.files),
            "tunables": dict(self.tunables),
            "unified": cgroups.is_unified(),
            "hierarchies": cgroups.hierarchies(),
        }
        spaces = ["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child"]
        command = shlex.join([*spaces, sys.executable, str(INIT), json.dumps(plan)])
        log = self.folder / "init.log"
        log.unlink(missing_ok=True)
        outer = launch(["sh", "-c", f"{cgroups.entering(self.identity)} && exec {command}"], log)
        end = time.monotonic() + READY_S
        while "ready" not in (said := log.read_text()):
            if not outer.is_alive() or time.monotonic() > end:
                outer.kill(signal.SIGKILL)
                raise BoxError(f"{self.name} did not start: {said.strip() or f'nothing said in {READY_S:.0f} s'}")
            time.sleep(0.02)
        self.init = Process.of(_only_child(outer.pid))

    @property
    def pid(self) -> int:
        """Of its first process, as the machine counts. Raises BoxError while it is not up."""
        if self.init is None or not self.init.is_alive():
            raise BoxError(f"{self.name} is not up")
        return self.init.pid

    def command(self, arguments: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> list[str]:
        """What to run on the machine, so that these arguments run inside."""
        inside = shlex.join(
            [
                "nsenter",
                f"--target={self.pid}",
                "--mount",
                "--net",
                "--pid",
                "--uts",
                "--ipc",
                "--cgroup",
                "--wdns=/",
                "--",
            ]
        )
        setting = ["env", *(f"{name}={value}" for name, value in (environment or {}).items())] if environment else []
        return [
            "sh",
            "-c",
            f"{cgroups.entering(self.identity)} && exec {inside} {shlex.join([*setting, *map(str, arguments)])}",
        ]

    def run(
        self, *arguments: str | Path, timeout_s: float = 60.0, check: bool = True, stdin: Path | None = None
    ) -> str:
        """What a command inside printed. Raises BoxError with it where it fails or takes too long."""
        try:
            with (stdin or Path(os.devnull)).open("rb") as given:
                ended = subprocess.run(
                    self.command(arguments),
                    stdin=given,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    timeout=timeout_s,
                    check=False,
                    cwd="/",
                )
        except subprocess.TimeoutExpired:
            raise BoxError(
                f"{self.name}: {shlex.join(map(str, arguments))} took longer than {timeout_s:.0f} s"
            ) from None
        said = ended.stdout.decode(errors="replace")
        if check and ended.returncode:
            raise BoxError(
                f"{self.name}: {shlex.join(map(str, arguments))} ended with {ended.returncode}: {said.strip()[-2000:]}"
            )
        return said

    def spawn(self, name: str, arguments: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
        """Start a process that stays; it writes to NAME.log."""
        outer = launch(self.command(arguments, environment), self.folder / f"{name}.log")
        end = time.monotonic() + READY_S
        while True:
            inner = _children(outer.pid)
            if inner and (started := _started(inner[0])) is not None:
                break
            if not outer.is_alive() or time.monotonic() > end:
                raise BoxError(f"{self.name}: {name} did not start:\n{self.log(name)}")
            time.sleep(0.01)
        self.processes[name] = Process(inner[0], started)

    def end(self, name: str, *, number: int = signal.SIGTERM, within_s: float = ENDED_S) -> None:
        """End one process, by force where it takes too long; nothing where it has ended."""
        process = self.processes.pop(name, None)
        if process is None:
            return
        for each in (number, signal.SIGKILL):
            process.kill(each)
            end = time.monotonic() + within_s
            while process.is_alive() and time.monotonic() < end:
                time.sleep(0.02)
        if process.is_alive():
            raise BoxError(f"{self.name}: {name} ({process.pid}) does not end")

    def hand_link(self, link: str, other: "Box") -> None:
        """Move a network link into another box."""
        # In this box's network and the machine's processes: no box can name another's.
        command = ["nsenter", f"--target={self.pid}", "--net", "ip", "link", "set", link, "netns", str(other.pid)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=READY_S, check=False)
        if ended.returncode:
            raise BoxError(f"{link} cannot be moved into {other.name}: {ended.stderr.strip()}")

    def log(self, name: str, lines: int = 20) -> str:
        """The end of what a process wrote."""
        path = self.folder / f"{name}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""

    def kill(self) -> None:
        """Pull the plug: nothing inside gets a signal, and no namespace, mount or cgroup is left."""
        if self.init is not None:
            self.init.kill(signal.SIGKILL)
            end = time.monotonic() + ENDED_S
            while self.init.is_alive():
                if time.monotonic() > end:
                    raise BoxError(f"{self.name} does not end")
                time.sleep(0.02)
        self.init = None
        self.processes.clear()
        cgroups.remove(self.identity)


def _started(pid: int) -> int | None:
    """None once all its threads have ended: its ports are taken until then, although the first may be a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        is_last = len([*Path(f"/proc/{pid}/task").iterdir()]) <= 1
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" and is_last else int(fields[19])


def _children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _only_child(pid: int) -> int:
    children = _children(pid)
    if len(children) != 1:
        raise BoxError(f"unshare has {len(children)} children")
    return children[0]
