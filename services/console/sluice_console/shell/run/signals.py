"""
Signals of a runner, with their origin: the terminal's keys reach its command too, others do not.

Start before any thread: the signals are blocked in all threads and read by one of its own.
"""

import asyncio
import signal
import threading
from collections.abc import Callable

PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""Stopping (SIGTSTP) is not handled: runner and command stop together, as one job of the shell."""
MAYBE_IGNORED = (*PASSED_ON, signal.SIGTSTP)

Heard = Callable[[int, bool], None]
"""A signal's number, and whether the kernel sent it to the whole group (a terminal's key)."""


def ignored_before() -> tuple[int, ...]:
    """Signals that the parent wants ignored."""
    return tuple(number for number in MAYBE_IGNORED if signal.getsignal(number) is signal.SIG_IGN)


def block() -> tuple[int, ...]:
    """Block the forwarded signals in this thread and its later children; returns them."""
    taken = tuple(number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, taken)
    return taken


def listen(taken: tuple[int, ...], heard: Heard) -> None:
    """From now on, call `heard` in the running loop for each of these signals."""
    loop = asyncio.get_running_loop()

    def take() -> None:
        while True:
            info = signal.sigwaitinfo(taken)
            by_terminal = info.si_code > 0  # SI_KERNEL; what a process sent is 0 or less (sigaction(2))
            try:
                loop.call_soon_threadsafe(heard, info.si_signo, by_terminal)
            except RuntimeError:
                return  # the loop has ended, and the process ends, too

    threading.Thread(target=take, name="signals", daemon=True).start()
