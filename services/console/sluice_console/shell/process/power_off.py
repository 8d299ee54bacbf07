"""
Ends simulated nodes' MPS daemons when their machine is switched off: `python -S power_off.py DATA_DIR [MPS_DIR]`.

A daemon outlives its node's agent, as on a real node; but simulated nodes end with their `sluice up`, also when that is
killed. So `up` starts this program and holds the other end of its input; at its end, for any reason, it ends the
daemons and itself. It ends only MPS daemons and servers whose environment names hardware of this data directory, and
holds a pidfd of each while it checks. MPS_DIR, the folder of their sockets if not in the data directory, is removed.
Until then it holds the inherited lock of the data directory, so that the next `up` starts no daemons that it could take
for old ones.
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

WITHIN_S = 8.0
"""Agents are stopped or killed first; one that is about to start a daemon has this long to end."""
_LOOK_EVERY_S = 0.05
_HARDWARE = b"SLUICE_SIMULATED_HARDWARE="
_AGENTS_DATA = b"SLUICE_DATA_DIR="
_DAEMON, _AGENT = b"nvidia-cuda-mps-", b"sluice_node_agent"


def power_off(data_dir: Path, *, within_s: float = WITHIN_S, proc: Path = Path("/proc")) -> bool:
    """End the daemons of this data directory's simulated nodes. False if some are left after `within_s`."""
    deadline = time.monotonic() + within_s
    while True:
        daemons, agents = _found(data_dir, proc)
        for pid in daemons:
            _kill(pid, data_dir, proc)
        if not daemons and not agents:
            return True
        if time.monotonic() >= deadline:
            return not daemons
        time.sleep(_LOOK_EVERY_S)


def _found(data_dir: Path, proc: Path) -> tuple[list[int], list[int]]:
    """Pids of the daemons and their servers, and of agents that could still start one."""
    daemons, agents = [], []
    for pid in _pids(proc):
        if _is_daemon(pid, data_dir, proc):
            daemons.append(pid)
        elif _is_agent(pid, data_dir, proc):
            agents.append(pid)
    return daemons, agents


def _pids(proc: Path) -> Iterator[int]:
    try:
        names = [entry.name for entry in proc.iterdir()]
    except OSError:  # not Linux: no daemons either
        return
    yield from (int(name) for name in names if name.isdecimal())


def _is_daemon(pid: int, data_dir: Path, proc: Path) -> bool:
    hardware = _HARDWARE + os.fsencode(data_dir) + b"/"
    return _DAEMON in _read(proc, pid, "cmdline") and any(
        word.startswith(hardware) for word in _read(proc, pid, "environ").split(b"\0")
    )


def _is_agent(pid: int, data_dir: Path, proc: Path) -> bool:
    data = _AGENTS_DATA + os.fsencode(data_dir)
    return _AGENT in _read(proc, pid, "cmdline") and data in _read(proc, pid, "environ").split(b"\0")


def _read(proc: Path, pid: int, name: str) -> bytes:
    try:
        return (proc / str(pid) / name).read_bytes()
    except OSError:
        return b""  # it has ended, or belongs to another user


def _kill(pid: int, data_dir: Path, proc: Path) -> None:
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return  # it has ended meanwhile
    try:
        if _is_daemon(pid, data_dir, proc):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return  # it ended by itself
    finally:
        os.close(handle)


def main() -> int:
    """Wait for the end of the input, then end the daemons."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a Ctrl-C is for `up`, which stops everything in its order
    while os.read(0, 1024):
        pass
    done = power_off(Path(sys.argv[1]))
    for mps_dir in sys.argv[2:]:
        shutil.rmtree(mps_dir, ignore_errors=True)
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
