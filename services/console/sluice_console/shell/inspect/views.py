"""Views of the fleet: GPUs, pods and nodes, each as a document and as text."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from sluice_console.core.documents import Document, GpusDocument, PodsDocument
from sluice_console.core.fleet.filters import EVERYTHING, FleetFilter
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

_NO_POD, _NO_SUCH_POD = "no pod asks for a slice", "no such pod asks for a slice"


@dataclass(frozen=True, slots=True)
class FleetView:
    """Which view, and its options."""

    view: View
    with_ended: bool = False
    """Pods: include ended ones."""
    idle_only: bool = False
    """Nodes: idle ones only."""
    filter: FleetFilter = EVERYTHING
    """What is shown; without terms everything."""

    def document(self, fleet_state: FleetState, since: dict[str, str]) -> Document:
        """The document. `since`: since when idle nodes are idle."""
        if self.view == "pods":
            return self._of_pods(pods_document(fleet_state, with_ended=self.with_ended), fleet_state)
        nodes = nodes_document(fleet_state, since, idle_only=self.idle_only)
        if self.view == "gpus":
            return self._of_gpus(gpus_document(fleet_state), nodes)
        if not self.filter.terms:
            return nodes
        shown = {each.node for each in self._of_gpus(gpus_document(fleet_state), nodes).gpus}
        shown |= {each.node for each in nodes.nodes if not each.gpus and self.filter.picks_bare_node(each)}
        return replace(nodes, nodes=tuple(each for each in nodes.nodes if each.node in shown))

    def _of_gpus(self, found: GpusDocument, nodes: NodesDocument) -> GpusDocument:
        if not self.filter.terms:
            return found
        known = {each.node: each for each in nodes.nodes}
        warnings = {each.node: each.warnings for each in found.nodes}
        gpus = tuple(
            gpu
            for gpu in found.gpus
            if self.filter.lit(gpu, known.get(gpu.node), warnings.get(gpu.node, ())) is not None
        )
        shown = {gpu.node for gpu in gpus}
        return replace(found, gpus=gpus, nodes=tuple(each for each in found.nodes if each.node in shown))

    def _of_pods(self, found: PodsDocument, fleet_state: FleetState) -> PodsDocument:
        if not self.filter.terms:
            return found
        model = {gpu.uuid: gpu.model for each in fleet_state.inventories().values() for gpu in each.snapshot.gpus}
        pods = (
            pod
            for pod in found.pods
            if self.filter.picks_pod(pod, {model.get(device.gpu, "") for device in pod.devices})
        )
        return replace(found, pods=tuple(pods))

    @property
    def is_part(self) -> bool:
        """Whether it leaves something out."""
        return bool(self.filter.terms)

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
                out.print(Text(columns_text(columns, pod_rows(document.pods, use, now_s=time.time()))))
            case PodsDocument():
                show_pods(out, document, none=_NO_SUCH_POD if self.is_part else _NO_POD)
            case NodesDocument() if wide:
                rows = node_rows(document.nodes, gpus_document(fleet_state).nodes)
                out.print(Text(columns_text(NODE_COLUMNS, rows)))
            case NodesDocument():
                show_nodes(out, document, idle_only=self.idle_only)
            case _:
                raise TypeError(f"{type(document).__name__} is no view of the fleet")
