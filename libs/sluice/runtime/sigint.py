"""
Let Ctrl-C end a process without a traceback while it imports its modules. Import this module first.

Python's own handler raises KeyboardInterrupt in the middle of whatever is imported, where nothing can catch it. The
signal's default ends the process as the shell expects it (exit code 130). Services leave it so until their event loop
takes the signal; commands, which have something to put in order, call `restore`. It imports nothing that takes time.
"""

import signal
import sys

_defaulted = "asyncio" not in sys.modules and signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""Not where who started us wants the signal to be ignored, nor in a process that began long ago, as a test's."""
if _defaulted:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def restore() -> None:
    """From now on Ctrl-C is a KeyboardInterrupt again, for somebody catches it."""
    if _defaulted:
        signal.signal(signal.SIGINT, signal.default_int_handler)
