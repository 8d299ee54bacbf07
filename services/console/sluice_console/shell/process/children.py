"""
Child processes that are restarted when they die.

Each child has a log file and a growing, bounded pause between restarts; the owner gets a line about every death. A
child cannot outlive its parent (`die_with_parent`), and stopping is bounded: SIGTERM, then SIGKILL.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.delayed_queue import backoff_s

PAUSE_FIRST_S = 0.2
PAUSE_MAX_S = 5.0
HEALTHY_AFTER_S = 10.0
"""A life this long resets the pause."""
TERM_GRACE_S = 6.0
"""Seconds for a child to stop by itself; the services drain for at most 5 s."""
LINE_BYTES_MAX = 8192
"""Bytes read from the end of a log."""
WORDS_MAX = 500
_DIE_WITH_PARENT = Path(__file__).with_name("die_with_parent.py")


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """The command, and the file of its standard output and error."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path


@dataclass(slots=True)
class Child:
    """One supervised child and its present process."""

    spec: ChildSpec
    process: asyncio.subprocess.Process | None = None
    deaths: int = 0
    failed_starts: int = 0
    """Deaths in a row before HEALTHY_AFTER_S."""
    stopping: bool = False
    watcher: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def pid(self) -> int | None:
        """The present process id."""
        return self.process.pid if self.process is not None and self.process.returncode is None else None


Say = Callable[[str], None]
Reborn = Callable[[Child], Awaitable[None]]
GivenUp = Callable[[Child, int], bool]
"""Whether the child stays ended after an exit."""


class Children:
    """All children of one `sluice up`, in start order.

    `say` gets a line per death. `given_up` is called at each death and returns why a restart is useless, or empty.
    `reborn` runs after a restart, beside the supervision, until the child's next death."""

    def __init__(self, say: Say, reborn: Reborn, given_up: GivenUp) -> None:
        """Start without children."""
        self._say = say
        self._reborn = reborn
        self._given_up = given_up
        self._children: dict[str, Child] = {}

    def __iter__(self) -> Iterator[Child]:
        """The children in start order."""
        return iter(list(self._children.values()))

    async def start(self, spec: ChildSpec) -> Child:
        """Start one child and supervise it. Raises OSError if its program cannot be run."""
        child = Child(spec)
        await _spawn(child)
        self._children[spec.name] = child
        child.watcher = asyncio.create_task(self._watch(child), name=f"watch {spec.name}")
        return child

    async def _watch(self, child: Child) -> None:
        clock = asyncio.get_running_loop().time
        while not child.stopping:
            began = clock()
            assert child.process is not None
            async with self._seeing_to(child):
                code = await child.process.wait()
            if child.stopping:
                return
            child.deaths += 1
            child.failed_starts = 1 if clock() - began >= HEALTHY_AFTER_S else child.failed_starts + 1
            if self._given_up(child, code):
                return
            again = f"starting it again in {_pause_s(child):g} s"
            self._say(f"{child.spec.name} {_ending(code)}; {again}{_last_words(child, code)}")
            await self._start_again(child)

    async def _start_again(self, child: Child) -> None:
        while not child.stopping:
            await asyncio.sleep(_pause_s(child))
            if child.stopping:
                return
            try:
                await _spawn(child)
            except OSError as error:
                child.failed_starts += 1
                self._say(f"{child.spec.name} cannot be started: {error}; trying again in {_pause_s(child):g} s")
            else:
                return

    @asynccontextmanager
    async def _seeing_to(self, child: Child) -> AsyncIterator[None]:
        """Run `reborn` while the new process is supervised."""
        if not child.deaths:
            yield
            return
        seeing = asyncio.create_task(self._see_to(child), name=f"see to {child.spec.name}")
        try:
            yield
        finally:
            seeing.cancel()
            await asyncio.wait((seeing,))

    async def _see_to(self, child: Child) -> None:
        try:
            await self._reborn(child)
        except Exception as error:  # noqa: BLE001 - reported, as nothing awaits this
            if child.stopping:
                return  # the system is being stopped
            self._say(f"{child.spec.name} was started again, but not seen to: {error!r}")

    async def start_again(self, name: str) -> None:
        """Restart a child. Takes at most about TERM_GRACE_S."""
        await _stop(self._children[name])

    async def stop(self, names: tuple[str, ...]) -> list[str]:
        """Stop the named children together; no other one is restarted from now on.

        Returns the names of those that had to be killed. Takes at most about TERM_GRACE_S."""
        for child in self._children.values():
            child.stopping = True
        members = [self._children[name] for name in names if name in self._children]
        gently = await asyncio.gather(*(_stop(child) for child in members))
        watchers = [child.watcher for child in members if child.watcher is not None]
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
        await asyncio.gather(*(_stop(child) for child in members))  # one may just be starting
        return [child.spec.name for child, went in zip(members, gently, strict=True) if not went]

    def kill_now(self) -> None:
        """Kill every child without waiting."""
        for child in self._children.values():
            child.stopping = True
            _signal(child, signal.SIGKILL)


async def _spawn(child: Child) -> None:
    spec = child.spec
    spec.log.parent.mkdir(parents=True, exist_ok=True)
    with spec.log.open("ab") as log:
        child.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(_DIE_WITH_PARENT),
            str(os.getpid()),
            *spec.command,
            env=dict(spec.environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C in the terminal reaches `up` alone, which stops the children in order
        )


async def _stop(child: Child) -> bool:
    """Whether it ended without SIGKILL."""
    process = child.process
    if process is None or process.returncode is not None:
        return True
    _signal(child, signal.SIGTERM)
    try:
        async with asyncio.timeout(TERM_GRACE_S):
            await process.wait()
    except TimeoutError:
        _signal(child, signal.SIGKILL)
        await process.wait()
        return False
    return True


def _pause_s(child: Child) -> float:
    return backoff_s(child.failed_starts, PAUSE_FIRST_S, PAUSE_MAX_S)


def _signal(child: Child, number: signal.Signals) -> None:
    if child.process is not None and child.process.returncode is None:
        child.process.send_signal(number)


def _ending(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _last_words(child: Child, code: int) -> str:
    """The last output of a failed child: usually the reason."""
    words = last_words(child.spec.log)
    return f" ({words})" if code > 0 and words else ""


class _LogLine(msgspec.Struct):
    """The fields of our log lines that people read (`sluice.runtime.logs`)."""

    event: str


def last_words(log: Path) -> str:
    """The last log line for a person: of a JSON line only its message."""
    words = next((words for line in reversed(_last_lines(log)) if (words := _words_of(line))), "")
    return words if len(words) <= WORDS_MAX else f"{words[: WORDS_MAX - 3]}..."


def _words_of(line: str) -> str:
    if not line.startswith("{"):
        return line.strip()
    try:
        return msgspec.json.decode(line, type=_LogLine).event
    except NOT_READABLE:
        return ""  # cut off by a full disk


def last_line(log: Path, limit: int = 300) -> str:
    """The last non-empty line of a log, shortened."""
    return next((line.strip()[:limit] for line in reversed(_last_lines(log)) if line.strip()), "")


def _last_lines(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - LINE_BYTES_MAX))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
