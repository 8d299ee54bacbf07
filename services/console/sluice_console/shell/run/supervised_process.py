"""
A command under its keeper (`keeper`), as the runner sees it: started, told signals, waited for.

If the keeper itself is killed, the kernel has killed the command; what that had started comes to this process then,
which is a subreaper too, and ends it.
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
"""How long the rest may take to die when the keeper was killed: it is killed at once."""
LEFT_WITHIN_S = 10.0
"""After so long the runner leaves what cannot be ended to the keeper, which stays, and with it the slice."""


@dataclass(slots=True)
class SupervisedProcess:
    """One command. `say` gets a line about what a person should know."""

    say: Callable[[str], None]
    process: subprocess.Popen[bytes]
    control: int
    manifest: Path
    ours: frozenset[int]
    """Our own other children, which are none of the command's."""
    pid: int = 0
    code: int | None = None
    """How the command ended, negative by a signal; None while it runs."""
    failed: int = 0
    """The errno with which it could not be started."""
    is_ending: bool = False
    """Whether it was asked to end, so that the next signal means at once."""
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _grace_s: float = 0.0
    """For how much longer than usual its processes may take to end by themselves."""
    _left: str = ""
    _is_done: bool = False

    def signal(self, number: int) -> None:
        """Pass a signal on to the command; while it is being ended, end it now."""
        self._order(supervisor.END_NOW if self.is_ending else number)

    def end(self) -> None:
        """The slice is taken away: the command is to end, soon."""
        self.is_ending, self._grace_s = True, supervisor.EVICTED_GRACE_S
        self._order(supervisor.ASK_TO_END)

    def _order(self, order: int) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended
            os.write(self.control, bytes([order]))

    async def follow(self, status: int) -> None:
        """Hear what the keeper says, until it has nothing more to say."""
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
        """
        The exit code as a shell would give it, when the command has ended and nothing of it is left.

        What cannot be ended is left to the keeper, with the slice. Raises RunError.
        """
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
        """Whether the command has ended, and nothing of it is left, or nobody looks after it any more."""
        return self._over.is_set() and self.code is not None

    def exit_code(self) -> int:
        """As a shell would give it, once the command has ended."""
        assert self.code is not None
        if self.failed:
            return EXIT_NOT_FOUND if self.failed in _NOT_FOUND else EXIT_NOT_EXECUTABLE
        return self.code if self.code >= 0 else EXIT_SIGNAL - self.code

    def _end_the_rest(self) -> None:
        """The keeper is dead. Raises RunError when something cannot be ended: then the slice is not given back."""
        but = self.ours | {self.process.pid}
        there = supervisor.killed_below(os.getpid(), but=but, within_s=ENDED_WITHIN_S)
        if there:
            pids = ", ".join(str(pid) for pid in there)
            raise RunError(f"the supervisor was killed, and process {pids} cannot be ended; the slice stays with it")


_NOT_FOUND = frozenset({2, 20})
"""ENOENT, ENOTDIR."""


@dataclass(frozen=True, slots=True)
class StartOptions:
    """What to start, and with what."""

    command: Sequence[str]
    environment: Mapping[str, str]
    manifest: Path
    locks: tuple[int, ...]
    """Descriptors that the command inherits: the slice is kept for as long as one of them is open anywhere."""
    ignored: tuple[int, ...]
    """Signals that whoever started us wanted to be ignored (nohup, a shell's `&`)."""
    ours: frozenset[int]


def start(wanted: StartOptions, say: Callable[[str], None]) -> tuple[SupervisedProcess, int]:
    """Start the keeper and with it the command; the descriptor is for `Kept.follow`. Raises OSError."""
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
