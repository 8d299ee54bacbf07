"""Columns and cells of `-o wide`: one line per item with everything that fits into a line, for grep, cut and awk."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime

from sluice.contracts.messages import DeviceGrant
from sluice.contracts.request_syntax import claims_text
from sluice_console.core.documents import GpuDocument, GpusDocument, NodeDocument, PodDocument
from sluice_console.core.fleet.nodes import COLUMNS, FleetNodeDocument, node_cells
from sluice_console.core.output.gpu_picture import fits_text
from sluice_console.core.output.sanitize import sanitize

GPU_COLUMNS = ("NODE", "GPU", "UUID", "MODEL", "MEMORY (MiB)", "MIG", "IN USE", "TAKEN BY", "STATE", "FREE")
POD_COLUMNS = ("POD", "STATE", "AGE", "WAITED", "NODE", "ASKS FOR", "HAS", "REQUEST", "ALLOCATION", "SOURCE")
MEMORY_NOT_KNOWN = "not known"
"""For a GPU whose driver does not report it; 0 would be added up."""
USE = "USE"
"""What a pod's slices are used for; follows `POD_COLUMNS` if agents were asked."""
NODE_COLUMNS = (*COLUMNS, "MODES", "DRIVER", "TOOLKIT")
Row = tuple[str, ...]


def columns_text(columns: Row, rows: Iterable[Row]) -> str:
    """Columns under their headings, never cut; separated by two spaces, which no heading contains."""
    lines = [columns, *(tuple(map(sanitize, row)) for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def gpu_rows(document: GpusDocument) -> list[Row]:
    """Every GPU."""
    return [_gpu(gpu) for gpu in document.gpus]


def _gpu(gpu: GpuDocument) -> Row:
    owners = {place.owner or place.state: None for place in gpu.instances if not place.tenants}
    owners |= {tenant.owner: None for place in gpu.instances for tenant in place.tenants}
    return (
        gpu.node,
        str(gpu.index),
        gpu.uuid,
        gpu.model.removeprefix("NVIDIA "),
        str(gpu.memory_mib) if gpu.memory_mib else MEMORY_NOT_KNOWN,
        ("fixed" if gpu.fixed_layout else "on") if gpu.mig_enabled else "off",
        f"{gpu.allocated_fraction:.0%}",
        ",".join(owners) or "-",
        ",".join(_states(gpu)) or "ok",
        fits_text(gpu) if gpu.mig_enabled else "-",
    )


def _states(gpu: GpuDocument) -> Iterable[str]:
    if gpu.lost:
        yield "lost"
    elif not gpu.healthy:
        yield "unhealthy"
    if gpu.cordoned:
        yield "cordoned"
    if gpu.stale:
        yield "stale"
    if any(place.out_of_use for place in gpu.instances):
        yield "quarantined"


def pod_rows(pods: Iterable[PodDocument], use: Mapping[str, str] | None = None, *, now_s: float = 0.0) -> list[Row]:
    """Every request at `now_s` (unix); with `use` a last column (`USE`) has each one's usage, by request."""
    return [
        (
            pod_name(pod),
            pod.state,
            *ages(pod, now_s),
            pod.node or "-",
            claims_text(pod.claims) if pod.claims else "-",
            ", ".join(_device(device) for device in pod.devices) or "-",
            pod.request,
            pod.allocation or "-",
            pod.source,
            *(() if use is None else (use.get(pod.request) or "-",)),
        )
        for pod in pods
    ]


def ages(pod: PodDocument, now_s: float) -> tuple[str, str]:
    """Since when it is bound, or else asks, and how long it has waited, or waited until then; `-` where unknown."""
    asked, bound = (datetime.fromisoformat(at).timestamp() if at else None for at in (pod.asked_at, pod.bound_at))
    until = bound if bound is not None else now_s if pod.state in {"requested", "waiting", "making"} else None
    began = bound if bound is not None else asked
    return (
        "-" if began is None else span_text(now_s - began),
        "-" if until is None or asked is None else span_text(until - asked),
    )


def span_text(seconds: float) -> str:
    """As `kubectl get` shows an age: one unit, rounded down."""
    whole = max(0, int(seconds))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole >= 2 * size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def slices_text(pod: PodDocument) -> str:
    """What is booked for a pod, in short: profiles, and sizes of shares; `-` for nothing."""
    counts = Counter(_slice(device) for device in pod.devices)
    return ", ".join(f"{count} x {what}" if count > 1 else what for what, count in counts.items()) or "-"


def _slice(device: DeviceGrant) -> str:
    what = device.profile or "whole GPU"
    return what if device.share is None else f"{device.share.memory_mib} MiB of {what}"


def pod_name(pod: PodDocument) -> str:
    """`namespace/name`, or the best known name."""
    return f"{pod.namespace}/{pod.name}" if pod.name else pod.origin or pod.request


def _device(device: DeviceGrant) -> str:
    what = device.profile or "whole GPU"
    share = f" ({device.share.mode}, {device.share.memory_mib} MiB)" if device.share is not None else ""
    return f"{what}{share} at {device.start} of {device.gpu}"


def node_rows(nodes: Iterable[FleetNodeDocument], told: Iterable[NodeDocument]) -> list[Row]:
    """Every node, with its agent's facts."""
    by_name = {node.node: node for node in told}
    rows = []
    for node in nodes:
        agent = by_name.get(node.node)
        more = (
            (",".join(agent.modes), agent.driver_version, agent.toolkit_version) if agent is not None else ("", "", "")
        )
        rows.append((*node_cells(node), *(each or "-" for each in more)))
    return rows
