"""Names from the running system for the completion of a shell: soon, or none. Errors are the shell script's to drop."""

import asyncio

from cyclopts.completion import CompletionContext

from sluice_console.core.fleet.filters import Subject
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.fleet.names import Named, filter_words, names_of
from sluice_console.shell.live.connect import connected
from sluice_console.shell.live.live_fleet import read_fleet_state
from sluice_console.shell.live.running_systems import server_url

WITHIN_S = 0.5
"""A user who pressed Tab waits for no longer."""


def live_names(named: Named, context: CompletionContext) -> list[str]:
    """All names of a kind. Raises BusError, CommandError and TimeoutError."""
    node = context.get("node") if named == "gpus" else None
    return names_of(named, _read(context), node=(node.raw or "") if node is not None else "")


def live_words(subject: Subject, context: CompletionContext) -> list[str]:
    """All words of a filter. Raises as `live_names`.

    Bash makes three words of `node:gpu-1`, and completes the last."""
    found = filter_words(subject, _read(context))
    typed = context["words"].raw_tokens
    if context.incomplete == ":" and typed:
        return [f":{value}" for key, value in found if key == typed[-1]]
    if typed[-1:] == (":",):
        return [value for key, value in found if key == typed[-2:][0]]
    return [f"{key}:{value}" for key, value in found]


def _read(context: CompletionContext) -> FleetState:
    return asyncio.run(_within(server_url(context["server"].raw)))


async def _within(url: str) -> FleetState:
    async with asyncio.timeout(WITHIN_S), connected(url, within_s=WITHIN_S) as bus:
        return await read_fleet_state(bus)
