# ruff: noqa: PTH100, PTH118, PTH120, PTH123
"""The server of the MPS stand-in: a process per user that holds the clients, whose connections the daemon passes to it:
they outlive the daemon and die with the server. Limits are those when a client connected, at most 48 clients, and a
fault (SIGUSR1) ends them all. A disconnected client keeps its memory until its process ends (seen with 580.159). It
never ends by itself when its daemon dies: the worst case of a real one."""

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from typing import Any, NoReturn

from sluice_node_agent.simulated.mps_program import PACKET_MAX, SERVER_NAME

CLIENTS_MAX = 48
"""Clients of one server on Volta and later (NVIDIA MPS, "Client-Server Connection Limit"), before CUDA 13.1."""
_FAULT = "CUDA_ERROR_MPS_RPC_FAILURE"
_TERMINATED = "CUDA_ERROR_MPS_CLIENT_TERMINATED"


class Server:
    """One server; `link` leads to its daemon."""

    def __init__(self, link: socket.socket, log: int) -> None:
        """Serve the messages of `link`; write the server's log to the open file `log`."""
        self._link = link
        self._log_file = log
        self._clients: dict[int, tuple[socket.socket, dict[str, Any]]] = {}
        self._context = 0
        self._selector = selectors.DefaultSelector()
        self._state = "ACTIVE"
        self._leaving = False
        self._linked = True

    def run(self) -> int:
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        self._selector.register(reader, selectors.EVENT_READ, "signal")
        self._selector.register(self._link, selectors.EVENT_READ, "daemon")
        self.log("Server has started")
        self._tell({"state": self._state})
        while not (self._leaving and not self._clients):
            for key, _ in self._selector.select():
                if key.data == "signal":
                    reader.recv(64)
                    self._fail()
                elif key.data == "daemon":
                    self._hear_daemon()
                elif isinstance(key.data, int) and key.data in self._clients:
                    self._hear_client(key.data)
        self.log("Exiting")
        return 0

    def log(self, line: str) -> None:
        os.write(self._log_file, f"[{stamp()} Server {os.getpid():5}] {line}\n".encode())

    def _tell(self, said: dict[str, Any]) -> None:
        if self._linked:
            try:
                self._link.send(json.dumps(said).encode())
            except OSError:  # the daemon died; its clients continue
                self._linked = False

    def _hear_daemon(self) -> None:
        data, handles, _, _ = socket.recv_fds(self._link, PACKET_MAX, 1)
        if not data:
            self._linked = False
            self._selector.unregister(self._link)
            return
        said = json.loads(data)
        match said["do"]:
            case "serve":
                self._serve(socket.socket(fileno=handles[0]), said)
            case "terminate":
                for connection, client in self._clients.values():
                    if client["pid"] == said["pid"]:
                        client["terminated"] = True
                        _send(connection, {"error": _TERMINATED})
            case "leave":
                self._leaving = True
                self.log("Server has been notified to shutdown")
                if said["force"]:
                    for context in list(self._clients):
                        self._let_go(context, "CUDA_ERROR_MPS_SERVER_NOT_READY")

    def _serve(self, connection: socket.socket, said: dict[str, Any]) -> None:
        pid = said["pid"]
        refusal = ""
        if self._state != "ACTIVE" or self._leaving:
            refusal = "CUDA_ERROR_MPS_SERVER_NOT_READY"
        elif len(self._clients) >= CLIENTS_MAX:
            refusal = "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"
        if refusal:
            _send(connection, {"error": refusal})
            connection.close()
            return
        self._context += 1
        client = {"pid": pid, "limit_mib": said["limit_mib"], "held_mib": 0, "terminated": False}
        self._clients[self._context] = (connection, client)
        self._selector.register(connection, selectors.EVENT_READ, self._context)
        self.log(f"Client {{PID: {pid}, Context ID: {self._context}}} connected")
        self._tell({"client": pid, "connected": True, "owner": said["owner"]})
        limits = {"active_thread_percentage": said["percentage"], "memory_mib": said["limit_mib"]}
        _send(connection, {"served": True, "server": os.getpid()} | limits)

    def _hear_client(self, context: int) -> None:
        connection, client = self._clients[context]
        try:
            data = connection.recv(PACKET_MAX)
        except OSError:
            data = b""
        if not data:
            self._let_go(context)
            return
        if client["terminated"]:
            _send(connection, {"error": _TERMINATED})
            return
        wanted = client["held_mib"] + int(json.loads(data)["allocate_mib"])
        limit = client["limit_mib"]
        if limit is not None and wanted > limit:
            _send(connection, {"error": "CUDA_ERROR_OUT_OF_MEMORY", "held_mib": client["held_mib"]})
            return
        client["held_mib"] = max(0, wanted)
        _send(connection, {"held_mib": client["held_mib"]})

    def _let_go(self, context: int, error: str = "") -> None:
        connection, client = self._clients.pop(context)
        if error:
            _send(connection, {"error": error})
        self._selector.unregister(connection)
        connection.close()
        self.log(f"Client {{PID: {client['pid']}, Context ID: {context}}} disconnected")
        self._tell({"client": client["pid"], "connected": False})
        if self._state == "FAULT" and not self._clients:
            self._state = "ACTIVE"
            self.log("Server is ready again: all clients of the fault have ended")
            self._tell({"state": self._state})

    def _fail(self) -> None:
        self.log("Server encountered a fatal exception. Shutting down")
        if not self._clients:
            return
        self._state = "FAULT"
        self._tell({"state": self._state})
        for connection, _ in self._clients.values():
            _send(connection, {"error": _FAULT})


def serve(arguments: list[str]) -> int:
    """Run as a server: `--link FD --log FD --uid UID --device 0|1 --ready 0|1 --setuid 0|1`, in this order."""
    link, log, uid, has_device, ready, set_uid = (int(value) for value in arguments[1::2])
    server = Server(socket.socket(fileno=link), log)
    with open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write("nvidia-cuda-mps-server")
    if not has_device:
        server.log("MPS server failed to start")
        server.log("No CUDA device of CUDA_VISIBLE_DEVICES is there: Invalid CUDA_VISIBLE_DEVICES")
        return 1
    if set_uid:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    if not ready:
        signal.pause()
    return server.run()


def spawn_server(uid: int, log: int, *, has_device: bool, ready: bool) -> tuple[int, socket.socket]:
    """Start a server process for a user; returns its pid and the link to it. `log` is the open server.log."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    numbers = {
        "--link": theirs.fileno(),
        "--log": log,
        "--uid": uid,
        "--device": int(has_device),
        "--ready": int(ready),
        "--setuid": int(os.geteuid() == 0 and uid != 0),
    }
    arguments = [text for name, value in numbers.items() for text in (name, str(value))]
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mps_program.py")
    pid = os.fork()
    if pid == 0:
        _become_server([sys.executable, "-I", "-S", program, SERVER_NAME, *arguments], theirs.fileno(), log)
    theirs.close()
    return pid, ours


def stamp() -> str:
    now = time.time()
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))}.{int(now * 1000) % 1000:03}"


def _send(connection: socket.socket, said: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        connection.send(json.dumps(said).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def _become_server(command: list[str], *inherited: int) -> NoReturn:
    try:
        for number in inherited:
            os.set_inheritable(number, True)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execv(command[0], command)  # noqa: S606 - our own interpreter and file
    finally:
        os._exit(127)
