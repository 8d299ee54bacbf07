"""Where the agents of one data folder keep their things: one place that knows, for the service and its commands."""

import os
from pathlib import Path

SOCKET_PATH_BYTES_MAX = 107
"""What the kernel takes as a Unix socket's path (unix(7): 108 bytes with the final zero)."""

_LONGEST_HOME = "0123456789-999-999-h99999"
"""Homes are named by the run of the agent that made them, and counted."""


def agent_directory(data_dir: Path, node: str) -> Path:
    """Of the journal, its lock and the control socket."""
    return data_dir / "agents" / node


def control_socket(data_dir: Path, node: str) -> Path:
    """Where the agent of a node answers people on the node itself."""
    return agent_directory(data_dir, node) / "control.sock"


def tickets_directory(data_dir: Path, node: str) -> Path:
    """Of a node's tickets."""
    return data_dir / "tickets" / node


def marks_directory(data_dir: Path, node: str) -> Path:
    """Of a node's marks, where there is no kubelet."""
    return data_dir / "marks" / node


def mps_root(data_dir: Path, mps_dir: Path | None, node: str) -> Path:
    """Of the homes of shares, absolute: daemons and their clients have other working directories."""
    return Path(os.path.abspath((mps_dir or data_dir / "mps") / node))  # noqa: PTH100 - resolve() would follow links


def hardware_path(data_dir: Path, node: str) -> Path:
    """Where the simulated hardware of a node is kept."""
    return data_dir / "hardware" / f"{node}.json"


def why_no_homes(root: Path) -> str:
    """Why no MPS daemon could listen below `root`; empty when it could."""
    longest = root / _LONGEST_HOME / "pipe" / "control_privileged"
    excess = len(os.fsencode(longest)) - SOCKET_PATH_BYTES_MAX
    if excess <= 0:
        return ""
    return (
        f"{root} is too long for the sockets of MPS daemons, which may have {SOCKET_PATH_BYTES_MAX} bytes with their "
        f"path; set mps_dir to a path that is at least {excess} bytes shorter"
    )


def fits_a_socket(path: Path) -> bool:
    """Whether a Unix socket can have this path."""
    return len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX
