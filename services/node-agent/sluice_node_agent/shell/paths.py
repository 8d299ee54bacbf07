"""Paths of the agents in one data folder, for the service and its commands."""

import os
from pathlib import Path

from sluice_node_agent.device.mps.home_directory import LONGEST_SOCKET, SOCKET_PATH_BYTES_MAX

_LONGEST_HOME = "0123456789-999-999-h99999"
"""Homes are named by the run of the agent that created them, with a counter."""


def agent_directory(data_dir: Path, node: str) -> Path:
    """The directory of the journal, its lock and the control socket."""
    return data_dir / "agents" / node


def control_socket(data_dir: Path, node: str) -> Path:
    return agent_directory(data_dir, node) / "control.sock"


def tickets_directory(data_dir: Path, node: str) -> Path:
    return data_dir / "tickets" / node


def mps_root(data_dir: Path, mps_dir: Path | None, node: str) -> Path:
    """The directory of the homes of shares, absolute: daemons and clients have other working directories."""
    return Path(os.path.abspath((mps_dir or data_dir / "mps") / node))  # noqa: PTH100 - resolve() would follow links


def hardware_path(data_dir: Path, node: str) -> Path:
    return data_dir / "hardware" / f"{node}.json"


def why_no_homes(root: Path) -> str:
    """Why no MPS daemon could listen below `root`; empty when it could."""
    longest = root / _LONGEST_HOME / LONGEST_SOCKET
    excess = len(os.fsencode(longest)) - SOCKET_PATH_BYTES_MAX
    if excess <= 0:
        return ""
    return (
        f"{root} is too long for the sockets of MPS daemons, which may have {SOCKET_PATH_BYTES_MAX} bytes with their "
        f"path; set mps_dir to a path that is at least {excess} bytes shorter"
    )


def fits_a_socket(path: Path) -> bool:
    return len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX
