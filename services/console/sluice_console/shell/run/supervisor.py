"""
Supervises a command on a slice: starts it, and releases the slice when none of its processes is left.

`python -I -S supervisor.py GROUP CONTROL STATUS IGNORED MANIFEST COMMAND...`, started by `sluice run`, which it
outlives. The file MANIFEST is the request for the slice while it exists and is locked; the lock is inherited from the
runner, and by the command. So whichever process is killed, the request ends after the last process.

- It is a subreaper (prctl, PR_SET_CHILD_SUBREAPER; Linux): everything the command starts stays below it, daemons too.
- The end of CONTROL means that the runner has died: everything gets SIGTERM, and SIGKILL after GRACE_S.
- A byte on CONTROL is a signal for the command, or one of the two orders below.
- STATUS gets lines: `started PID`, `failed ERRNO`, `ended CODE` (negative: by a signal),
  `left PID ...` (not ended yet), and `done` when the manifest is removed.
- If this process is killed, the kernel kills the command (PR_SET_PDEATHSIG), and the runner the rest.

The command is in the runner's process group, as if a shell had started it: the terminal's keys reach it. This process
is not, so that a signal for the group does not reach it. It imports only the standard library, and prints nothing: the
terminal is the command's.
"""

import contextlib
import ctypes
import errno
import os
import select
import signal
import sys
import time
from pathlib import Path

ASK_TO_END = 0
"""On CONTROL: the slice is taken away. SIGTERM, and SIGKILL after EVICTED_GRACE_S."""
END_NOW = 255
"""On CONTROL: SIGKILL."""
GRACE_S = 2.0
"""Seconds from SIGTERM to SIGKILL when no runner waits for the command: the slice is to be free within 5 s."""
EVICTED_GRACE_S = 10.0
LOOK_EVERY_S = 0.05
LEFT_AFTER_S = 3.0
"""Seconds from SIGKILL to the report of what is left: a process of another user, or one hanging in a driver."""
LEFT_LOOK_EVERY_S = 0.5
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
OURS = (
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGPIPE,
)
"""Ignored here: only the runner and the command decide about the end."""


def set_process(option: int, value: int) -> None:
    """prctl(2), which Python lacks. Does nothing where it is missing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


Process = tuple[int, int]
"""A pid and its start time (clock ticks since boot, proc(5)): together unique until reboot."""


def descendants(of: int, *, but: frozenset[int] = frozenset()) -> list[Process]:
    """Every process below one, without zombies, and without `but` and those below them."""
    below: dict[int, list[Process]] = {}
    dead = set()
    for name in os.listdir("/proc"):  # noqa: PTH208  # pathlib makes an object of each
        if name.isdecimal() and (stat := _stat(int(name))) is not None:
            state, parent, started = stat
            below.setdefault(parent, []).append((int(name), started))
            if state in {b"Z", b"X"}:
                dead.add(int(name))
    found: list[Process] = []
    above = [of]
    while above:
        for pid, started in below.get(above.pop(), []):
            if pid not in but:
                above.append(pid)
                if pid not in dead:
                    found.append((pid, started))
    return found


def _stat(pid: int) -> tuple[bytes, int, int] | None:
    """State, parent and start time of a process; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[1]), int(fields[19])


def end_all(processes: list[Process], number: int) -> None:
    """Send a signal to each; processes that ended or belong to others are skipped."""
    for pid, started in processes:
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                found = _stat(pid)
                if found is not None and found[2] == started:
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)


def killed_below(pid: int, *, but: frozenset[int], within_s: float) -> list[int]:
    """Kill everything below a subreaper, and reap its children; returns the pids left after so long."""
    deadline = time.monotonic() + within_s
    while there := descendants(pid, but=but):
        end_all(there, signal.SIGKILL)
        if time.monotonic() >= deadline:
            break
        time.sleep(LOOK_EVERY_S)
    return [each for each, _ in there]


class Supervisor:
    """One command and its processes."""

    def __init__(self, *, control: int, status: int, manifest: str) -> None:
        """Take the two pipe ends."""
        self._control, self._status, self._manifest = control, status, manifest
        self._child = 0
        self._is_running = False
        self._kill_at: float | None = None
        """When the run was ended; None while the command runs normally."""
        self._told_left: list[Process] = []

    def run(self, group: int, ignored: frozenset[int], command: list[str]) -> None:
        """Start the command, and return when none of its processes is left."""
        wake, woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        for number in OURS:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        set_process(PR_SET_CHILD_SUBREAPER, 1)
        self._start(group, ignored, command)
        while self._is_running or self._is_anything_left():
            heard = [wake, self._control] if self._control >= 0 else [wake]
            readable, _, _ = select.select(heard, [], [], self._pause_s())
            if wake in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
            if self._control in readable:
                self._listen()
            self._reap()
        with contextlib.suppress(FileNotFoundError):
            Path(self._manifest).unlink()
        self._tell("done")

    def _start(self, group: int, ignored: frozenset[int], command: list[str]) -> None:
        failed, fails = os.pipe2(os.O_CLOEXEC)
        keeper = os.getpid()
        child = os.fork()
        if child == 0:
            try:
                become(command, keeper=keeper, group=group, ignored=ignored)
            except OSError as error:
                os.write(fails, str(error.errno or errno.EIO).encode())
            finally:
                os._exit(127)
        os.close(fails)
        self._child, self._is_running = child, True
        why = os.read(failed, 32)  # ends when the command has taken over
        os.close(failed)
        self._tell(f"failed {why.decode()}" if why else f"started {child}")

    def _listen(self) -> None:
        orders = os.read(self._control, 256)
        if not orders:
            os.close(self._control)
            self._control = -1
            self._end_within(GRACE_S)
        for order in orders:
            if order == END_NOW:
                self._end_within(0)
            elif order == ASK_TO_END:
                self._end_within(EVICTED_GRACE_S)
            elif self._is_running:
                os.kill(self._child, order)  # it is there, or a zombie, until we have waited for it

    def _end_within(self, grace_s: float) -> None:
        """End everything gently and kill it later; an earlier deadline stays."""
        if self._kill_at is None and grace_s:
            there = descendants(os.getpid())
            end_all(there, signal.SIGTERM)
            end_all(there, signal.SIGCONT)  # what is stopped cannot end
        at = time.monotonic() + grace_s
        self._kill_at = at if self._kill_at is None else min(at, self._kill_at)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._child and self._is_running:
                self._is_running = False
                self._tell(f"ended {os.waitstatus_to_exitcode(status)}")

    def _is_anything_left(self) -> bool:
        """Whether processes of the command are left; ends them once the command or the runner has ended."""
        there = descendants(os.getpid())
        if not there:
            return False
        if self._kill_at is None:
            self._end_within(GRACE_S)
        self._kill(there)
        return True

    def _kill(self, there: list[Process]) -> None:
        assert self._kill_at is not None
        late_s = time.monotonic() - self._kill_at
        if late_s >= 0:
            end_all(there, signal.SIGKILL)
        if late_s >= LEFT_AFTER_S and there != self._told_left:
            self._told_left = there
            self._tell(f"left {' '.join(str(pid) for pid, _ in there)}")

    def _pause_s(self) -> float | None:
        """The next deadline. A running command has none."""
        if self._kill_at is None:
            return None
        if self._is_running and time.monotonic() >= self._kill_at:
            self._kill(descendants(os.getpid()))
        return LEFT_LOOK_EVERY_S if self._told_left else LOOK_EVERY_S

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError):  # the runner has died
            os.write(self._status, f"{line}\n".encode())


def become(command: list[str], *, keeper: int, group: int, ignored: frozenset[int]) -> None:
    """In the child: set up what a shell would have. Raises OSError."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with contextlib.suppress(OSError):  # the runner and its group have ended
        os.setpgid(0, group)
    for number in OURS:
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    set_process(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(1)  # the parent died before prctl took effect
    os.execvp(command[0], command)  # noqa: S606  # no shell is wanted


def main() -> None:
    """Supervise one command."""
    group, control, status = (int(word) for word in sys.argv[1:4])
    ignored = frozenset(int(number) for number in sys.argv[4].split(",") if number)
    with contextlib.suppress(OSError):  # already a group leader
        os.setpgid(0, 0)
    for descriptor in (control, status):
        os.set_inheritable(descriptor, False)
    Supervisor(control=control, status=status, manifest=sys.argv[5]).run(group, ignored, sys.argv[6:])


if __name__ == "__main__":
    main()
