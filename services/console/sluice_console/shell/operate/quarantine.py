"""
`sluice release-quarantine`: this process becomes the node agent's own command, on the node whose agent it speaks to.

Only the agent's owner may ask it, over a socket on its machine: nobody can vouch for a process from elsewhere. Here it
is found out which node has the slice, and a person is asked before anything that could hurt somebody.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.shell.errors import CommandError
from sluice_console.shell.inspect.look_up import EXIT_NOT_FOUND, fleet_state_at
from sluice_console.shell.live.running_systems import find_running, server_url

PROGRAM = "sluice_node_agent"
"""Run as a program: services meet nowhere in Python."""
EXIT_USAGE = 2


class NotThereError(CommandError):
    """There is no such slice in quarantine."""

    exit_code = EXIT_NOT_FOUND


class NoTerminalError(CommandError):
    """It needs a person's word, and there is none."""

    exit_code = EXIT_USAGE


class DeclinedError(CommandError):
    """A person was asked, and does not want it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineRelease:
    """What was typed."""

    allocation: str
    node: str = ""
    """Empty: whichever has the slice, by the bus."""
    data_dir: Path | None = None
    """Of the node's agent; None is that of the running `sluice up`."""
    ignore_holders: bool = False
    yes: bool = False


def check(wanted: QuarantineRelease, *, is_terminal: bool, ask: Callable[[str], bool]) -> None:
    """
    Where what holds the device is to be ignored, a person must vouch for it.

    Raises NoTerminalError where there is none, and DeclinedError for a no: scripts tell them apart by the exit code.
    """
    if not wanted.ignore_holders or wanted.yes:
        return
    if not is_terminal:
        raise NoTerminalError("--ignore-holders needs a confirmation, and there is no terminal; use --yes")
    question = f"do you confirm that no process on the devices of {wanted.allocation} belongs to its pod?"
    if not ask(question):
        raise DeclinedError("nothing was done")


async def release(server: str | None, wanted: QuarantineRelease) -> int:
    """Have it tried again. Raises NotThereError, NothingRunningError, BusError."""
    node = wanted.node
    if not node:
        node = quarantined_on(await fleet_state_at(server_url(server)), wanted.allocation)
    become_release(wanted, node)


def quarantined_on(fleet_state: FleetState, allocation: str) -> str:
    """Which node has a slice in quarantine. Raises NotThereError, with what there is."""
    there = {
        str(report.booking.allocation): node
        for node, inventory in fleet_state.inventories().items()
        for report in inventory.snapshot.slices
        if report.state == "quarantined"
    }
    if allocation not in there:
        known = ", ".join(sorted(there)[:8]) or "none"
        raise NotThereError(f"there is no slice {allocation!r} in quarantine; there are: {known}")
    return there[allocation]


def become_release(wanted: QuarantineRelease, node: str) -> NoReturn:
    """Carry on as the agent's command, with these streams; its exit code is this command's."""
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
