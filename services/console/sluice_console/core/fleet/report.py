"""Use over time, as the recorder sums it up: documents, rows for people and for CSV."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from sluice.contracts.pb import inventory_pb2 as pb
from sluice.mig.catalog import catalog, normalized_name
from sluice.mig.model_names import is_named
from sluice_console.core.documents import VERSION, Document
from sluice_console.core.fleet.usage import duration_text

COLUMNS = ("GPU HOURS", "OF ALL", "USED", "IDLE", "POD HOURS", "WAITED", "P50", "P95", "BOUND", "COST")
_UNITS_S = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SPAN = re.compile(r"(\d+)([mhdw])")


class ReportPointDocument(Document, frozen=True, kw_only=True):
    """Means over one step, from `start` (UTC)."""

    start: str
    allocated_gpus: float
    used_gpus: float
    capacity_gpus: float
    waiting_pods: float


class ReportRowDocument(Document, frozen=True, kw_only=True):
    """One namespace, model or node; `key` is empty for everything. Amounts are explained in docs/report.md."""

    key: str
    gpu_hours: float
    gpu_hours_by_model: dict[str, float]
    memory_gib_hours: float
    pod_hours: float
    used_gpu_hours: float
    idle_gpu_hours: float
    capacity_gpu_hours: float | None
    """Null by namespace."""
    waiting_pod_hours: float | None
    """Null by model and node, as the waits."""
    bound: int | None
    wait_p50_s: float | None
    wait_p95_s: float | None
    wait_max_s: float | None
    cost: float | None
    """Null without prices."""
    points: tuple[ReportPointDocument, ...] = ()


class ReportDocument(Document, frozen=True, kw_only=True):
    """`sluice report --json`."""

    version: int = VERSION
    start: str
    """What is recorded of the span that was asked for, UTC."""
    end: str
    by: str
    step_s: int
    rows: tuple[ReportRowDocument, ...]


def span_s(text: str) -> int | None:
    """Seconds of `90m`, `24h`, `7d`, `4w`; None for anything else."""
    found = _SPAN.fullmatch(text.strip().lower())
    return int(found[1]) * _UNITS_S[found[2]] if found is not None and int(found[1]) else None


def report_document(answer: pb.ReportResponse, by: str, prices: Mapping[str, float]) -> ReportDocument:
    """The document of an answer. `prices`: per GPU hour by a name of the model (docs/models.md), `*` for the others."""
    return ReportDocument(
        start=_utc(answer.from_unix),
        end=_utc(answer.until_unix),
        by=by,
        step_s=answer.step_s,
        rows=tuple(_row(row, by, prices) for row in answer.rows),
    )


def _row(row: pb.ReportRow, by: str, prices: Mapping[str, float]) -> ReportRowDocument:
    waits = by in {"all", "namespace"}
    by_model = {model: round(hours, 4) for model, hours in sorted(row.gpu_hours_by_model.items())}
    cost = sum(hours * prices.get(_priced_as(model, prices), 0.0) for model, hours in row.gpu_hours_by_model.items())
    return ReportRowDocument(
        key=row.key,
        gpu_hours=round(row.gpu_hours, 4),
        gpu_hours_by_model=by_model,
        memory_gib_hours=round(row.memory_gib_hours, 2),
        pod_hours=round(row.pod_hours, 3),
        used_gpu_hours=round(row.used_gpu_hours, 4),
        idle_gpu_hours=round(row.idle_gpu_hours, 4),
        capacity_gpu_hours=round(row.capacity_gpu_hours, 3) if by != "namespace" else None,
        waiting_pod_hours=round(row.waiting_pod_hours, 3) if waits else None,
        bound=row.bound if waits else None,
        wait_p50_s=round(row.wait_p50_s, 1) if waits else None,
        wait_p95_s=round(row.wait_p95_s, 1) if waits else None,
        wait_max_s=round(row.wait_max_s, 1) if waits else None,
        cost=round(cost, 2) if prices else None,
        points=tuple(_point(each) for each in row.points),
    )


def _point(point: pb.ReportPoint) -> ReportPointDocument:
    return ReportPointDocument(
        start=_utc(point.start_unix),
        allocated_gpus=round(point.allocated_gpus, 4),
        used_gpus=round(point.used_gpus, 4),
        capacity_gpus=round(point.capacity_gpus, 4),
        waiting_pods=round(point.waiting_pods, 3),
    )


def price_doubts(document: ReportDocument, prices: Mapping[str, float]) -> list[str]:
    """Models with use and without a price, and prices of no model."""
    models = sorted({model for row in document.rows for model in row.gpu_hours_by_model})
    unpriced = [model for model in models if prices and _priced_as(model, prices) not in prices]
    known = [*models, *(product for model in catalog() for product in model.product_names)]
    unknown = [name for name in prices if name != "*" and not any(is_named(model, name) for model in known)]
    return [
        *(f"no price for {model}: it counts as 0" for model in unpriced),
        *(f"{name!r} is the name of no known model: its price is not used" for name in unknown),
    ]


def _priced_as(model: str, prices: Mapping[str, float]) -> str:
    """The name in `prices` that means the model: the most exact one, or `*`."""
    named = [name for name in prices if is_named(model, name)]
    return max(named, key=lambda name: (name == model, len(normalized_name(name))), default="*")


def report_cells(row: ReportRowDocument) -> tuple[str, ...]:
    """One row, `COLUMNS` after its key."""
    share = f"{100 * row.gpu_hours / row.capacity_gpu_hours:.0f} %" if row.capacity_gpu_hours else "-"
    return (
        row.key or "everything",
        f"{row.gpu_hours:.1f}",
        share,
        f"{row.used_gpu_hours:.1f}",
        f"{row.idle_gpu_hours:.1f}",
        f"{row.pod_hours:.1f}",
        "-" if row.waiting_pod_hours is None else f"{row.waiting_pod_hours:.1f}",
        *("-" if wait is None or not row.bound else duration_text(wait) for wait in (row.wait_p50_s, row.wait_p95_s)),
        "-" if row.bound is None else str(row.bound),
        "-" if row.cost is None else f"{row.cost:.2f}",
    )


def report_table(document: ReportDocument) -> list[list[object]]:
    """A header and a row each, for CSV; None is unknown."""
    names = [name for name in ReportRowDocument.__struct_fields__ if name not in {"points", "gpu_hours_by_model"}]
    rows = [[document.start, document.end, *(getattr(row, name) for name in names)] for row in document.rows]
    return [["start", "end", document.by, *names[1:]], *rows]


def _utc(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="minutes")
