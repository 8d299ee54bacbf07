# ruff: noqa: PTH123 - as in `mps_program`
"""How the MPS stand-in's daemon detaches from its caller, which continues when it listens (manual page, "-d")."""

import os
import sys

from sluice_node_agent.simulated.mps_daemon import NOT_FOUND, Daemon
from sluice_node_agent.simulated.mps_program import CONTROL_NAME


def start(pipe_directory: str, log_directory: str, *, background: bool) -> int:
    """Start the daemon. In the background, returns once it listens: 0, or 1 with the error on stderr."""
    if not background:
        return _serve(pipe_directory, log_directory, ready=None)
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        # Close all other inherited files: the daemon would keep them open.
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        os.chdir("/")
        os._exit(_serve(pipe_directory, log_directory, ready=theirs))
    os.close(theirs)
    os.waitpid(child, 0)
    with os.fdopen(ours, "rb") as reader:
        said = reader.read()
    if said == b"ready":
        return 0
    sys.stderr.write(said.decode() or NOT_FOUND)
    return 1


def _serve(pipe_directory: str, log_directory: str, *, ready: int | None) -> int:
    with open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write(CONTROL_NAME)
    daemon = Daemon(pipe_directory, log_directory)
    refusal = daemon.listen()
    if ready is None:
        sys.stderr.write(refusal)
    else:
        os.write(ready, refusal.encode() or b"ready")
        os.close(ready)
    return 1 if refusal else daemon.run()
