"""A terminal that is taken as a screen: Ctrl-Z, too, gives it back as it was."""

import os
import pty
import select
import signal
import subprocess
import sys
import termios

PROGRAM = """
import asyncio
from sluice_console.shell.terminal import Terminal

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
    """What is shown, up to a text."""
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
