"""Let Ctrl-C end a process without a traceback while it imports its modules. Import this module first.

Until a service's event loop handles the signal, or a command calls `restore`, its default action ends the process."""

import signal
import sys

_defaulted = "asyncio" not in sys.modules and signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""Not where the parent process ignores the signal, nor in a process that has long been running, as a test's."""
if _defaulted:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def restore() -> None:
    """From now on Ctrl-C is a KeyboardInterrupt again."""
    if _defaulted:
        signal.signal(signal.SIGINT, signal.default_int_handler)
