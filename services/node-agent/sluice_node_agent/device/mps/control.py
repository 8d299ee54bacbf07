"""Talks to one home's control daemon through the control binary, and finds the home's processes. Its answers are
unmarked, so one conversation only asks for answers that differ in form. It kills nothing."""

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice_node_agent.core.journal_records import MpsLimits
from sluice_node_agent.device.mps.home_directory import HomeDirectory, MpsError, as_mps_error
from sluice_node_agent.device.processes import Processes, communicate, killed_at_end

_CONTROL, _SERVER = "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"
_COMM = _CONTROL[:15]
"""Both names in /proc/<pid>/comm, which is cut after 15 characters (proc(5))."""
_SAID_ONCE = ("quit", "terminate_client")
_NOBODY = "Cannot find MPS control daemon process"
_PERCENTAGE = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,10})?")
_MEMORY = re.compile(r"([0-9]{1,12})([MG])")
_NUMBER = re.compile(r"[0-9]{1,10}")
_ENVIRON_MAX_BYTES = 256 * 1024
ANSWER_MAX_BYTES = 1024 * 1024
"""The most that one conversation may print: normally some numbers and a line or two."""


class NoDaemonError(MpsError):
    """No daemon answers on the pipe directory."""


class _BrokenError(MpsError):
    """The daemon ended the conversation."""


class NoAnswerError(MpsError):
    """The daemon took too long."""


@dataclass(frozen=True, slots=True)
class MpsProcess:
    """A process of a home: its control daemon, or a server. `pid` and `started_at` identify it."""

    pid: int
    started_at: int
    is_server: bool


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits as read back; None where none was printed."""

    percentage: float | None
    memory: tuple[int, str] | None

    def mismatch(self, ordered: MpsLimits) -> str:
        """How the limits differ, or empty. Memory is printed in MiB below one GiB, else in GiB, rounded down."""
        if self.percentage is None or self.percentage != ordered.active_thread_percentage:
            return f"active thread percentage was set to {ordered.active_thread_percentage}, reads {self.percentage}"
        shown = "nothing" if self.memory is None else f"{self.memory[0]}{self.memory[1]}"
        divisor = 1024 if self.memory is not None and self.memory[1] == "G" else 1
        if self.memory is None or self.memory[0] != ordered.memory_mib // divisor:
            return f"memory limit of device 0 was set to {ordered.memory_mib}M, reads {shown}"
        return ""


class MpsControl:
    """The control daemon of one home."""

    def __init__(
        self, directory: HomeDirectory, control: Path, processes: Processes, environment: Mapping[str, str]
    ) -> None:
        """`environment` is the binary's whole environment, besides the home's directories."""
        self._directory = directory
        self._control = control
        self._processes = processes
        pipe, log = str(directory.pipe), str(directory.log)
        self._environment = {**environment, "CUDA_MPS_PIPE_DIRECTORY": pipe, "CUDA_MPS_LOG_DIRECTORY": log}

    def launch(self, device: str, timeout_s: float) -> None:
        """Start the daemon in a session of its own, so that it outlives the agent. Raises MpsError with the output."""
        environment = {**self._environment, "CUDA_VISIBLE_DEVICES": device}
        with tempfile.TemporaryFile() as said:  # a pipe would be held open by the daemon
            try:
                with killed_at_end(
                    subprocess.Popen(  # noqa: S603 - the control binary, as it was configured
                        [self._control, "-d"],
                        stdin=subprocess.DEVNULL,
                        stdout=said,
                        stderr=said,
                        env=environment,
                        cwd="/",
                        start_new_session=True,
                    )
                ) as started:
                    status = started.wait(max(timeout_s, 0.01))
            except TimeoutError as error:
                text = f"home {self._directory.home}: no answer to '-d' within {timeout_s:.1f} s"
                raise NoAnswerError(text) from error
            except OSError as error:
                raise MpsError(f"{self._control} cannot be run: {error.strerror}") from error
            said.seek(0)
            words = _one_line(said.read(4096).decode("utf-8", "replace"))
        if status != 0:
            words = words or self._directory.last_line("control.log") or "it said nothing"
            failed = f"{self._control} -d failed with exit status {status}"
            raise MpsError(f"home {self._directory.home}: {failed}: {words}")

    def ask(self, commands: tuple[str, ...], timeout_s: float) -> list[str]:
        """The lines that commands are answered with. Raises NoDaemonError, NoAnswerError, MpsError. A broken
        conversation is repeated once, except `quit` and `terminate_client`: 535.261 drops it when a server ends at that
        moment."""
        try:
            return self._ask(commands, timeout_s)
        except _BrokenError:
            if commands[0].startswith(_SAID_ONCE):
                raise
            return self._ask(commands, timeout_s)

    def _ask(self, commands: tuple[str, ...], timeout_s: float) -> list[str]:
        lines = "".join(f"{command}\n" for command in commands).encode()
        try:
            status, data = communicate([self._control], lines, self._environment, timeout_s, bytes_max=ANSWER_MAX_BYTES)
        except TimeoutError:
            what = ", ".join(commands)
            text = f"home {self._directory.home}: no answer to {what!r} within {timeout_s:.1f} s"
            raise NoAnswerError(text) from None
        except OSError as error:
            raise MpsError(f"{self._control} cannot be run: {error.strerror}") from error
        if len(data) > ANSWER_MAX_BYTES:
            said_to = f"home {self._directory.home}: {', '.join(commands)!r}"
            raise MpsError(f"{said_to} was answered with more than {ANSWER_MAX_BYTES} bytes; no answer is as long")
        text = data.decode("utf-8", "replace")
        if _NOBODY in text:
            raise NoDaemonError(f"home {self._directory.home}: its MPS control daemon does not run")
        if status != 0:
            words = _one_line(text) or f"exit status {status}"
            raise _BrokenError(f"home {self._directory.home}: {', '.join(commands)!r} failed: {words}")
        return answers_in(text)

    def servers(self, timeout_s: float) -> tuple[int, ...]:
        """The daemon's servers, also those that are starting."""
        return numbers_in(self.ask(("get_server_list",), timeout_s))

    def state_of(self, server: int, timeout_s: float) -> tuple[str | None, tuple[int, ...]]:
        """A server's state (INITIALIZING, ACTIVE, FAULT; empty with 535.261; None: no such server) and its clients."""
        lines = self.ask((f"get_server_status {server}", f"get_client_list {server}"), timeout_s)
        words = [line for line in lines if not _NUMBER.fullmatch(line)]
        if any("not found" in line for line in words):
            return None, ()
        state = next((line for line in words if not line.startswith("Unknown command")), "")
        return state, numbers_in(lines)

    def start_server(self, uid: int, timeout_s: float) -> tuple[int, ...]:
        """Start a server for a user unless there is one, of any user; returns the servers that then exist."""
        try:
            return numbers_in(self.ask((f"start_server -uid {uid}", "get_server_list"), timeout_s))
        except _BrokenError:  # its server ended at once, and took the conversation with it (seen with both releases)
            return self.servers(timeout_s)

    def clients_of(self, server: int, timeout_s: float) -> tuple[int, ...]:
        """The clients of a server; none when there is no such server."""
        return numbers_in(self.ask((f"get_client_list {server}",), timeout_s))

    def terminate(self, server: int, pid: int, timeout_s: float) -> str:
        """Have a server disconnect a client, once (`TerminatedClients`); returns its error, if one is printed."""
        said = self.ask((f"terminate_client {server} {pid}",), timeout_s)
        return "" if said in ([], ["0"]) else _one_line(" ".join(said))

    def set_defaults(self, limits: MpsLimits, timeout_s: float) -> None:
        """Set the limits of the next server, and read them back. Raises MpsError when they differ."""
        percentage, memory = limits.active_thread_percentage, f"0 {limits.memory_mib}M"
        commands = (
            f"set_default_active_thread_percentage {percentage}",
            f"set_default_device_pinned_mem_limit {memory}",
            "get_default_active_thread_percentage",
            "get_default_device_pinned_mem_limit 0",
        )
        self._check("default", limits, self.ask(commands, timeout_s))

    def set_limits(self, server: int, limits: MpsLimits, timeout_s: float) -> None:
        """Set a running server's limits for new clients, and read them back."""
        commands = (
            f"set_active_thread_percentage {server} {limits.active_thread_percentage}",
            f"set_device_pinned_mem_limit {server} 0 {limits.memory_mib}M",
            *_queries(server),
        )
        self._check(f"server {server}'s", limits, self.ask(commands, timeout_s))

    def check_limits(self, server: int, limits: MpsLimits, timeout_s: float) -> None:
        """Read back a running server's limits. Raises MpsError when they are not `limits`."""
        self._check(f"server {server}'s", limits, self.ask(_queries(server), timeout_s))

    def _check(self, whose: str, limits: MpsLimits, lines: list[str]) -> None:
        wrong = limits_in(lines).mismatch(limits)
        if wrong:
            other = [line for line in lines if not _PERCENTAGE.fullmatch(line) and not _MEMORY.fullmatch(line)]
            said = f" (it said: {_one_line(' '.join(other))})" if other else ""
            raise MpsError(f"home {self._directory.home}: the {whose} {wrong}{said}")

    @as_mps_error()
    def processes(
        self, device: str, pods: frozenset[str], pids: tuple[int, ...] | None = None
    ) -> tuple[MpsProcess, ...]:
        """The processes of this home, daemons first: by name, and by our directory in their environment. `device` is
        the daemon's visible device, or empty. `pods` are those that it may be in: a tenant may use these names, but
        cannot leave its cgroup. Raises MpsError when one of `pids` cannot be read: it may be the daemon."""
        found = []
        wanted = {f"CUDA_MPS_PIPE_DIRECTORY={self._directory.pipe}".encode()}
        if device:
            wanted.add(f"CUDA_VISIBLE_DEVICES={device}".encode())
        for pid in candidates(self._processes) if pids is None else pids:
            started_at = self._processes.started_at(pid)
            if not started_at or self._processes.owner_of(pid) not in pods:
                continue
            if not wanted <= set(self._processes.read(pid, "environ", _ENVIRON_MAX_BYTES).split(b"\0")):
                continue
            kind = _kind_of(self._processes.command_of(pid))
            if kind is not None and self._processes.started_at(pid) == started_at:
                found.append(MpsProcess(pid, started_at, kind == _SERVER))
        return tuple(sorted(found, key=lambda process: (process.is_server, process.pid)))


def candidates(processes: Processes) -> tuple[int, ...]:
    """All processes with the names of MPS daemons and servers, of any owner. Raises MpsError."""
    try:
        return tuple(pid for pid in processes.pids() if processes.name_of(pid) == _COMM)
    except OSError as error:
        raise MpsError(f"the processes of this node cannot be listed: {processes.root}: {error.strerror}") from error


def limits_in(lines: list[str]) -> ServerLimits:
    """The last percentage and the last size in the answers."""
    percentages = [float(line) for line in lines if _PERCENTAGE.fullmatch(line)]
    sizes = [found for line in lines if (found := _MEMORY.fullmatch(line))]
    memory = (int(sizes[-1][1]), sizes[-1][2]) if sizes else None
    return ServerLimits(percentages[-1] if percentages else None, memory)


def _kind_of(command: tuple[str, ...]) -> str | None:
    names = [Path(argument).name for argument in command]
    if _SERVER in names:
        return _SERVER
    return _CONTROL if _CONTROL in names and {"-d", "-f"} & set(command) else None


def _queries(server: int) -> tuple[str, str]:
    return f"get_active_thread_percentage {server}", f"get_device_pinned_mem_limit {server} 0"


def answers_in(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def numbers_in(lines: list[str]) -> tuple[int, ...]:
    return tuple(int(line) for line in lines if _NUMBER.fullmatch(line))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
