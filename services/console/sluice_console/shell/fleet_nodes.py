"""`sluice nodes`: reads the bus once and, for nodes with nothing on them, the history of their ledgers; prints."""

import asyncio
import sys
from collections.abc import Iterable

import msgspec
from rich.table import Table
from rich.text import Text

from sluice.contracts.codec import Undecodable
from sluice.contracts.ids import NodeName
from sluice.contracts.subjects import HISTORY_PREFIX, ledger_filter
from sluice.runtime.nats_history import open_history
from sluice_console.core.fleet_nodes import COLUMNS, NodesDocument, last_given_back, node_cells, nodes_document
from sluice_console.core.story import Happened
from sluice_console.shell.connect import user_of_the_bus
from sluice_console.shell.look import world_at
from sluice_console.shell.present import console

FILTERS_MAX = 32
"""So many ledgers are read singly; of more idle nodes all ledgers are read, in one go."""
HISTORY_WITHIN_S = 10.0
"""A history that takes longer to read is done without: the nodes are shown, and not since when."""
_STYLES = {"open": "green", "removed": "dim", "stale": "red"}


async def nodes(url: str, *, idle_only: bool, as_json: bool) -> int:
    """`sluice nodes`. Raises BusError, NotAnsweringError."""
    world = await world_at(url)
    idle = [NodeName(node.node) for node in nodes_document(world, {}, idle_only=True).nodes]
    document = nodes_document(world, await _since(url, idle) if idle else {}, idle_only=idle_only)
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")
    else:
        _show(document, idle_only=idle_only)
    return 0


async def _since(url: str, idle: list[NodeName]) -> dict[str, str]:
    ledgers = [ledger_filter(node) for node in idle] if len(idle) <= FILTERS_MAX else ["sluice.ledger.>"]
    try:
        async with asyncio.timeout(HISTORY_WITHIN_S):
            return last_given_back(await _history(url, tuple(f"{HISTORY_PREFIX}{each}" for each in ledgers)))
    except TimeoutError:
        sys.stderr.write(f"sluice nodes: the history takes over {HISTORY_WITHIN_S:g} s to read; shown without it\n")
        return {}


async def _history(url: str, filters: tuple[str, ...]) -> Iterable[Happened]:
    async with open_history(url, name="console", credentials=user_of_the_bus()) as history:
        return [
            Happened(recorded.subject, recorded.envelope)
            async for batch in history.read(filters=filters)
            for recorded in batch
            if not isinstance(recorded.envelope, Undecodable)
        ]


def _show(document: NodesDocument, *, idle_only: bool) -> None:
    out = console()
    if not document.nodes:
        out.print("no node is without slices" if idle_only else "no node is known yet")
        return
    table = Table(box=None, pad_edge=False, show_edge=False)
    for column in COLUMNS:
        table.add_column(column, no_wrap=True)
    for node in document.nodes:
        name, state, *rest = node_cells(node)
        style = _STYLES.get(node.state, "yellow")
        table.add_row(Text(name), Text(state, style=style), *(Text(cell) for cell in rest))
    out.print(table)
