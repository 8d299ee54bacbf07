"""The stand-in for nvidia-cuda-mps-control: as strict as the real one, as observed and documented."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from factories.gpus.mps import PATIENCE_S, Client, mps_processes, short_directory
from factories.waiting import wait_until

from sluice_node_agent.simulated import mps_program
from sluice_node_agent.simulated.mps_server import CLIENTS_MAX


@dataclass
class Bench:
    """A pipe directory, and a shell to talk to its daemon."""

    path: Path
    clients: list[Client] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.control = mps_program.install(self.path / "bin")
        self.pipe, self.log = self.path / "pipe", self.path / "log"
        self.pipe.mkdir()
        self.log.mkdir()
        self.environment = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log),
            "CUDA_VISIBLE_DEVICES": "GPU-1",
        }

    def run(self, *arguments: str, lines: str = "", program: tuple[str, ...] = ()) -> tuple[int, str, str]:
        command = [*(program or (str(self.control),)), *arguments]
        how = {"capture_output": True, "text": True, "timeout": PATIENCE_S}
        done = subprocess.run(command, input=lines, env=self.environment, check=False, **how)
        return done.returncode, done.stdout, done.stderr

    def ask(self, *commands: str) -> str:
        """The output of commands; unknown ones are reported, with exit status 0."""
        status, out, err = self.run(lines="".join(f"{command}\n" for command in commands))
        assert (status, err) == (0, "")
        return out

    def daemon(self) -> int:
        assert self.run("-d") == (0, "", "")
        return int((self.pipe / "nvidia-cuda-mps-control.pid").read_text())

    def server(self, uid: int = 0) -> int:
        """Start a server and wait until it is ready; returns its pid."""
        pid = int(self.ask(f"start_server -uid {uid}", "get_server_list"))
        wait_until(lambda: self.ask(f"get_server_status {pid}") == "ACTIVE\n", "the server is ready")
        return pid

    def client(self, *options: str) -> Client:
        client = Client(self.pipe, *options)
        self.clients.append(client)
        return client


@pytest.fixture
def bench() -> Iterator[Bench]:
    with short_directory() as path:
        bench = Bench(path)
        yield bench
        for client in bench.clients:
            client.end()


def test_without_a_daemon_it_says_so_as_the_real_one_does(bench: Bench) -> None:
    """Scripts use it to detect whether MPS runs."""
    gone = (1, "", "Cannot find MPS control daemon process\n")
    assert bench.run(lines="get_server_list\n") == gone
    pid = bench.daemon()
    assert bench.ask("get_server_list") == ""
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: bench.run(lines="get_server_list\n") == gone, "the daemon is gone")
    assert {path.name for path in bench.pipe.iterdir()} >= {"control", "control_lock", "control_privileged"}
    assert bench.daemon() != pid, "a new one takes the stale files over"


def test_there_is_one_daemon_per_pipe_directory(bench: Bench) -> None:
    """Two would divide the clients among them."""
    pid = bench.daemon()
    assert bench.run("-d") == (1, "", "An instance of this daemon is already running\n")
    assert int((bench.pipe / "nvidia-cuda-mps-control.pid").read_text()) == pid
    assert [process.pid for process in mps_processes(bench.path)] == [pid]


def test_the_daemon_outlives_who_started_it_and_holds_nothing_of_his(bench: Bench) -> None:
    """A reader of the caller's output would wait as long as the daemon runs."""
    reader, writer = os.pipe()
    try:
        started = subprocess.run([bench.control, "-d"], env=bench.environment, stdout=writer, stderr=writer, check=True)
        assert started.returncode == 0
    finally:
        os.close(writer)
    with os.fdopen(reader, "rb") as out:
        assert out.read() == b""  # its end: no other process has the pipe open
    pid = int((bench.pipe / "nvidia-cuda-mps-control.pid").read_text())
    daemon = psutil.Process(pid)
    assert os.getsid(pid) != os.getsid(0)
    assert daemon.name() == "nvidia-cuda-mps"
    assert daemon.cwd() == "/"


def test_wrong_values_and_commands_are_ignored_with_exit_status_0(bench: Bench) -> None:
    """So does the real one: without reading the value back there is no limit."""
    bench.daemon()
    percentage = "set_default_active_thread_percentage"
    assert bench.ask(f"{percentage} 30", f"{percentage} 0", f"{percentage} 101", f"{percentage} x") == "30.0\n" * 4
    memory = "default_device_pinned_mem_limit"
    assert bench.ask(f"get_{memory} 0", f"set_{memory} 0 1500", f"get_{memory} 0") == ""
    assert bench.ask(f"set_{memory} 0 1535M", f"get_{memory} 0", f"get_{memory}") == "1G\n1G\n"
    assert bench.ask(f"set_{memory} 0 512M", f"get_{memory} 0") == "512M\n"
    assert bench.ask("hello x", "", "start_server") == (
        'Unknown command "hello x"\nUnknown command ""\nA user id (UID) is required to start a new server\n'
    )
    for command in ("get_client_list 1", "get_server_status 1", "set_device_pinned_mem_limit 1 0 1G"):
        assert bench.ask(command) == "Server 1 not found\n"


def test_defaults_are_for_the_next_server_only(bench: Bench) -> None:
    """Set too late, they have no effect."""
    bench.daemon()
    bench.ask("set_default_active_thread_percentage 40")
    server = bench.server()
    bench.ask("set_default_active_thread_percentage 20")
    assert bench.ask(f"get_active_thread_percentage {server}", "get_default_active_thread_percentage") == "40.0\n20.0\n"
    assert bench.ask(f"set_active_thread_percentage {server} 10") == "10.0\n"


def test_a_server_is_a_process_that_dies_for_itself(bench: Bench) -> None:
    """The daemon goes on and starts another for the next client."""
    bench.daemon()
    server = bench.server()
    client = bench.client()
    assert client.hear()["server"] == server
    os.kill(server, signal.SIGKILL)
    assert client.hear()["error"]
    wait_until(lambda: bench.ask("get_server_list") == "", "the daemon knows")
    assert f"Server {server} exited with status 9" in (bench.log / "control.log").read_text()
    assert bench.client().hear()["server"] != server


def test_a_second_server_is_not_started(bench: Bench) -> None:
    """As observed: the real one prints nothing, and keeps the one it has."""
    bench.daemon()
    server = bench.server(uid=1000)
    assert bench.ask("start_server -uid 1000", "start_server -uid 2000", "get_server_list") == f"{server}\n"


def test_one_user_is_served_at_a_time(bench: Bench) -> None:
    """A client of another user waits until the server's clients are gone, and then gets its own server."""
    bench.daemon()
    first = bench.client("--uid", "1000")
    served = first.hear()
    second = bench.client("--uid", "2000")
    waiting = f"NEW CLIENT {second.pid} from user 2000: Server is not ready, push client to pending list"
    wait_until(lambda: waiting in (bench.log / "control.log").read_text(), "the second waits")
    late = bench.client("--uid", "1000")
    wait_until(lambda: f"NEW CLIENT {late.pid}" in (bench.log / "control.log").read_text(), "so does a late one")
    assert first.allocate(10) == {"held_mib": 10}
    first.end()
    assert second.hear()["server"] != served["server"]
    second.end()
    assert late.hear()["served"]


def test_a_server_has_at_most_48_clients(bench: Bench) -> None:
    """The limit of the hardware; more are refused, and a freed place is reused."""
    bench.daemon()
    bench.server()
    contexts = [_context(bench) for _ in range(CLIENTS_MAX + 1)]
    try:
        answers = [json.loads(context.recv(65536)) for context in contexts]
        assert [answer.get("served") for answer in answers] == [True] * CLIENTS_MAX + [None]
        assert answers[-1] == {"error": "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"}
        contexts[0].close()
        wait_until(lambda: "served" in bench.client().hear(), "there is room again")
    finally:
        for context in contexts:
            context.close()


def _context(bench: Bench) -> socket.socket:
    context = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    context.settimeout(PATIENCE_S)
    context.connect(str(bench.pipe / "control"))
    context.send(json.dumps({"uid": 0, "pid": os.getpid()}).encode())
    return context


def test_quit_waits_for_clients_unless_it_has_a_timeout(bench: Bench) -> None:
    """An operator's plain `quit` interrupts no client."""
    pid = bench.daemon()
    bench.server()
    client = bench.client()
    client.hear()
    quitting = subprocess.Popen([bench.control], stdin=subprocess.PIPE, env=bench.environment)
    quitting.stdin.write(b"quit\n")
    quitting.stdin.close()
    wait_until(lambda: "Cmd:quit" in (bench.log / "control.log").read_text(), "it received quit")
    assert client.allocate(10) == {"held_mib": 10}
    assert bench.client().hear() == {"error": "CUDA_ERROR_MPS_SERVER_NOT_READY"}
    assert quitting.poll() is None
    client.end()
    assert quitting.wait(PATIENCE_S) == 0
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, "it is gone")
    assert not (bench.pipe / "nvidia-cuda-mps-control.pid").exists()
    assert (bench.pipe / "control").exists()
    bench.daemon()
    bench.server()
    client = bench.client()
    client.hear()
    assert bench.run(lines="quit -t 0\n")[0] == 1, "servers had to be forced"
    assert client.hear()["error"]
    assert mps_processes(bench.path) == []


def test_memory_is_given_back(bench: Bench) -> None:
    """Else a client that frees and allocates runs into its limit."""
    bench.daemon()
    bench.ask("set_default_device_pinned_mem_limit 0 100M")
    bench.server()
    client = bench.client()
    client.hear()
    assert client.allocate(100) == {"held_mib": 100}
    assert client.allocate(-60) == {"held_mib": 40}
    assert client.allocate(60) == {"held_mib": 100}
    assert client.allocate(1) == {"error": "CUDA_ERROR_OUT_OF_MEMORY", "held_mib": 100}


def test_a_directory_that_is_not_there_is_refused(bench: Bench) -> None:
    """With the real one's error."""
    bench.environment["CUDA_MPS_PIPE_DIRECTORY"] = f"{bench.path}/none"
    assert bench.run("-d") == (1, "", f"Cannot access CUDA_MPS_PIPE_DIRECTORY={bench.path}/none\n")


def test_a_path_that_no_socket_can_have_is_refused(bench: Bench) -> None:
    """With the real one's error, which explains nothing."""
    long = bench.path / ("x" * 100)
    long.mkdir()
    bench.environment["CUDA_MPS_PIPE_DIRECTORY"] = str(long)
    assert bench.run("-d") == (1, "", "Cannot find MPS control daemon process\n")


def test_every_node_of_a_process_may_install_it_at_once(tmp_path: Path) -> None:
    """An agent of many simulated nodes opens each in a thread; it would end at its start."""
    with ThreadPoolExecutor(16) as threads:
        paths = set(threads.map(lambda _: mps_program.install(tmp_path / "bin"), range(200)))
    assert paths == {tmp_path / "bin" / mps_program.CONTROL_NAME}
    assert os.access(paths.pop(), os.X_OK)
    assert len(list((tmp_path / "bin").iterdir())) == 1, "a draft is left"


def test_it_runs_without_being_installed_and_without_this_project(bench: Bench) -> None:
    """It is started thousands of times: an import of anything but the standard library would show."""
    program = (sys.executable, "-I", "-S", mps_program.__file__)
    assert bench.run("-d", program=program) == (0, "", "")
    assert bench.run(program=program, lines="get_default_active_thread_percentage\n") == (0, "100.0\n", "")
    assert bench.run("-x", program=program)[0] == 1
    assert "-d" in bench.run("--help", program=program)[1]
    server = bench.server()
    assert not re.search(r"site-packages", Path(f"/proc/{server}/maps").read_text())
    assert bench.run(program=program, lines="quit\n")[0] == 0


def test_the_foreground_daemon_ends_with_its_quit(bench: Bench) -> None:
    """`-f` is how a supervisor runs it."""
    daemon = subprocess.Popen([bench.control, "-f"], env=bench.environment)
    wait_until(lambda: bench.run(lines="get_server_list\n")[0] == 0, "it answers")
    assert bench.run(lines="quit\n")[0] == 0
    assert daemon.wait(PATIENCE_S) == 0
