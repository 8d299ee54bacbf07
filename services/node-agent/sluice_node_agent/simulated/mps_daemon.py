# ruff: noqa: PTH101, PTH108, PTH123
"""The control daemon of the MPS stand-in: starts servers, passes clients to them, answers commands. Its answers, its
control.log and the files it leaves are as observed with releases 535.261 and 550.163."""

import contextlib
import fcntl
import json
import os
import select
import selectors
import signal
import socket
import struct
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from sluice_node_agent.simulated import mps_program
from sluice_node_agent.simulated.hardware_lines import ProcessEntries
from sluice_node_agent.simulated.mps_commands import Defaults, answer
from sluice_node_agent.simulated.mps_server import spawn_server, stamp

PENDING_MAX = 256
"""Clients that may wait for a server; more are rejected."""
_FORCE_S = 0.2
"""How long a server has, after an order to leave at once, before it is killed."""
NOT_FOUND = "Cannot find MPS control daemon process\n"


@dataclass
class ServerHandle:
    """A server process, as its daemon sees it."""

    pid: int
    uid: int
    link: socket.socket
    percentage: float
    memory_mib: dict[int, int]
    state: str = "INITIALIZING"
    clients: list[int] = field(default_factory=list)
    terminated: set[int] = field(default_factory=set)
    draining: bool = False


@dataclass
class _Waiting:
    connection: socket.socket
    pid: int
    hello: dict[str, Any]


class Daemon:
    """One control daemon."""

    def __init__(self, pipe_directory: str, log_directory: str) -> None:
        self.defaults = Defaults()
        self.server: ServerHandle | None = None
        self._pipe = pipe_directory
        self._selector = selectors.DefaultSelector()
        self._pending: deque[_Waiting] = deque()
        self._quitter: socket.socket | None = None
        self._forced_at = float("inf")
        self._graceful = True
        device = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        self._hardware = ProcessEntries(os.environ.get(mps_program.HARDWARE_VARIABLE, ""), device)
        self._logs = [_open_log(log_directory, name) for name in ("control.log", "server.log")]

    def listen(self) -> str:
        """Listen in the directory; returns the real daemon's error message, or nothing."""
        if not os.access(self._pipe, os.W_OK | os.X_OK):
            return f"Cannot access CUDA_MPS_PIPE_DIRECTORY={self._pipe}\n"
        self._lock = os.open(f"{self._pipe}/control_lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return "An instance of this daemon is already running\n"
        if self.switched("start_fails"):
            return NOT_FOUND
        old = os.umask(0)
        try:
            for name, mode in (("control", 0o666), ("control_privileged", 0o755)):
                path = f"{self._pipe}/{name}"
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                try:
                    listener.bind(path)
                except OSError:  # over 107 bytes; the real one prints no more
                    return NOT_FOUND
                os.chmod(path, mode)
                listener.listen(PENDING_MAX)
                self._selector.register(listener, selectors.EVENT_READ, name)
            pid_file = os.open(self._pid_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        finally:
            os.umask(old)
        os.write(pid_file, str(os.getpid()).encode())
        os.close(pid_file)
        self.log(f"Starting control daemon using socket {self._pipe}/control")
        self.log(f"To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={self._pipe}")
        return ""

    def run(self) -> int:
        """Serve until `quit`; returns the exit status."""
        while not (self._quitter is not None and self.server is None):
            left_s = self._forced_at - time.monotonic()
            if left_s <= 0 and self.server is not None:
                if self._graceful:
                    self._graceful = False
                    self._forced_at += _FORCE_S
                    self._tell({"do": "leave", "force": True})
                else:
                    self._forced_at = float("inf")
                    os.kill(self.server.pid, signal.SIGKILL)  # our child, not yet reaped: its pid is not reused
            for key, _ in self._selector.select(None if self._forced_at == float("inf") else max(left_s, 0.0)):
                self._on_event(key)
        assert self._quitter is not None
        status = 0 if self._graceful else 1
        self.log(f"Exit with status {status}")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._pid_path)  # control, control_lock and control_privileged stay, as the real one's do
        with contextlib.suppress(OSError):
            self._quitter.send(f"Q{status}".encode())
        return status

    def log(self, line: str) -> None:
        if self._logs[0] is not None:
            os.write(self._logs[0], f"[{stamp()} Control {os.getpid():5}] {line}\n".encode())

    @property
    def _pid_path(self) -> str:
        return f"{self._pipe}/{mps_program.CONTROL_NAME}.pid"

    @staticmethod
    def switched(name: str) -> bool:
        path = os.environ.get(mps_program.SWITCHES_VARIABLE, "")
        try:
            with open(path, "rb") as file:
                return bool(json.load(file).get(name))
        except (OSError, ValueError):
            return False

    def _on_event(self, key: selectors.SelectorKey) -> None:
        what, source = key.data, key.fileobj
        assert isinstance(source, socket.socket)
        if what in {"control", "control_privileged"}:
            connection, _ = source.accept()
            self.log("Accepting connection...")
            if what == "control_privileged":
                self.log("NEW UI")
            self._selector.register(connection, selectors.EVENT_READ, "hello" if what == "control" else "commands")
        elif what == "commands":
            self._on_command(source)
        elif what == "hello":
            self._on_client(source)
        elif what == "server":
            self._on_server(source)
        elif what == "pending" and not _receive(source):
            self._pending = deque(waiting for waiting in self._pending if waiting.connection is not source)
            self._drop(source)

    def _on_command(self, source: socket.socket) -> None:
        data = _receive(source)
        if not data:
            self.log("UI closed")
            self._drop(source)
            return
        line = data[1:].decode("utf-8", "replace")
        self.log(f"Cmd:{line}")
        words = line.split()
        if words[:1] == ["quit"]:
            if not self.switched("quit_hangs"):
                self._quit(source, words)
            return
        said = answer(self, line)
        for part in said.splitlines():
            self.log(part)
        with contextlib.suppress(OSError):
            source.send(b"O" + said.encode())

    def _quit(self, source: socket.socket, words: list[str]) -> None:
        self._quitter = source
        if len(words) == 3 and words[1] == "-t":
            self.log(f"quit command issued with timeout of {words[2]}")
            self._forced_at = time.monotonic() + float(words[2])
        while self._pending:
            self._turn_away(self._pending.popleft())
        if self.server is not None:
            self.shut_down(force=False)

    def shut_down(self, *, force: bool) -> None:
        """Stop the server once its clients have left, or at once (`force`)."""
        assert self.server is not None
        self.server.draining = True
        self._tell({"do": "leave", "force": force})

    def terminate(self, pid: int) -> None:
        """Have the server disconnect a client. Repeated, or if it is stopped, hangs until it ends (580.159)."""
        server = self.server
        assert server is not None
        if pid in server.clients and _is_stopped(pid):
            server.terminated.add(pid)
        while pid in server.terminated and self.server is server:
            select.select([server.link], [], [])
            self._on_server(server.link)
        if pid in server.clients and self.server is server:
            server.terminated.add(pid)
            self._tell({"do": "terminate", "pid": pid})

    def _on_client(self, source: socket.socket) -> None:
        self._selector.unregister(source)
        data = _receive(source)
        try:
            hello = json.loads(data)
            peer = struct.unpack("3i", source.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            # Root, and the daemon's own user, may act as another user: simulated tenants need no setuid.
            uid = int(hello["uid"]) if peer[1] in {0, os.geteuid()} else peer[1]
            hello["uid"] = uid
        except (ValueError, KeyError, TypeError):
            self.log("User did not send valid credentials")
            source.close()
            return
        waiting = _Waiting(source, peer[0] or int(hello.get("pid", 0)), hello)
        if self._quitter is not None or len(self._pending) >= PENDING_MAX:
            self._turn_away(waiting)
            return
        server = self.server
        if server is not None and server.uid == uid and server.state != "INITIALIZING" and not server.draining:
            self.log(f"NEW CLIENT {waiting.pid} from user {uid}: Server already exists")
            self._hand_over(waiting)
            return
        self.log(f"NEW CLIENT {waiting.pid} from user {uid}: Server is not ready, push client to pending list")
        self._pending.append(waiting)
        self._selector.register(source, selectors.EVENT_READ, "pending")
        if server is None:
            self.start_server(uid)
        elif server.uid != uid and not server.draining:
            self.shut_down(force=False)  # one user at a time: the next server starts when this one's clients are done

    def _hand_over(self, waiting: _Waiting) -> None:
        assert self.server is not None
        wanted, limit = waiting.hello.get("memory_mib"), self.server.memory_mib.get(0)
        limits = [value for value in (wanted, limit) if value is not None]
        said = {
            "do": "serve",
            "pid": waiting.pid,
            "owner": waiting.hello.get("owner", ""),
            "percentage": min(waiting.hello.get("percentage") or 100.0, self.server.percentage),
            "limit_mib": min(limits) if limits else None,
        }
        with contextlib.suppress(OSError):  # the server is ending: so does its client
            socket.send_fds(self.server.link, [json.dumps(said).encode()], [waiting.connection.fileno()])
        waiting.connection.close()

    @staticmethod
    def _turn_away(waiting: _Waiting) -> None:
        with contextlib.suppress(OSError):
            waiting.connection.send(json.dumps({"error": "CUDA_ERROR_MPS_SERVER_NOT_READY"}).encode())
        waiting.connection.close()

    def start_server(self, uid: int) -> None:
        log = self._logs[1] if self._logs[1] is not None else os.open(os.devnull, os.O_WRONLY)
        pid, ours = spawn_server(
            uid,
            log,
            has_device=self._hardware.has_device() and not self.switched("server_fails"),
            ready=not self.switched("never_ready"),
        )
        self.log(f"Starting new server {pid} for user {uid}")
        self.server = ServerHandle(pid, uid, ours, self.defaults.percentage, dict(self.defaults.memory_mib))
        self._selector.register(ours, selectors.EVENT_READ, "server")

    def _tell(self, said: dict[str, Any]) -> None:
        if self.server is not None:
            with contextlib.suppress(OSError):  # it is ending, as its link will show
                self.server.link.send(json.dumps(said).encode())

    def _on_server(self, source: socket.socket) -> None:
        data = _receive(source)
        server = self.server
        assert server is not None
        if not data:
            self._server_ended(server)
            return
        said = json.loads(data)
        if "state" in said:
            if server.state == "INITIALIZING":
                self.log(f"NEW SERVER {server.pid}: Ready")
                self._hardware.enter(server.pid, owner="", name=mps_program.SERVER_NAME, kind="mps")
            server.state = said["state"]
            if not server.draining:
                self._serve_pending(server)
        elif said["connected"]:
            server.clients.append(said["client"])
            self._hardware.enter(said["client"], owner=said["owner"], name="python", kind="compute")
        else:
            server.clients.remove(said["client"])
            if said["client"] not in server.clients:  # a process may have several contexts
                self._hardware.remove({said["client"]})
                server.terminated.discard(said["client"])

    def _serve_pending(self, server: ServerHandle) -> None:
        for waiting in self._take_pending(server.uid):
            self._hand_over(waiting)
        if self._pending:
            self.shut_down(force=False)  # others wait for their turn

    def _take_pending(self, uid: int) -> list[_Waiting]:
        found = [waiting for waiting in self._pending if waiting.hello["uid"] == uid]
        for waiting in found:
            self._pending.remove(waiting)
            self._selector.unregister(waiting.connection)
        return found

    def _server_ended(self, server: ServerHandle) -> None:
        self._drop(server.link)
        _, status = os.waitpid(server.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self.log(f"Server {server.pid} exited with status {abs(code)}")
        self._graceful = self._graceful and (code == 0 or self._quitter is None)
        self._hardware.remove({server.pid, *server.clients})
        self.server = None
        if server.state == "INITIALIZING":
            for waiting in self._take_pending(server.uid):
                self._turn_away(waiting)
        if self._pending and self._quitter is None:
            self.start_server(self._pending[0].hello["uid"])

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()


def _open_log(directory: str, name: str) -> int | None:
    """A log to append to; None if it cannot be written, where the real one only prints a warning, too."""
    try:
        return os.open(f"{directory}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError:
        sys.stderr.write(f"Warning: Failed writing log files to directory [{directory}]. No logs will be available.\n")
        return None


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in {b"T", b"t"}
    except OSError:
        return False


def _receive(source: socket.socket) -> bytes:
    try:
        return source.recv(mps_program.PACKET_MAX)
    except OSError:
        return b""


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
        comm.write(mps_program.CONTROL_NAME)
    daemon = Daemon(pipe_directory, log_directory)
    refusal = daemon.listen()
    if ready is None:
        sys.stderr.write(refusal)
    else:
        os.write(ready, refusal.encode() or b"ready")
        os.close(ready)
    return 1 if refusal else daemon.run()
