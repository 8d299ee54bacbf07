"""`sluice usage`: asks agents for the usage of their slices, and prints it."""

from dataclasses import replace

import msgspec

from sluice.contracts.slice_usage import NodeUsage
from sluice.runtime.bus import BusError
from sluice.runtime.errors import ServiceError
from sluice.runtime.grpc.usage_client import ask_agents
from sluice_console.core.fleet.filters import EVERYTHING, FleetFilter
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.fleet.usage import (
    COLUMNS,
    IDLE_S,
    UsagesDocument,
    duration_text,
    nodes_with_slices,
    silent_lines,
    usage_cells,
    usage_of_pod,
    usages_document,
)
from sluice_console.shell.live.allocator_client import trusted
from sluice_console.shell.live.connect import connected
from sluice_console.shell.live.live_fleet import read_fleet_state
from sluice_console.shell.output.formats import OutputFormat, is_for_programs, print_document
from sluice_console.shell.output.printer import console, said, say, show_table


async def usage(url: str, *, idle_s: float | None, form: OutputFormat, picked: FleetFilter = EVERYTHING) -> int:
    """`sluice usage`. Raises BusError, NotAnsweringError."""
    async with connected(url) as bus:
        fleet_state = await read_fleet_state(bus)
    document = await usages_at(fleet_state, idle_s=idle_s)
    if picked.terms:
        idle = frozenset(each.request for each in document.slices if (each.idle_s or 0.0) >= IDLE_S)
        picked = replace(picked, idle=idle)
        model = {gpu.uuid: gpu.model for each in fleet_state.inventories().values() for gpu in each.snapshot.gpus}
        slices = (each for each in document.slices if picked.picks_slice(each, model.get(each.gpu, "")))
        document = msgspec.structs.replace(document, slices=tuple(slices))
    if is_for_programs(form):
        print_document(document, form)
        return 0
    _show(document, idle_s)
    say(silent_lines(document))
    return 0


async def usages_at(fleet_state: FleetState, *, idle_s: float | None = None) -> UsagesDocument:
    """Usage of all slices, or of idle ones. Raises BusError if no agent can be asked."""
    try:
        security = trusted()
    except ServiceError as error:
        raise BusError(str(error)) from error
    found = await ask_agents(nodes_with_slices(fleet_state), security)
    answers = {node: answer for node, answer in found.items() if isinstance(answer, NodeUsage)}
    silent = {node: answer for node, answer in found.items() if isinstance(answer, str)}
    return usages_document(answers, silent, idle_s=idle_s)


async def idle_requests(fleet_state: FleetState) -> frozenset[str]:
    """Requests with a slice that has been idle for `IDLE_S`. Raises BusError if no agent can be asked."""
    document = await usages_at(fleet_state, idle_s=IDLE_S)
    say(silent_lines(document))
    return frozenset(each.request for each in document.slices)


async def use_by_request(fleet_state: FleetState) -> tuple[dict[str, str], list[str]]:
    """Usage by request as a short text; and a line for each agent that could not be asked."""
    try:
        document = await usages_at(fleet_state)
    except BusError as error:
        return {}, [f"slice usage cannot be read from the agents: {error}"]
    use = {each.request: usage_of_pod(each.request, document.slices) for each in document.slices}
    return use, silent_lines(document)


def _show(document: UsagesDocument, idle_s: float | None) -> None:
    out = console()
    if not document.slices:
        out.print("no slice is ready" if idle_s is None else f"no slice has idled for {duration_text(idle_s)}")
        return
    show_table(out, COLUMNS, [tuple(map(said, usage_cells(each))) for each in document.slices])
