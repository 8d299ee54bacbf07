"""A terminal that is taken as a screen: Ctrl-Z, too, gives it back as it was."""

import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from fcntl import ioctl

import pytest

from sluice_console.shell.output.terminal import Terminal

PROGRAM = """
import asyncio
from sluice_console.shell.output.terminal import Terminal

async def main():
    over = asyncio.Event()
    terminal = Terminal(0, 1)
    draw = lambda: terminal.draw(["the fleet"])
    async with terminal.taken(lambda typed: over.set(), draw):
        draw()
        await over.wait()

asyncio.run(main())
"""
ENTER, LEAVE = b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l"


def read_until(screen: int, text: bytes) -> bytes:
    shown = b""
    while text not in shown:
        assert select.select([screen], [], [], 10)[0], f"{text!r} is not shown, but {shown!r}"
        shown += os.read(screen, 4096)
    return shown


def test_a_stopped_top_leaves_the_shell_a_terminal_as_it_was():
    """Else there is no cursor at the prompt, on a screen that is not the shell's own."""
    far, near = pty.openpty()
    before = termios.tcgetattr(near)
    ends = {"stdin": near, "stdout": near}
    shown = subprocess.Popen([sys.executable, "-c", PROGRAM], process_group=0, **ends)
    try:
        read_until(far, b"the fleet")
        shown.send_signal(signal.SIGTSTP)
        _, status = os.waitpid(shown.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert read_until(far, LEAVE).endswith(LEAVE)
        assert termios.tcgetattr(near) == before
        shown.send_signal(signal.SIGCONT)
        assert ENTER in read_until(far, b"the fleet")
        os.write(far, b"q")
        assert shown.wait(10) == 0
        assert termios.tcgetattr(near) == before
    finally:
        shown.kill()
        shown.wait()
        os.close(far)
        os.close(near)


SEQUENCE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")


def seen(sent: str, columns: int) -> list[str]:
    """What a terminal shows that does not wrap (xterm): a character behind the last column takes that one's place."""
    lines, row, column, at = {}, 0, 0, 0
    while at < len(sent):
        sequence = SEQUENCE.match(sent, at)
        if sequence is not None:
            at = sequence.end()
            if sequence[2] == "H":
                row = column = 0
            elif sequence[2] == "K":
                lines[row] = lines.get(row, [" "] * columns)[:column] + [" "] * (columns - column)
            elif sequence[2] == "J":
                lines = {number: line for number, line in lines.items() if number <= row}
            continue
        match sent[at]:
            case "\r":
                column = 0
            case "\n":
                row += 1
            case character:
                lines.setdefault(row, [" "] * columns)[column] = character
                column = min(column + 1, columns - 1)
        at += 1
    return ["".join(lines[number]).rstrip() for number in sorted(lines)]


@pytest.mark.parametrize(("columns", "width"), [(20, 19), (20, 20), (20, 21), (40, 300)])
def test_a_full_line_shows_its_last_character(columns, width):
    """In a table as wide as the terminal the last digit was gone, unnoticed."""
    far, near = pty.openpty()
    try:
        ioctl(near, termios.TIOCSWINSZ, struct.pack("HHHH", 10, columns, 0, 0))
        line = "".join(chr(ord("a") + number % 26) for number in range(width))
        Terminal(near, near).draw(["x" * columns, f"\x1b[1m{line}\x1b[0m", "short"])
        sent = read_until(far, b"short").decode()
        assert seen(sent, columns) == ["x" * columns, line[:columns], "short"]
    finally:
        os.close(far)
        os.close(near)
