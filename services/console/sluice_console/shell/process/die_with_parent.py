"""
Runs a command that must not outlive the process that started it: `python -S die_with_parent.py PARENT_PID COMMAND...`.

Asks the kernel (prctl, PR_SET_PDEATHSIG; Linux) to kill this process when its parent dies, then becomes the command;
the wish survives the exec. So even `kill -9` of `sluice up` leaves nothing behind. Its own program, because running
Python between fork and exec in a process with threads can hang.
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
        sys.exit(1)  # it died before the kernel knew our wish
    os.execvp(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
