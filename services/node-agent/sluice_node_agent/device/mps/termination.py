"""End the processes of a home, and no others: by a handle that cannot become another process."""

import errno
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

from sluice.contracts.ids import HomeId
from sluice.runtime import logs
from sluice_node_agent.device.mps.control import MpsProcess
from sluice_node_agent.device.mps.home_directory import MpsError, as_mps_error
from sluice_node_agent.device.processes import Processes

_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.004, 0.1


class Deadline:
    """The end of a call's time."""

    def __init__(self, timeout_s: float) -> None:
        self._at = time.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        """Seconds left; never below a hundredth, so that what is nearly done may finish."""
        return max(self._at - time.monotonic(), 0.01)

    @property
    def over(self) -> bool:
        return time.monotonic() >= self._at

    def part_s(self, part: float) -> float:
        return self.left_s * part

    def pauses(self) -> Iterator[None]:
        """Yield at once, then after growing pauses, and a last time when the time is over."""
        pause_s = _PAUSE_FIRST_S
        yield
        while (left_s := self._at - time.monotonic()) > 0:
            time.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 2, _PAUSE_MAX_S)
            yield


class HomeTermination:
    """Ends the processes of MPS homes."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    def end(self, home: HomeId, running: tuple[MpsProcess, ...], deadline: "Deadline") -> None:
        """Kill processes of a home, daemons first so that none starts another server. Raises MpsError."""
        for process in running:
            if self._kill(process):
                logs.get("mps").warning("killed", home=home, pid=process.pid, server=process.is_server)
        left = self.await_end(running, deadline.left_s)
        if left:
            pids = ", ".join(str(process.pid) for process in left)
            raise MpsError(f"home {home}: process {pids} of its MPS daemon does not end")

    def _kill(self, process: MpsProcess) -> bool:
        """Kill a process, unless its pid is another's by now: the handle is taken before the comparison."""
        handle = -1
        try:
            handle = _handle_of(process.pid)
            if self._processes.started_at(process.pid) != process.started_at:
                return False
            if handle >= 0:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            else:
                os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        except OSError as error:
            raise MpsError(f"process {process.pid} of an MPS daemon cannot be killed: {error.strerror}") from error
        finally:
            if handle >= 0:
                os.close(handle)
        return True

    @as_mps_error()
    def await_end(self, running: tuple[MpsProcess, ...], timeout_s: float) -> tuple[MpsProcess, ...]:
        """Wait for processes to end; returns those that have not. Raises MpsError when they cannot be read."""
        left = running
        for _ in Deadline(timeout_s).pauses():
            left = tuple(process for process in left if self._processes.started_at(process.pid) == process.started_at)
            for process in running:
                _reap(process.pid)
            if not left:
                break
        return left


def _handle_of(pid: int) -> int:
    """A pidfd of a process; -1 on kernels before 5.3, which have none: a race of microseconds remains there."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return -1
        raise


def _reap(pid: int) -> None:
    """If the agent is pid 1 of its container, detached daemons become its children: reap them."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
