"""The JSON schemas of what `--json` prints. tools/json_page.py makes docs/json.md of them."""

from typing import Any

import msgspec

from sluice_console.core.bench.figures import BenchDocument
from sluice_console.core.doctor.findings import DoctorDocument
from sluice_console.core.documents import (
    AdjustDocument,
    ConsolidationDocument,
    CordonDocument,
    Document,
    GpusDocument,
    PodsDocument,
    QuotasDocument,
    SimulatedDocument,
    StoryDocument,
)
from sluice_console.core.fleet.nodes import NodesDocument
from sluice_console.core.fleet.report import ReportDocument
from sluice_console.core.fleet.usage import UsagesDocument
from sluice_console.core.history.events import EventDocument
from sluice_console.core.history.waterfall import WaterfallDocument
from sluice_console.core.web.map_api import MapDocument

COMMANDS: dict[str, type[Document]] = {
    "sluice gpus --json": GpusDocument,
    "sluice nodes --json": NodesDocument,
    "sluice pods --json": PodsDocument,
    "sluice usage --json": UsagesDocument,
    "sluice report --json": ReportDocument,
    "sluice explain REQUEST --json": StoryDocument,
    "sluice trace REQUEST --json": WaterfallDocument,
    "sluice events --json": EventDocument,
    "sluice bench --json": BenchDocument,
    "sluice simulate -f FILE --json": SimulatedDocument,
    "sluice quota list --json": QuotasDocument,
    "sluice drain NODE --json": CordonDocument,
    "sluice consolidate --json": ConsolidationDocument,
    "sluice adjust POD --json": AdjustDocument,
    "sluice doctor --json": DoctorDocument,
    "/api/map": MapDocument,
}


def schema(document: type[Document]) -> dict[str, Any]:
    """The JSON schema of one printed document."""
    return msgspec.json.schema(document)
