"""Nodes for people. Since when a node is idle comes from the history of its ledger."""

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.console import Console

from sluice.contracts.bus.subjects import HISTORY_PREFIX, ledger_filter
from sluice.contracts.ids import NodeName
from sluice.runtime.bus import BusError
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.fleet.nodes import COLUMNS, NodesDocument, last_given_back, node_cells, nodes_document
from sluice_console.core.output.node_shares import HEADING
from sluice_console.core.output.sanitize import sanitize
from sluice_console.shell.live.history import all_history
from sluice_console.shell.output.printer import said, show_table

FILTERS_MAX = 32
"""Ledgers read one by one; for more idle nodes all ledgers are read at once."""
HISTORY_WITHIN_S = 10.0
"""If the history is unreadable or slower than this, nodes are shown without idle times."""
LINE_AT = 4
"""The column of a node's last minutes: after what is free."""
_STYLES = {"open": "green", "removed": "dim", "stale": "red"}


@dataclass(slots=True)
class IdleSince:
    """Caches since when nodes are idle; reads the history again only when other nodes are idle."""

    url: str
    _idle: list[NodeName] = field(default_factory=list)
    _since: dict[str, str] = field(default_factory=dict)

    async def of(self, fleet_state: FleetState) -> dict[str, str]:
        """By idle node; unknown ones are left out."""
        idle = [NodeName(node.node) for node in nodes_document(fleet_state, {}, idle_only=True).nodes]
        if idle != self._idle:
            self._since = await _since(self.url, idle) if idle else {}
            self._idle = idle
        return self._since


async def _since(url: str, idle: list[NodeName]) -> dict[str, str]:
    ledgers = [ledger_filter(node) for node in idle] if len(idle) <= FILTERS_MAX else ["sluice.ledger.>"]
    try:
        async with asyncio.timeout(HISTORY_WITHIN_S):
            return last_given_back(await all_history(url, tuple(f"{HISTORY_PREFIX}{each}" for each in ledgers)))
    except TimeoutError:
        sys.stderr.write(f"sluice nodes: the history takes over {HISTORY_WITHIN_S:g} s to read; shown without it\n")
    except BusError as error:
        sys.stderr.write(f"sluice nodes: the history cannot be read; shown without it: {sanitize(str(error))}\n")
    return {}


def show_nodes(
    out: Console, document: NodesDocument, *, idle_only: bool, lines: Mapping[str, str] | None = None
) -> None:
    """One row per node, with a line of its last minutes where there are some."""
    if not document.nodes:
        out.print("no node is idle" if idle_only else "no node is known yet")
        return

    def columns(cells: tuple[str, ...], line: str) -> tuple[str, ...]:
        return cells if lines is None else (*cells[:LINE_AT], line, *cells[LINE_AT:])

    rows = []
    for node in document.nodes:
        name, state, *rest = columns(node_cells(node), (lines or {}).get(node.node, ""))
        style = _STYLES.get(node.state, "yellow")
        rows.append((said(name), said(state, style=style), *map(said, rest)))
    show_table(out, columns(COLUMNS, HEADING), rows)
