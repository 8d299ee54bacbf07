"""
Progress of `sluice run` on standard error: standard output is the command's alone.

On a terminal one changing line, elsewhere a line per change. Quiet mode prints failures only.
"""

import sys
from dataclasses import dataclass, field
from shutil import get_terminal_size

from sluice_console.core.output.sanitize import sanitize

PREFIX = "sluice run: "
_CLEAR = "\r\x1b[K"
"""Carriage return, erase in line (ECMA-48, EL)."""


@dataclass(slots=True)
class RunProgress:
    """The state of the line. `on_terminal` False prints plain lines."""

    on_terminal: bool = field(default_factory=lambda: sys.stderr.isatty())  # noqa: PLW0108  # as it is then
    quiet: bool = False
    _last: str = ""
    _is_open: bool = False
    """Whether a changing line is on the terminal."""

    def progress(self, text: str) -> None:
        """Show the state; repetitions are skipped."""
        if self.quiet or text == self._last:
            return
        self._last = text
        if not self.on_terminal:
            self._write(f"{PREFIX}{sanitize(text)}\n")
            return
        line = f"{PREFIX}{sanitize(' '.join(text.split()))}"
        room = max(20, get_terminal_size().columns - 1)
        self._write(_CLEAR + (line if len(line) <= room else line[: room - 1] + "…"))
        self._is_open = True

    def line(self, text: str) -> None:
        """Print a whole line that stays."""
        if not self.quiet:
            self.failure(text)

    def failure(self, text: str) -> None:
        """Print even in quiet mode."""
        self.close()
        self._write(f"{PREFIX}{sanitize(text)}\n")

    def close(self) -> None:
        """Erase the changing line: the terminal is the command's now."""
        if self._is_open:
            self._write(_CLEAR)
            self._is_open = False

    @staticmethod
    def _write(text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            return  # stderr is closed; the command goes on
