"""
A terminal as a screen of lines and keys: entered, redrawn without flicker, always restored.

Lines are erased and written from the top in a single write, which terminals apply as one update where they support it.
"""

import asyncio
import contextlib
import os
import re
import signal
import termios
import tty
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len, set_cell_size

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""Alternate screen, no cursor, no wrapping (xterm, "DEC Private Mode Set")."""
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
"""Synchronized output (https://gist.github.com/christianparpart/d8a62cc1ab659194337d73e399004036); ignored where
unknown."""
_HOME, _ERASE_LINE, _ERASE_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_SEQUENCE = re.compile(r"(\x1b\[[0-9;?]*[A-Za-z])")
SMALLEST = (20, 4)
"""Minimum size drawn; a terminal that reports 0 by 0 does not know its size."""


@dataclass(slots=True)
class Terminal:
    """Both ends of a terminal: input and output."""

    keys: int
    screen: int

    def size(self) -> tuple[int, int]:
        """Present columns and lines."""
        try:
            columns, lines = os.get_terminal_size(self.screen)
        except OSError:
            columns, lines = 80, 24
        return max(SMALLEST[0], columns or 80), max(SMALLEST[1], lines or 24)

    def draw(self, lines: list[str]) -> None:
        """Show these lines from the top, and nothing below; cut to the screen's size.

        A line is erased before it is written: after the last column the cursor stays on it, so a later erase would
        remove the last character (DEC STD 070, autowrap off)."""
        columns, count = self.size()
        body = "\r\n".join(f"{_ERASE_LINE}{cut(line, columns)}\x1b[0m" for line in lines[:count])
        _write(self.screen, f"{_BEGIN}{_HOME}{body}{_ERASE_BELOW}{_END}")

    @asynccontextmanager
    async def taken(self, typed: Callable[[str], None], resized: Callable[[], None]) -> AsyncIterator[None]:
        """Take the terminal during the context, except while stopped by Ctrl-Z.

        `typed` gets input at once and unechoed. `resized` redraws."""
        loop = asyncio.get_running_loop()
        before = termios.tcgetattr(self.keys)
        can_stop = signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN

        def read() -> None:
            try:
                data = os.read(self.keys, 1024)
            except OSError:
                data = b""  # the terminal has gone
            if not data:
                loop.remove_reader(self.keys)
            typed(data.decode(errors="replace") if data else "q")

        def stop() -> None:
            self._give_back(before)
            loop.remove_signal_handler(signal.SIGTSTP)
            os.kill(os.getpid(), signal.SIGTSTP)  # returns on SIGCONT
            loop.add_signal_handler(signal.SIGTSTP, stop)
            self._take()
            resized()

        self._take()
        loop.add_reader(self.keys, read)
        loop.add_signal_handler(signal.SIGWINCH, resized)
        if can_stop:
            loop.add_signal_handler(signal.SIGTSTP, stop)
        try:
            yield
        finally:
            if can_stop:
                loop.remove_signal_handler(signal.SIGTSTP)
            loop.remove_signal_handler(signal.SIGWINCH)
            loop.remove_reader(self.keys)
            with contextlib.suppress(OSError, termios.error):
                self._give_back(before)

    def _take(self) -> None:
        tty.setcbreak(self.keys)
        _write(self.screen, _ENTER)

    def _give_back(self, before: list[Any]) -> None:
        _write(self.screen, _LEAVE)
        termios.tcsetattr(self.keys, termios.TCSADRAIN, before)


def cut(line: str, columns: int) -> str:
    """As much of a line as fits into so many columns; control sequences count nothing and all stay."""
    kept = []
    for number, piece in enumerate(_SEQUENCE.split(line)):
        is_text = number % 2 == 0
        if is_text and cell_len(piece) > columns:
            piece = set_cell_size(piece, columns)  # noqa: PLW2901 - what is kept of it
        if is_text:
            columns -= cell_len(piece)
        kept.append(piece)
    return "".join(kept)


def _write(screen: int, text: str) -> None:
    left = memoryview(text.encode())
    while left:
        left = left[os.write(screen, left) :]
