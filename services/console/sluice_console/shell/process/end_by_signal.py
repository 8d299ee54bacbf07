"""Commands that clean up, also after SIGTERM or when their terminal is closed."""

import asyncio
import contextlib
import signal
from collections.abc import Iterator

from sluice_console.shell.errors import CommandError


class StoppedError(CommandError):
    """A signal came."""

    def __init__(self, number: signal.Signals, left: str) -> None:
        """`left` says what is left behind."""
        super().__init__(f"stopped by {number.name}; {left}")
        self.exit_code = 128 + number


@contextlib.contextmanager
def ended_by_signal(left: str) -> Iterator[None]:
    """SIGTERM and SIGHUP cancel this task as Ctrl-C does, so that it cleans up. Raises StoppedError then.

    Only the first one counts: an ending session sends both, and the second would interrupt the cleanup. A signal that
    the parent ignored (nohup) stays ignored."""
    task = asyncio.current_task()
    assert task is not None
    came: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        if not came:
            task.cancel()
        came.append(number)

    loop = asyncio.get_running_loop()
    heard = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]
    for number in heard:
        loop.add_signal_handler(number, end, number)
    try:
        yield
    except asyncio.CancelledError:
        if came:
            raise StoppedError(came[0], left) from None
        raise
    finally:
        for number in heard:
            loop.remove_signal_handler(number)
