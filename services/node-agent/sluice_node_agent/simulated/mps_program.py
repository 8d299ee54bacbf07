# ruff: noqa: PLC0415, PTH100, PTH120
"""A stand-in for `nvidia-cuda-mps-control`, so that MPS homes run as real processes without a GPU: its command line
(docs.nvidia.com/deploy/mps, the manual page), texts, exit codes, files and modes of releases 535.261 and 550.163. A
wrong limit is ignored silently, a daemon's files outlive it, a client of another user waits. Its client protocol is its
own. Each start imports only what it needs (hence no pathlib). Run as `python -I -S mps_program.py [-d|-f]`, or
installed under the real one's name. `SLUICE_SIMULATED_HARDWARE` names the hardware file that its processes appear in;
`SLUICE_MPS_STAND_IN` a JSON file of switches that make it fail (`SWITCHES`), read whenever one matters."""

import os
import sys

TYPE_CHECKING = False  # as in typing, which would cost each start as much as all the rest
if TYPE_CHECKING:
    from pathlib import Path

CONTROL_NAME = "nvidia-cuda-mps-control"
SERVER_NAME = "nvidia-cuda-mps-server"
SWITCHES = ("start_fails", "server_fails", "never_ready", "quit_hangs", "limits_not_taken")
"""Each makes it fail: at its start, servers at theirs, INITIALIZING without end, `quit` unanswered, limits ignored."""
HARDWARE_VARIABLE = "SLUICE_SIMULATED_HARDWARE"
SWITCHES_VARIABLE = "SLUICE_MPS_STAND_IN"
PACKET_MAX = 65536
"""Bytes of one message; a list of 48 clients is far below."""
_DEFAULT_PIPE_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 - the real one's default
_DEFAULT_LOG_DIRECTORY = "/var/log/nvidia-mps"
_HELP = """CUDA MPS Control for Linux/Unix (a stand-in).
  -d  start the control daemon in the background
  -f  start the control daemon in the foreground
Without arguments, commands are read from stdin and sent to the daemon of CUDA_MPS_PIPE_DIRECTORY.
"""


def install(directory: "Path") -> "Path":
    """Write an executable `nvidia-cuda-mps-control` there and return its path. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / CONTROL_NAME
    # A program of its own, by name: that identifies its processes in /proc.
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    script = (
        f"#!{_interpreter(directory)} -IS\n"
        f"import sys\nsys.path.append({package!r})\n"
        "from sluice_node_agent.simulated.mps_program import main\n"
        "sys.exit(main(sys.argv))\n"
    )
    draft = _draft(directory, CONTROL_NAME)
    draft.write_text(script, encoding="utf-8")
    draft.chmod(0o755)
    draft.replace(path)
    return path


def main(argv: list[str]) -> int:
    arguments = argv[1:]
    if arguments[:1] == [SERVER_NAME]:
        from sluice_node_agent.simulated.mps_server import serve

        return serve(arguments[1:])
    pipe_directory = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or _DEFAULT_PIPE_DIRECTORY
    if arguments in (["-d"], ["-f"]):
        from sluice_node_agent.simulated.mps_daemon import start

        log_directory = os.environ.get("CUDA_MPS_LOG_DIRECTORY") or _DEFAULT_LOG_DIRECTORY
        return start(pipe_directory, log_directory, background=arguments == ["-d"])
    if arguments:
        sys.stdout.write(_HELP)
        return 0 if arguments[0] in {"-h", "--help"} else 1
    return _send_commands(f"{pipe_directory}/control_privileged")


def _send_commands(path: str) -> int:
    import _socket  # a third of the time that `socket` takes to import

    daemon = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        daemon.connect(path)
    except OSError:
        sys.stderr.write("Cannot find MPS control daemon process\n")
        return 1
    try:
        for line in sys.stdin:
            daemon.send(b"C" + line.rstrip("\n").encode())
            answer = daemon.recv(PACKET_MAX)
            if not answer:
                sys.stderr.write("Connection to the MPS control daemon is broken\n")
                return 1
            if answer[:1] == b"Q":
                return int(answer[1:])
            sys.stdout.write(answer[1:].decode())
            sys.stdout.flush()
    except OSError as error:
        sys.stderr.write(f"Connection to the MPS control daemon is broken: {error.strerror}\n")
        return 1
    return 0


def _interpreter(directory: "Path") -> str:
    """The interpreter for a first line `#!<path> -IS`, or a link: the kernel cuts it after 255 bytes and at spaces."""
    real = os.path.realpath(sys.executable)
    if len(real) < 120 and " " not in real:
        return real
    link, draft = directory / ".python", _draft(directory, "python")
    draft.unlink(missing_ok=True)
    draft.symlink_to(real)
    draft.replace(link)
    return str(link)


def _draft(directory: "Path", name: str) -> "Path":
    from _thread import get_ident

    return directory / f".{name}.{os.getpid()}.{get_ident()}"


if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    sys.exit(main(sys.argv))
