"""
`sluice run`: requests a slice on this machine, waits for it, runs a command on it, and releases it.

This holds whichever process is killed: the request is a manifest that is valid only while locked (`locked_manifest`),
by this process, the supervisor and the command; the supervisor ends the rest of the command before it removes the
request (`supervisor`). Exit codes are as in a shell: the command's own, 128 + signal, 127 and 126 (docs/run.md).
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

from sluice.runtime.bus import Bus, BusError
from sluice_console.core.documents import PodDocument
from sluice_console.core.run_request import (
    RunRequest,
    devices_text,
    environment_on,
    manifest_of,
    why_doubted,
    why_refused,
)
from sluice_console.shell.errors import CommandError
from sluice_console.shell.live.connect import connected
from sluice_console.shell.live.running_systems import server_url
from sluice_console.shell.process.children import last_words
from sluice_console.shell.run import locked_manifest, signals, target_system
from sluice_console.shell.run.embedded_system import LOG
from sluice_console.shell.run.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_OURS, EXIT_SIGNAL, RunError
from sluice_console.shell.run.follow_request import HeldSlice, slice_of
from sluice_console.shell.run.progress import RunProgress
from sluice_console.shell.run.supervised_process import StartOptions, SupervisedProcess, start

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The arguments."""

    command: tuple[str, ...]
    ask: RunRequest
    server: str = ""
    """NATS URL; empty is the running `sluice up`, or a new system for this run."""
    pods_dir: Path | None = None
    node: str = ""
    namespace: str = "default"
    name: str = ""
    wait_s: float = 3600.0
    simulated: bool | None = None
    """Whether the GPUs of a new system are simulated; None is only if this machine has none."""
    quiet: bool = False


@dataclass(slots=True)
class _Signals:
    """Handles signals, depending on how far the run is."""

    said: RunProgress
    stopped: "asyncio.Future[int]"
    """The signal that ended it before its command ran."""
    kept: SupervisedProcess | None = None
    ask: locked_manifest.LockedManifest | None = None

    def hear(self, number: int, by_terminal: bool) -> None:  # noqa: FBT001  # as the signal comes
        """Pass it on, or stop; the second one stops at once, and what still runs ends by itself."""
        if self.kept is not None and self.kept.is_over:
            os._exit(self.kept.exit_code())  # the system ends by itself
        elif self.kept is not None:
            if not by_terminal or self.kept.is_ending:
                self.kept.signal(number)
        elif number in {signal.SIGUSR1, signal.SIGUSR2}:
            return  # no command runs yet
        elif not self.stopped.done():
            self.stopped.set_result(number)
        else:
            self.said.close()
            if self.ask is not None:
                self.ask.give_up()
            os._exit(EXIT_SIGNAL + number)


async def run_on_slice(wanted: RunOptions, *, taken: tuple[int, ...], ignored: tuple[int, ...]) -> int:
    """Run the command on a slice; returns the exit code. `taken` are blocked already (`signals.block`)."""
    said = RunProgress(quiet=wanted.quiet)
    heard = _Signals(said, asyncio.get_running_loop().create_future())
    signals.listen(taken, heard.hear)
    try:
        check(wanted)
        return await _CommandRun(wanted, said, heard, ignored).all_of_it()
    except (CommandError, BusError) as error:
        said.failure(str(error))
        return error.exit_code if isinstance(error, RunError) else EXIT_OURS
    finally:
        said.close()


class CommandMissingError(RunError):
    """No such program."""

    exit_code = EXIT_NOT_FOUND


class NotExecutableError(RunError):
    """It exists and cannot be run."""

    exit_code = EXIT_NOT_EXECUTABLE


def check(wanted: RunOptions) -> None:
    """Raises RunError for errors that waiting cannot fix, before anything is requested."""
    program = wanted.command[0]
    if shutil.which(program) is None:
        raise _why_not(program)
    who = {"namespace": wanted.namespace, "name": wanted.name or "run"}
    text = manifest_of(wanted.ask, **who, uid=os.getuid(), node="", environ=os.environ)
    if why := why_refused("the ask", text) or why_doubted(wanted.ask):
        raise RunError(why)


def _why_not(program: str) -> RunError:
    """Why the program cannot be executed, from the kernel's error."""
    try:
        if os.sep in program and Path(program).stat():
            return NotExecutableError(f"{program}: it is there, and cannot be executed (is it a program, by chmod +x?)")
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        return NotExecutableError(f"{program}: it cannot be executed: {error.strerror}")
    return CommandMissingError(f"{program}: there is no such command")


@dataclass(slots=True)
class _CommandRun:
    wanted: RunOptions
    said: RunProgress
    signals: _Signals
    ignored: tuple[int, ...]

    async def all_of_it(self) -> int:
        asked = await self._unless_stopped(self._system())
        if isinstance(asked, int):
            return EXIT_SIGNAL + asked
        try:
            return await self._ask(asked)
        finally:
            await asked.leave()

    async def _system(self) -> target_system.TargetSystem:
        wanted = self.wanted
        if wanted.server or wanted.pods_dir is not None:
            return target_system.named(_server_of(wanted), wanted.pods_dir, wanted.node)
        return await target_system.found_or_started(wanted.node, simulated=wanted.simulated, say=self.said.line)

    async def _ask(self, asked: target_system.TargetSystem) -> int:
        wanted = self.wanted
        name = f"run-{os.getpid()}-{secrets.token_hex(4)}"
        who = {"namespace": wanted.namespace, "name": wanted.name or name}
        text = manifest_of(wanted.ask, **who, uid=os.getuid(), node=asked.node, environ=os.environ)
        async with connected(asked.url) as bus:
            ask = locked_manifest.take(asked.pods_dir, name, text)
            self.signals.ask = ask
            try:
                bound = await self._unless_stopped(self._slice(bus, asked, ask))
                if isinstance(bound, int):
                    return EXIT_SIGNAL + bound
                self.said.line(devices_text(bound))
                return await self._command(bus, asked, ask, bound)
            finally:
                if self.signals.kept is None:
                    ask.give_up()

    async def _slice(
        self, bus: Bus, asked: target_system.TargetSystem, ask: locked_manifest.LockedManifest
    ) -> PodDocument:
        waiting = asyncio.ensure_future(
            slice_of(bus, ask.file.name, within_s=self.wanted.wait_s, progress=self.said.progress, nodes=asked.nodes)
        )
        dying = asyncio.ensure_future(_end_of(asked))
        try:
            await asyncio.wait((waiting, dying), return_when=asyncio.FIRST_COMPLETED)
            return waiting.result() if waiting.done() else dying.result()
        finally:
            for task in (waiting, dying):
                task.cancel()
            await asyncio.gather(waiting, dying, return_exceptions=True)

    async def _command(
        self, bus: Bus, asked: target_system.TargetSystem, ask: locked_manifest.LockedManifest, bound: PodDocument
    ) -> int:
        self.said.close()
        environment = environment_on(bound.containers[0], os.environ, request=bound.request)
        locks = (ask.descriptor, *asked.locks)
        kept, status = start(
            StartOptions(self.wanted.command, environment, ask.file, locks, self.ignored, asked.children),
            self.said.failure,
        )
        self.signals.kept = kept
        if self.signals.stopped.done():  # between the slice and the command
            kept.signal(self.signals.stopped.result())
        following = asyncio.ensure_future(kept.follow(status))
        watching = asyncio.ensure_future(self._watch(bus, kept, bound))
        try:
            code = await kept.wait()
            ask.give_up()  # the supervisor has, unless it was killed
        finally:
            for task in (following, watching):
                task.cancel()
            await asyncio.gather(following, watching, return_exceptions=True)
        if kept.failed:
            self.said.failure(f"{self.wanted.command[0]}: {os.strerror(kept.failed)}")
        return code

    async def _watch(self, bus: Bus, kept: SupervisedProcess, bound: PodDocument) -> None:
        """End the command when its slice is taken away. A lost bus takes nothing away."""
        with contextlib.suppress(BusError):
            why = await HeldSlice(bound, self.said.failure).until_taken_away(bus)
            self.said.failure(f"the slice is taken away: {why}; the command is asked to end")
            kept.end()

    async def _unless_stopped(self, work: Coroutine[object, object, T]) -> T | int:
        """The result of `work`, or the first signal; then `work` is cancelled."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, self.signals.stopped), return_when=asyncio.FIRST_COMPLETED)
            return await task if task.done() else self.signals.stopped.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _end_of(asked: target_system.TargetSystem) -> NoReturn:
    """Raises RunError if the system started for this run ends early."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    if asked.process is None:
        await loop.create_future()  # a system of others: its end shows as a silent bus
    assert asked.process is not None
    life = os.pidfd_open(asked.process.pid)
    try:
        loop.add_reader(life, over.set)
        await over.wait()
    finally:
        loop.remove_reader(life)
        os.close(life)
    words = last_words(asked.pods_dir.parent / LOG) or f"it ended with {asked.process.wait()}"
    raise RunError(f"the system of this run has ended: {words}")


def _server_of(wanted: RunOptions) -> str:
    """The bus and folder of the system to use. Raises NothingRunningError."""
    return wanted.server or server_url(None)
