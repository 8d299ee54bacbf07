"""The JSON schemas of what `--json` prints, and the page that documents them (docs/json.md)."""

from typing import Any

import msgspec

from sluice_console.core.bench.figures import BenchDocument
from sluice_console.core.doctor.findings import DoctorDocument
from sluice_console.core.documents import (
    AdjustDocument,
    CordonDocument,
    Document,
    GpusDocument,
    PodsDocument,
    QuotasDocument,
    SimulatedDocument,
    StoryDocument,
)
from sluice_console.core.events import EventDocument
from sluice_console.core.fleet_nodes import NodesDocument
from sluice_console.core.usages import UsagesDocument
from sluice_console.core.waterfall import WaterfallDocument
from sluice_console.core.web.map_api import MapDocument

COMMANDS: dict[str, type[Document]] = {
    "sluice gpus --json": GpusDocument,
    "sluice nodes --json": NodesDocument,
    "sluice pods --json": PodsDocument,
    "sluice usage --json": UsagesDocument,
    "sluice explain REQUEST --json": StoryDocument,
    "sluice trace REQUEST --json": WaterfallDocument,
    "sluice events --json": EventDocument,
    "sluice bench --json": BenchDocument,
    "sluice simulate -f FILE --json": SimulatedDocument,
    "sluice quota list --json": QuotasDocument,
    "sluice drain NODE --json": CordonDocument,
    "sluice adjust POD --json": AdjustDocument,
    "sluice doctor --json": DoctorDocument,
    "/api/map": MapDocument,
}

_INTRODUCTION = """\
# What `--json` prints

One JSON document on standard output (`--watch` and `events`: one per line; `explain` and `trace` too, where several
pods are meant); everything else goes to standard error. The shapes below are JSON Schema (2020-12), made from the types
that print them, and a test compares this page with those types.

Within one `version` fields may be added and none changes its meaning. Exit codes: 0 success, 1 failure, 2 wrong
usage, 3 nothing is running, 4 there is no such request. `sluice simulate -f` ends with 0 when every pod would be bound
now (or asks for nothing), 5 when one would have to wait, 6 when one would be refused. `sluice adjust` ends with 6 when
the share stays as it is. `sluice drain --wait` ends with 7 when somebody is still there after its time. `sluice doctor`
ends with 0 when nothing must be fixed, 1 when something must, 2 when something could not be looked at.

`creatable` says per profile how many more instances fit *now*. `creatable_total` is the sum over all profiles, a sum
of alternatives: 19 on an empty A100 of 40 GB, 0 when its 7g.40gb is taken. It is not a capacity.

The web page's server (web.md) answers `/api/requests/REQUEST` and `/api/trace/REQUEST` with the documents of
`sluice explain` and `sluice trace`, and `/api/gpus/UUID` with one GPU of `sluice gpus`.
"""


def schema(document: type[Document]) -> dict[str, Any]:
    """The JSON schema of one printed document."""
    return msgspec.json.schema(document)


def page() -> str:
    """The text of docs/json.md."""
    parts = [_INTRODUCTION]
    for command, document in COMMANDS.items():
        text = msgspec.json.format(msgspec.json.encode(schema(document)), indent=2).decode()
        parts.append(f"## `{command}`\n\n```json\n{text}\n```\n")
    return "\n".join(parts)
