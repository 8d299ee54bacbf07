"""Views of the fleet: GPUs, pods, nodes, quotas and usage, each as a document and as text."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from msgspec.structs import replace as changed
from rich.console import Console
from rich.text import Text

from sluice_console.core.documents import Document, GpusDocument, PodsDocument, QuotasDocument
from sluice_console.core.fleet.filters import EVERYTHING, FleetFilter
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.fleet.gpus import gpus_document
from sluice_console.core.fleet.nodes import NodesDocument, nodes_document
from sluice_console.core.fleet.pods import pods_document
from sluice_console.core.fleet.usage import IDLE_S, UsagesDocument, longest_idle, use_by_request
from sluice_console.core.operate.quotas import quotas_document
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
from sluice_console.shell.output.printer import show_gpus, show_pods, show_quotas, show_usage

UNASKED = UsagesDocument(slices=(), silent={})
_NO_POD, _NO_SUCH_POD = "no pod asks for a slice", "no such pod asks for a slice"


@dataclass(frozen=True, slots=True)
class FleetView:
    """Which view, and its options."""

    view: View
    with_ended: bool = False
    """Pods: include ended ones."""
    idle_only: bool = False
    """Nodes: idle ones only."""
    idle_s: float | None = None
    """Usage: only slices that idle for at least so long."""
    namespace: str | None = None
    """Quotas: only this one."""
    filter: FleetFilter = EVERYTHING
    """What is shown; without terms everything."""

    @property
    def needs_usage(self) -> bool:
        """Whether agents have to be asked."""
        return self.view == "usage" or self.filter.needs_use

    def document(self, fleet_state: FleetState, since: dict[str, str], usages: UsagesDocument = UNASKED) -> Document:
        """The document. `since`: since when idle nodes are idle. `usages`: of all slices."""
        if self.filter.needs_use and usages is not UNASKED:
            idle = frozenset(each.request for each in longest_idle(usages.slices, IDLE_S))
            picked = replace(self, filter=replace(self.filter, idle=idle))
            return picked._document(fleet_state, since, usages)  # noqa: SLF001 - of its own class
        return self._document(fleet_state, since, usages)

    def _document(self, fleet_state: FleetState, since: dict[str, str], usages: UsagesDocument) -> Document:
        if self.view == "usage":
            return self._of_slices(usages, fleet_state)
        if self.view == "quotas":
            quotas = quotas_document(fleet_state).quotas
            return QuotasDocument(quotas=tuple(each for each in quotas if self.namespace in {None, each.namespace}))
        if self.view == "pods":
            return self._of_pods(pods_document(fleet_state, with_ended=self.with_ended), fleet_state)
        nodes = nodes_document(fleet_state, since, idle_only=self.idle_only)
        if self.view == "gpus":
            return self._of_gpus(gpus_document(fleet_state), nodes)
        if not self.filter.terms:
            return nodes
        shown = {each.node for each in self._of_gpus(gpus_document(fleet_state), nodes).gpus}
        shown |= {each.node for each in nodes.nodes if not each.gpus and self.filter.picks_bare_node(each)}
        return changed(nodes, nodes=tuple(each for each in nodes.nodes if each.node in shown))

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
        return changed(found, gpus=gpus, nodes=tuple(each for each in found.nodes if each.node in shown))

    def _of_pods(self, found: PodsDocument, fleet_state: FleetState) -> PodsDocument:
        if not self.filter.terms:
            return found
        model = _models(fleet_state)
        pods = (
            pod
            for pod in found.pods
            if self.filter.picks_pod(pod, {model.get(device.gpu, "") for device in pod.devices})
        )
        return changed(found, pods=tuple(pods))

    def _of_slices(self, found: UsagesDocument, fleet_state: FleetState) -> UsagesDocument:
        slices = found.slices if self.idle_s is None else longest_idle(found.slices, self.idle_s)
        model = _models(fleet_state) if self.filter.terms else {}
        picked = (each for each in slices if self.filter.picks_slice(each, model.get(each.gpu, "")))
        return changed(found, slices=tuple(picked))

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
        usages: UsagesDocument | None = None,
        lines: Mapping[str, str] | None = None,
    ) -> None:
        """Print it for people. `usages`: if agents were asked; `lines`: of each node's last minutes."""
        match document:
            case GpusDocument(gpus=()) | NodesDocument(nodes=()) | UsagesDocument(slices=()) if self.is_part:
                out.print("nothing matches the filter")
            case GpusDocument() if wide:
                out.print(Text(columns_text(GPU_COLUMNS, gpu_rows(document))))
            case GpusDocument():
                show_gpus(out, document)
            case PodsDocument() if wide:
                use = use_by_request(usages) if usages is not None else None
                columns = POD_COLUMNS if use is None else (*POD_COLUMNS, USE)
                out.print(Text(columns_text(columns, pod_rows(document.pods, use, now_s=time.time()))))
            case PodsDocument():
                show_pods(out, document, none=_NO_SUCH_POD if self.is_part else _NO_POD)
            case NodesDocument() if wide:
                rows = node_rows(document.nodes, gpus_document(fleet_state).nodes)
                out.print(Text(columns_text(NODE_COLUMNS, rows)))
            case NodesDocument():
                show_nodes(out, document, idle_only=self.idle_only, lines=lines)
            case QuotasDocument():
                show_quotas(out, document, self.namespace)
            case UsagesDocument():
                show_usage(out, document, self.idle_s)
            case _:
                raise TypeError(f"{type(document).__name__} is no view of the fleet")


def _models(fleet_state: FleetState) -> dict[str, str]:
    """The model of each GPU."""
    return {gpu.uuid: gpu.model for each in fleet_state.inventories().values() for gpu in each.snapshot.gpus}
