"""
The system of a run: the named one, the running `sluice up` of this user, or a new one for this run.

A new system ends with its last user; each user locks its file `used`, so it cannot end between being found and being
used.
"""

import asyncio
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sluice.contracts.bus.codec import NOT_READABLE
from sluice_console.shell.examples import examples_dir
from sluice_console.shell.live.running_systems import (
    SERVER_VARIABLE,
    NothingRunningError,
    RunningSystem,
    find_running,
    running_at,
    this_node,
)
from sluice_console.shell.process.children import last_words
from sluice_console.shell.process.data_directory import temporary_directory
from sluice_console.shell.run.embedded_system import DATA, LOG, PODS, USED
from sluice_console.shell.run.errors import RunError

STARTED_WITHIN_S = 60.0
LOOK_EVERY_S = 0.05
ATTEMPTS_MAX = 3
"""Two runs that start at once may both find none; the second then uses the first one's."""
STOPPED_WITHIN_S = 45.0
"""A system on real GPUs waits for slices to be gone, for 30 s at most."""
GPUS_OF_THIS_MACHINE = Path("/proc/driver/nvidia/gpus")
"""Folder with an entry per GPU if NVIDIA's driver is loaded."""


_OTHER_GPUS = "the running `sluice up` has {what} GPUs: leave out --simulated and --real to use it, or stop it first"


@dataclass(slots=True)
class TargetSystem:
    """The bus, the folder of manifests, and the node of the slice (empty: any)."""

    url: str
    pods_dir: Path
    node: str = ""
    nodes: int = 0
    """Number of nodes, now and later, for a system of this machine alone; 0 if others may join."""
    used: int | None = None
    """The lock that keeps a system alive that a run has started."""
    process: "subprocess.Popen[bytes] | None" = None
    """The system's process, if this run has started it."""
    temporary: Path | None = None
    """Its folder, if made by this run; a system that has served removes it itself."""

    @property
    def locks(self) -> tuple[int, ...]:
        """Descriptors that the command inherits."""
        return () if self.used is None else (self.used,)

    @property
    def children(self) -> frozenset[int]:
        """Our processes that do not belong to the command."""
        return frozenset() if self.process is None else frozenset({self.process.pid})

    async def leave(self) -> None:
        """Release the system; one without other users is waited for until it has stopped (bounded)."""
        if self.used is None:
            return
        used, self.used = self.used, None
        os.close(used)
        if self.process is not None and not is_used(self.pods_dir.parent / USED):
            try:
                await asyncio.to_thread(self.process.wait, STOPPED_WITHIN_S)
            except subprocess.TimeoutExpired:
                return  # it waits for unkillable processes, and stops by itself
            if self.temporary is not None:
                shutil.rmtree(self.temporary, ignore_errors=True)


def named(url: str, pods_dir: Path | None, node: str) -> TargetSystem:
    """The system at a NATS server. Raises RunError if its pod-watcher's folder is unknown."""
    if pods_dir is not None:
        if not os.path.isdir(pods_dir):  # noqa: PTH112 - `is_dir` raises where it may not look
            raise RunError(f"--pods {pods_dir} is no folder; name the one that the pod-watcher of this machine reads")
        return TargetSystem(url, pods_dir.resolve(), node or this_node())
    running = running_at(url)
    return (_joined(running, node) if running is not None else None) or _unknown(url)


def _unknown(url: str) -> TargetSystem:
    raise RunError(
        f"no `sluice up` of this user runs with {url}; name the folder that the pod-watcher of this machine reads by "
        f"--pods, or leave out --server and {SERVER_VARIABLE} to start a system for this run"
    )


async def found_or_started(node: str, *, simulated: bool | None, say: Callable[[str], None]) -> TargetSystem:
    """The running system of this user, or a new one. Raises RunError if it cannot be started."""
    error = RunError("no system could be used or started")
    for _ in range(ATTEMPTS_MAX):
        try:
            running = find_running()
        except NothingRunningError:
            pass
        else:
            if simulated not in {None, running.simulated}:
                raise RunError(_OTHER_GPUS.format(what="simulated" if running.simulated else "real"))
            joined = _joined(running, node)
            if joined is not None:
                return joined
        try:
            if simulated is None and _has_gpus():
                _check_nobody_hands_them_out()
            return await _started(node, simulated=not _has_gpus() if simulated is None else simulated, say=say)
        except RunError as why:
            error = why
            if "already uses the data directory" not in str(why):
                break
    raise error


def _joined(running: RunningSystem, node: str) -> TargetSystem | None:
    """Use a running system; None if it is about to end."""
    where = node or ("" if running.simulated else running.nodes[0])
    if not running.used_by:
        return TargetSystem(running.nats_url, Path(running.pods_dir), where, len(running.nodes))
    try:
        used = os.open(running.used_by, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    if not _shared(used):
        os.close(used)
        return None
    return TargetSystem(running.nats_url, Path(running.pods_dir), where, len(running.nodes), used)


def is_used(file: Path) -> bool:
    """Whether a system started by a run has users; one that is ending or gone has none."""
    try:
        used = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _shared(used)  # by users, not by the system itself
    else:
        return False
    finally:
        os.close(used)


def _shared(used: int) -> bool:
    """Take the shared lock; False if the system holds it, because it is about to end."""
    try:
        fcntl.flock(used, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _has_gpus() -> bool:
    try:
        return any(GPUS_OF_THIS_MACHINE.iterdir())
    except OSError:
        return False


def _check_nobody_hands_them_out(proc: Path = Path("/proc")) -> None:
    """Raises RunError if a node agent serves this machine's GPUs: two would allocate the same ones.

    An agent with an unreadable environment counts; agents of simulated nodes do not."""
    for each in proc.iterdir():
        if not each.name.isdecimal():
            continue
        try:
            words = (each / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended meanwhile
        if not any(word == b"sluice_node_agent" or word.endswith(b"/sluice-node-agent") for word in words):
            continue
        try:
            environment = (each / "environ").read_bytes()
        except OSError:
            environment = b""
        if b"SLUICE_NODE_AGENT_FLEET_FILE=" not in environment:
            raise RunError(
                f"a node agent (process {each.name}) hands out the GPUs of this machine already: name its system by "
                "--server and --pods; --simulated runs beside it, and --real insists"
            )


async def _started(node: str, *, simulated: bool, say: Callable[[str], None]) -> TargetSystem:
    what = "on simulated GPUs" if simulated else "on the GPUs of this machine"
    say(f"no `sluice up` is running: starting one for this run, {what}")
    base, used = await _prepared(simulated=simulated)
    fleet = [str(examples_dir() / "fleet.toml")] if simulated else []
    process = _spawned(base, fleet)
    temporary = base if simulated else None
    try:
        running = await _announced(base, process)
    except BaseException:
        await TargetSystem("", base / PODS, used=used, process=process, temporary=temporary).leave()
        raise
    where = node or ("" if simulated else running.nodes[0])
    return TargetSystem(running.nats_url, Path(running.pods_dir), where, len(running.nodes), used, process, temporary)


def _spawned(base: Path, fleet: list[str]) -> "subprocess.Popen[bytes]":
    with (base / LOG).open("ab") as log:
        return subprocess.Popen(  # noqa: S603  # our own program
            (sys.executable, "-m", "sluice_console.shell.run.embedded_system", str(base), *fleet),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # the terminal's keys are for the command
        )


async def _prepared(*, simulated: bool) -> tuple[Path, int]:
    """The folder of a new system, locked. With real GPUs it is permanent: its journal outlives each system."""
    if simulated:
        base = temporary_directory("sluice-run-")
    else:
        state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        base = Path(state) / "sluice"
    try:
        (base / PODS).mkdir(mode=0o700, parents=True, exist_ok=True)
        used = os.open(base / USED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RunError(f"{base} cannot be made or written: {error.strerror or error}") from error
    try:
        async with asyncio.timeout(STOPPED_WITHIN_S):
            while not _shared(used):  # noqa: ASYNC110  # a lock: another process lets go of it at its end
                await asyncio.sleep(LOOK_EVERY_S)
    except BaseException as error:
        os.close(used)
        if isinstance(error, TimeoutError):
            raise RunError(f"the system in {base} does not end; its log is {base / LOG}") from None
        raise
    return base, used


async def _announced(base: Path, process: "subprocess.Popen[bytes]") -> RunningSystem:
    """The address of a system that was just started. Raises RunError with its last output if it ends instead."""
    file = base / DATA / "up.json"
    try:
        async with asyncio.timeout(STARTED_WITHIN_S):
            while True:
                running = _read(file)
                if running is not None and running.pid == process.pid:
                    return running
                if process.poll() is not None:
                    words = last_words(base / LOG) or f"it ended with {process.returncode}; its log is {base / LOG}"
                    raise RunError(f"a system for this run cannot be started: {words}")
                await asyncio.sleep(LOOK_EVERY_S)
    except TimeoutError:
        raise RunError(f"a system for this run did not start within {STARTED_WITHIN_S:g} s (logs: {base})") from None


def _read(file: Path) -> RunningSystem | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=RunningSystem)
    except (OSError, *NOT_READABLE):
        return None
