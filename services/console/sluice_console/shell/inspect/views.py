"""Views of the fleet: GPUs, pods and nodes, each as a document and as text."""

from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from sluice_console.core.documents import Document, GpusDocument, PodsDocument
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.fleet.gpus import gpus_document
from sluice_console.core.fleet.nodes import NodesDocument, nodes_document
from sluice_console.core.fleet.pods import pods_document
from sluice_console.core.output.top_view import View
from sluice_console.core.output.wide import (
    GPU_COLUMNS,
    NODE_COLUMNS,
    POD_COLUMNS,
    USE,
    columns_text,
    gpu_rows,
    node_rows,
    pod_rows,
)
from sluice_console.shell.inspect.nodes import show_nodes
from sluice_console.shell.output.printer import show_gpus, show_pods


@dataclass(frozen=True, slots=True)
class FleetView:
    """Which view, and its options."""

    view: View
    with_ended: bool = False
    """Pods: include ended ones."""
    idle_only: bool = False
    """Nodes: idle ones only."""

    def document(self, fleet_state: FleetState, since: dict[str, str]) -> Document:
        """The document. `since`: since when idle nodes are idle."""
        if self.view == "gpus":
            return gpus_document(fleet_state)
        if self.view == "pods":
            return pods_document(fleet_state, with_ended=self.with_ended)
        return nodes_document(fleet_state, since, idle_only=self.idle_only)

    def show(
        self,
        out: Console,
        document: Document,
        fleet_state: FleetState,
        *,
        wide: bool,
        use: Mapping[str, str] | None = None,
    ) -> None:
        """Print it for people. `use`: usage by request, if agents were asked."""
        match document:
            case GpusDocument() if wide:
                out.print(Text(columns_text(GPU_COLUMNS, gpu_rows(document))))
            case GpusDocument():
                show_gpus(out, document)
            case PodsDocument() if wide:
                columns = POD_COLUMNS if use is None else (*POD_COLUMNS, USE)
                out.print(Text(columns_text(columns, pod_rows(document.pods, use))))
            case PodsDocument():
                show_pods(out, document)
            case NodesDocument() if wide:
                rows = node_rows(document.nodes, gpus_document(fleet_state).nodes)
                out.print(Text(columns_text(NODE_COLUMNS, rows)))
            case NodesDocument():
                show_nodes(out, document, idle_only=self.idle_only)
            case _:
                raise TypeError(f"{type(document).__name__} is no view of the fleet")
