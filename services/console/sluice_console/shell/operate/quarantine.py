"""
`sluice release-quarantine`: runs the node agent's own command on the agent's node.

Only the agent's owner may ask it, over a local socket, because processes can only be checked on the node. This finds
the node of the slice, and asks for confirmation before anything risky.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.shell.cli_options import UsageError
from sluice_console.shell.errors import CommandError, NotFoundError
from sluice_console.shell.inspect.look_up import fleet_state_at
from sluice_console.shell.live.running_systems import find_running, server_url

PROGRAM = "sluice_node_agent"
"""Run as a program: services do not import each other."""


class DeclinedError(CommandError):
    """The confirmation was refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineRelease:
    """The arguments."""

    allocation: str
    node: str = ""
    """Empty: looked up on the bus."""
    data_dir: Path | None = None
    """Of the node's agent; None is that of the running `sluice up`."""
    ignore_holders: bool = False
    yes: bool = False


def check(wanted: QuarantineRelease, *, is_terminal: bool, ask: Callable[[str], bool]) -> None:
    """Ignoring processes on the device needs a confirmation.

    Raises UsageError without a terminal and DeclinedError for a no, which differ in the exit code."""
    if not wanted.ignore_holders or wanted.yes:
        return
    if not is_terminal:
        raise UsageError("--ignore-holders needs a confirmation, and there is no terminal; use --yes")
    question = f"do you confirm that no process on the devices of {wanted.allocation} belongs to its pod?"
    if not ask(question):
        raise DeclinedError("nothing was done")


async def release(server: str | None, wanted: QuarantineRelease) -> int:
    """Retry now. Raises NotFoundError, NothingRunningError, BusError."""
    node = wanted.node
    if not node:
        node = quarantined_on(await fleet_state_at(server_url(server)), wanted.allocation)
    become_release(wanted, node)


def quarantined_on(fleet_state: FleetState, allocation: str) -> str:
    """The node of a quarantined slice. Raises NotFoundError, with the known ones."""
    there = {
        str(report.booking.allocation): node
        for node, inventory in fleet_state.inventories().items()
        for report in inventory.snapshot.slices
        if report.state == "quarantined"
    }
    if allocation not in there:
        known = ", ".join(sorted(there)[:8]) or "none"
        raise NotFoundError(f"there is no slice {allocation!r} in quarantine; there are: {known}")
    return there[allocation]


def become_release(wanted: QuarantineRelease, node: str) -> NoReturn:
    """Become the agent's command, with these streams and its exit code."""
    data = wanted.data_dir if wanted.data_dir is not None else Path(find_running().data_dir)
    command = [
        sys.executable,
        "-m",
        PROGRAM,
        "release-quarantine",
        wanted.allocation,
        f"--node={node}",
        f"--data={data}",
    ]
    command += ["--ignore-holders"] if wanted.ignore_holders else []
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, command)  # noqa: S606  # no shell is wanted: the arguments are a list
