"""
A command under its supervisor (`supervisor`), as the runner sees it: started, signalled, waited for.

If the supervisor is killed, the kernel kills the command; its remaining processes are reparented to this process, also
a subreaper, which ends them.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sluice_console.shell.run import supervisor
from sluice_console.shell.run.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_SIGNAL, RunError

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
ENDED_WITHIN_S = 5.0
"""Seconds for the rest to die when the supervisor was killed: it is killed at once."""
LEFT_WITHIN_S = 10.0
"""After so long the runner leaves unkillable processes to the supervisor, which stays and keeps the slice."""


@dataclass(slots=True)
class SupervisedProcess:
    """One command. `say` gets lines for the user."""

    say: Callable[[str], None]
    process: subprocess.Popen[bytes]
    control: int
    manifest: Path
    ours: frozenset[int]
    """Our own other children, which do not belong to the command."""
    pid: int = 0
    code: int | None = None
    """How the command ended, negative for a signal; None while it runs."""
    failed: int = 0
    """The errno if it could not be started."""
    is_ending: bool = False
    """Whether it was asked to end; the next signal then kills."""
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _grace_s: float = 0.0
    """Extra seconds for its processes to end by themselves."""
    _left: str = ""
    _is_done: bool = False

    def signal(self, number: int) -> None:
        """Pass a signal on to the command; while it is ending, kill it."""
        self._order(supervisor.END_NOW if self.is_ending else number)

    def end(self) -> None:
        """The slice is taken away: end the command soon."""
        self.is_ending, self._grace_s = True, supervisor.EVICTED_GRACE_S
        self._order(supervisor.ASK_TO_END)

    def _order(self, order: int) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended
            os.write(self.control, bytes([order]))

    async def follow(self, status: int) -> None:
        """Read the supervisor's status until its end."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(status, "rb", 0)
        )
        try:
            while line := (await reader.readline()).decode():
                self._hear(*line.split())
        finally:
            transport.close()
            self._ended.set()
            self._over.set()

    def _hear(self, word: str, *values: str) -> None:
        match word:
            case "started":
                self.pid = int(values[0])
            case "failed":
                self.failed = int(values[0])
            case "ended":
                self.code, self.is_ending = int(values[0]), True
                self._ended.set()
            case "left":
                self._left = ", ".join(values)
                self.say(f"process {self._left} does not end, and keeps the slice; waiting for it")
            case "done":
                self._is_done = True
            case _:
                raise RunError(f"the supervisor sent {word!r}, which this version does not know")

    async def wait(self) -> int:
        """The exit code as in a shell, once the command and all its processes have ended.

        Unkillable processes are left to the supervisor, with the slice. Raises RunError."""
        await self._ended.wait()
        if self.code is not None:
            try:
                async with asyncio.timeout(LEFT_WITHIN_S + self._grace_s):
                    await self._over.wait()
            except TimeoutError:
                self.say(f"process {self._left} still does not end; it keeps the slice until it does")
                return self.exit_code()
        if not self._is_done:
            await asyncio.to_thread(self._end_the_rest)
            self.say("the supervisor of the command was killed, and the command with it")
            self.code = self.code if self.code is not None else -signal.SIGKILL
        await asyncio.to_thread(self.process.wait)
        return self.exit_code()

    @property
    def is_over(self) -> bool:
        """Whether the command has ended with all its processes, or its supervisor has died."""
        return self._over.is_set() and self.code is not None

    def exit_code(self) -> int:
        """As in a shell, once the command has ended."""
        assert self.code is not None
        if self.failed:
            return EXIT_NOT_FOUND if self.failed in _NOT_FOUND else EXIT_NOT_EXECUTABLE
        return self.code if self.code >= 0 else EXIT_SIGNAL - self.code

    def _end_the_rest(self) -> None:
        """The supervisor is dead. Raises RunError if a process cannot be ended: then the slice is not released."""
        but = self.ours | {self.process.pid}
        there = supervisor.killed_below(os.getpid(), but=but, within_s=ENDED_WITHIN_S)
        if there:
            pids = ", ".join(str(pid) for pid in there)
            raise RunError(f"the supervisor was killed, and process {pids} cannot be ended; the slice stays with it")


_NOT_FOUND = frozenset({2, 20})
"""ENOENT, ENOTDIR."""


@dataclass(frozen=True, slots=True)
class StartOptions:
    """What to start, and how."""

    command: Sequence[str]
    environment: Mapping[str, str]
    manifest: Path
    locks: tuple[int, ...]
    """Descriptors that the command inherits: the slice is kept while one of them is open in any process."""
    ignored: tuple[int, ...]
    """Signals that the parent wants ignored (nohup, a shell's `&`)."""
    ours: frozenset[int]


def start(wanted: StartOptions, say: Callable[[str], None]) -> tuple[SupervisedProcess, int]:
    """Start the supervisor and the command; the descriptor is for `SupervisedProcess.follow`. Raises OSError."""
    supervisor.set_process(supervisor.PR_SET_CHILD_SUBREAPER, 1)
    heard, control = os.pipe2(os.O_CLOEXEC)
    status, says = os.pipe2(os.O_CLOEXEC)
    command = (
        sys.executable, "-I", "-S", str(_SUPERVISOR), str(os.getpgrp()), str(heard), str(says),
        ",".join(map(str, wanted.ignored)), str(wanted.manifest), *wanted.command,
    )  # fmt: skip
    try:
        process = subprocess.Popen(  # noqa: S603  # what the caller typed, without a shell
            command, env=dict(wanted.environment), pass_fds=(heard, says, *wanted.locks)
        )
    except BaseException:
        os.close(control)
        os.close(status)
        raise
    finally:
        os.close(heard)
        os.close(says)
    return SupervisedProcess(say, process, control, wanted.manifest, wanted.ours), status
