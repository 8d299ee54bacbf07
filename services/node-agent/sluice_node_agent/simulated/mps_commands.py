"""The commands of the MPS stand-in's control daemon, except `quit`, as observed with 535.261 and 550.163: an invalid
value is ignored, memory of a GiB and more is printed in whole GiB, an unknown server is reported in text with exit
status 0. `terminate_client` behaves as seen with 580.159 (docs/hardware)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice_node_agent.simulated.mps_daemon import Daemon, ServerHandle


@dataclass
class Defaults:
    """The limits of the next server; memory in MiB by device index."""

    percentage: float = 100.0
    memory_mib: dict[int, int] = field(default_factory=dict)


_KINDS = ("active_thread_percentage", "device_pinned_mem_limit")
_LIMITS = {f"{verb}_{kind}" for verb in ("set", "get") for kind in _KINDS}
"""Of a server; with `default_` those of the next one."""
_OF_A_SERVER = {"get_server_status", "get_client_list", "shutdown_server", "terminate_client", *_LIMITS}


def answer(daemon: Daemon, line: str) -> str:
    """The front end's output for one command: lines, or nothing."""
    words = line.split()
    command, arguments = (words[0], words[1:]) if words else ("", [])
    if command == "get_server_list":
        return f"{daemon.server.pid}\n" if daemon.server is not None else ""
    if command == "start_server":
        return _start_server(daemon, arguments)
    if "_default_" in command and command.replace("default_", "", 1) in _LIMITS:
        return _limits(daemon, daemon.defaults, command, arguments)
    if command not in _OF_A_SERVER:
        return f'Unknown command "{line}"\n'
    server = daemon.server
    wanted = _number(arguments[:1])
    if server is None or server.pid != wanted:
        missing = f"Server {wanted} not found\n"
        return f"{missing}Server {wanted} not found!\n1\n" if command == "terminate_client" else missing
    return _of_server(daemon, server, command, arguments[1:])


def _of_server(daemon: Daemon, server: ServerHandle, command: str, arguments: list[str]) -> str:
    match command:
        case "get_server_status":
            return f"{server.state}\n"
        case "get_client_list":
            return "".join(f"{pid}\n" for pid in dict.fromkeys(server.clients))
        case "shutdown_server":
            daemon.shut_down(force="-f" in arguments)
            return ""
        case "terminate_client":
            pid = _number(arguments[:1])
            if pid not in server.clients:
                return f"Invalid process {pid}!\n1\n"
            daemon.terminate(pid)
            return "0\n"
    return _limits(daemon, server, command, arguments)


def _limits(daemon: Daemon, of: Defaults | ServerHandle, command: str, arguments: list[str]) -> str:
    sets = command.startswith("set")
    takes = sets and not daemon.switched("limits_not_taken")
    if command.endswith("percentage"):
        if takes:
            of.percentage = _percentage(arguments[:1], of.percentage)
        return f"{of.percentage}\n"
    if takes:
        _set_memory(of.memory_mib, arguments)
    return "" if sets else _memory(of.memory_mib, arguments)


def _start_server(daemon: Daemon, arguments: list[str]) -> str:
    if arguments[:1] != ["-uid"] or len(arguments) < 2 or not arguments[1].isdecimal():
        return "A user id (UID) is required to start a new server\n"
    if daemon.server is None:
        daemon.start_server(int(arguments[1]))
    return ""


def _percentage(words: list[str], old: float) -> float:
    try:
        new = float(words[0])
    except (IndexError, ValueError):
        return old
    return new if 0 < new <= 100 else old


def _set_memory(limits: dict[int, int], words: list[str]) -> None:
    if len(words) != 2 or not words[0].isdecimal() or not words[1][:-1].isdecimal() or words[1][-1] not in "GM":
        return
    mib = int(words[1][:-1]) * (1024 if words[1][-1] == "G" else 1)
    if mib:
        limits[int(words[0])] = mib
    else:
        limits.pop(int(words[0]), None)


def _memory(limits: dict[int, int], words: list[str]) -> str:
    mib = limits.get(_number(words[:1]))
    if mib is None:
        return ""
    return f"{mib}M\n" if mib < 1024 else f"{mib // 1024}G\n"


def _number(words: list[str]) -> int:
    return int(words[0]) if words and words[0].isdecimal() else 0
