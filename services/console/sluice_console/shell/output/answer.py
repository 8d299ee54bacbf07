"""What a reading command answers: printed once, or again whenever it has changed (`--watch`)."""

import asyncio
import os
import stat
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from sluice.runtime.bus import BusError
from sluice_console.core.documents import Document
from sluice_console.shell.errors import CommandError
from sluice_console.shell.output.formats import OutputFormat, is_for_programs, print_document
from sluice_console.shell.output.printer import console, say

PAUSE_S = 0.5
"""Minimum between two answers: a busy fleet is shown twice a second."""
SHARE_MAX = 0.1
"""Of the time, for answers that take long."""
ASK_EVERY_S = 60.0
"""Between two questions to a service about what the bus does not show: the recorder sums up every minute."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Documents, and how a person is shown one of them."""

    documents: tuple[Document, ...]
    show: Callable[[Any], None] = field(compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)
    """For standard error."""
    beside: object = None
    """What is shown and is in no document."""

    def print(self, form: OutputFormat, *, one_line: bool = False) -> None:
        """Print it; `one_line` if others follow."""
        for document in self.documents:
            print_document(document, form, self.show, one_line=one_line or len(self.documents) > 1)
        sys.stdout.flush()
        say(self.notes)


@asynccontextmanager
async def read_by_someone() -> AsyncIterator[None]:
    """End what is in it with BrokenPipeError when the reader of our output ends (`| head -1`), also while it waits."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    number = _pipe()
    if number is None:
        yield
        return
    gone = asyncio.Event()

    def end() -> None:
        loop.remove_reader(number)
        gone.set()
        task.cancel()

    loop.add_reader(number, end)  # the writing end of a pipe is readable when nothing reads the other one
    try:
        yield
    except asyncio.CancelledError:
        if not gone.is_set():
            raise
        task.uncancel()
        raise BrokenPipeError from None
    finally:
        loop.remove_reader(number)


def _pipe() -> int | None:
    """The file descriptor of standard output if it is a pipe."""
    try:
        number = sys.stdout.fileno()
        return number if stat.S_ISFIFO(os.fstat(number).st_mode) else None
    except (OSError, ValueError):  # closed, or replaced by something in memory
        return None


async def once(answer: Awaitable[Answer], form: OutputFormat) -> int:
    """Print it. Returns the exit code."""
    (await answer).print(form)
    return 0


async def repeated(
    ask: Callable[[], Awaitable[Answer]], form: OutputFormat, changed: asyncio.Event | None = None
) -> NoReturn:
    """
    Print the answer, and again when another one comes: asked for after `changed`, without it every minute. Raises
    BrokenPipeError when the reader of a pipe has gone.

    Without it only the first question may fail: the error of a later one is printed, and it is asked again.
    """
    async with read_by_someone():
        await _repeat(ask, form, changed)


async def _repeat(ask: Callable[[], Awaitable[Answer]], form: OutputFormat, changed: asyncio.Event | None) -> NoReturn:
    shown: Answer | None = None
    while True:
        if changed is not None:
            changed.clear()
        began = time.monotonic()
        try:
            answer = await ask()
        except (BusError, CommandError) as error:
            if shown is None or changed is not None:
                raise
            answer = replace(shown, documents=(), notes=(f"{error}; asked again every minute",), beside=str(error))
        took_s = time.monotonic() - began
        if answer != shown:
            if shown is not None and answer.documents and not is_for_programs(form):
                out = console()
                out.clear() if out.is_terminal else out.print()
            answer.print(form, one_line=True)
            shown = answer
        await asyncio.sleep(max(PAUSE_S, took_s * (1 / SHARE_MAX - 1)) if changed is not None else ASK_EVERY_S)
        if changed is not None:
            await changed.wait()
