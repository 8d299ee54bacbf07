"""
Runs a command that ends with the process that started it: `python -S die_with_parent.py PARENT_PID COMMAND...`.

Asks the kernel (prctl, PR_SET_PDEATHSIG; Linux) to kill this process when its parent dies, then becomes the command;
the setting survives exec. So even `kill -9` of `sluice up` leaves nothing behind. A program of its own, because Python
code between fork and exec can hang in a process with threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent, then become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)  # the parent died before prctl took effect
    os.execvp(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
