"""Processes of a system under test: killed, frozen and started again by the test alone, and never left behind."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from factories.broker.nats_server import until_stopped

from sluice_console.shell.process import die_with_parent

STOP_WITHIN_S = 60.0
ANSWERS_WITHIN_S = 60.0
SWITCHED_OFF_WITHIN_S = 60.0
CLEANED_UP_WITHIN_S = 60.0
"""What ends with a killed `sluice up` has this long: the program that ends simulated MPS daemons among it."""


@dataclass
class Process:
    """One process of the system. It does not outlive the test that started it, whatever happens to that."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    has_session: bool = False
    """Of its own: the kernel shares CPU out among sessions first (sched(7), autogroup)."""
    lives: int = 0
    _popen: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the present run, or of the last."""
        return self._popen.pid

    @property
    def runs(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    @property
    def code(self) -> int | None:
        """How its last run ended; None while it runs."""
        return None if self._popen is None else self._popen.poll()

    def start(self) -> None:
        """Begin another run. It ends with the thread that called, so call from one that stays."""
        assert not self.runs, f"{self.name} runs already"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            # In a group of its own: where one is stopped in an orphaned group, the kernel may send all of it SIGHUP.
            self._popen = subprocess.Popen(
                tied(*self.command),
                env=dict(self.environment),
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=None if self.has_session else 0,
                start_new_session=self.has_session,
            )
        self.lives += 1

    def kill(self) -> None:
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait(STOP_WITHIN_S)

    def stop(self) -> None:
        """In order, or by force after 10 s."""
        if self._popen is None:
            return
        self.thaw()
        self._popen.send_signal(signal.SIGTERM)
        try:
            self._popen.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def freeze(self) -> None:
        """SIGSTOP: it stays, and does nothing from here on."""
        if self.runs:
            os.kill(self.pid, signal.SIGSTOP)
            until_stopped(self.pid)

    def thaw(self) -> None:
        if self._popen is not None:
            self._popen.send_signal(signal.SIGCONT)


def tied(*command: str) -> tuple[str, ...]:
    """A command that ends with the thread of ours that starts it."""
    return (sys.executable, "-S", die_with_parent.__file__, str(os.getpid()), *command)


def own_environment() -> dict[str, str]:
    """The environment of the tests without Sluice's settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}


async def finished(*command: str, environment: Mapping[str, str], given: str = "") -> tuple[int, str, str]:
    """Run a command to its end, in time: exit code, standard output and standard error."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(ANSWERS_WITHIN_S):
            out, err = await process.communicate(given.encode())
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        code = await process.wait()
    return code, out.decode(), err.decode()


def switch_off(switch: subprocess.Popen[bytes]) -> None:
    """The simulated machines' MPS daemons end, and the folder of their sockets goes."""
    switch.stdin.close()
    try:
        code = switch.wait(SWITCHED_OFF_WITHIN_S)
    except subprocess.TimeoutExpired:
        switch.kill()
        code = switch.wait(5)
    assert code == 0, "MPS daemons of the simulated nodes are left"


def kill_with_children(process: subprocess.Popen | psutil.Popen) -> list[psutil.Process]:
    """Kill a process, then its children that do not end with it (some clean up only then); returns those it killed."""
    family = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait(STOP_WITHIN_S)
    _, alive = psutil.wait_procs(family, timeout=CLEANED_UP_WITHIN_S)
    for child in alive:
        child.kill()
    psutil.wait_procs(alive, timeout=STOP_WITHIN_S)
    return alive


@contextlib.contextmanager
def answering(command: Sequence[str], log: Path, ask: Callable[[], object]) -> Iterator[None]:
    """A server of others for the time of the context, once `ask` raises no OSError; killed at the end."""
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:
        deadline = time.monotonic() + ANSWERS_WITHIN_S
        while True:
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(OSError):
                ask()
                break
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def heeding_ctrl_c() -> Iterator[None]:
    """Children are started as from a terminal, not as by a background shell or `nohup`."""
    keys = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
    as_usual = (signal.default_int_handler, signal.default_int_handler, signal.SIG_DFL)
    before = [signal.signal(key, handler) for key, handler in zip(keys, as_usual, strict=True)]
    try:
        yield
    finally:
        for key, handler in zip(keys, before, strict=True):
            signal.signal(key, handler)
