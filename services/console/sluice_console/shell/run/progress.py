"""
What `sluice run` says while it waits, on standard error: the standard output is the command's alone.

On a terminal one line that changes, elsewhere a line per change. Nothing when it was asked to be quiet but failures.
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
    """Where the present line stands. `on_terminal` False writes plain lines."""

    on_terminal: bool = field(default_factory=lambda: sys.stderr.isatty())  # noqa: PLW0108  # as it is then
    quiet: bool = False
    _last: str = ""
    _is_open: bool = False
    """Whether a line that will change is on the terminal."""

    def progress(self, text: str) -> None:
        """How it stands now; the same twice is said once."""
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
        """Something to be kept: a whole line."""
        if not self.quiet:
            self.failure(text)

    def failure(self, text: str) -> None:
        """Said also when quiet."""
        self.close()
        self._write(f"{PREFIX}{sanitize(text)}\n")

    def close(self) -> None:
        """Take away the line that changes: the terminal is the command's now."""
        if self._is_open:
            self._write(_CLEAR)
            self._is_open = False

    @staticmethod
    def _write(text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            return  # nobody reads it any more; the command goes on
