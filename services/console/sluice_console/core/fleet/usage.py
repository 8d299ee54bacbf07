"""
Usage of slices as their agents measure it: rows for people and programs, and which slices idle.

Answers are taken as they are; missing values are shown as unknown, never as zero.
"""

from collections.abc import Iterable, Mapping

from sluice.contracts.messages import AgentAddress, Mode
from sluice.contracts.slice_usage import NodeUsage, SliceUsage
from sluice_console.core.documents import VERSION, Document
from sluice_console.core.fleet.fleet_state import FleetState

IDLE_S = 3600.0
"""A slice idle for so long is worth a question to its owner."""
_SILENT_SHOWN_MAX = 10
COLUMNS = ("OWNER", "NODE", "WHAT", "BUSY", "SMS", "MEMORY", "PROCESSES", "IDLE FOR")


class UsageDocument(Document, frozen=True, kw_only=True):
    """One device of one slice, and its usage. Null is what the driver does not report, never zero.

    `busy_percent`: of the time in which a kernel ran. `sm_percent`: of the device's SMs that were busy.
    `memory_busy_percent`: of the time (on Hopper and newer: of the bandwidth) in which its memory was used."""

    request: str
    allocation: str
    owner: str
    containers: tuple[str, ...]
    node: str
    gpu: str
    device: str
    """UUID of the MIG device or GPU."""
    profile: str | None
    """Null for a whole GPU."""
    mode: Mode
    memory_mib: int
    """Memory it may use."""
    memory_used_mib: int | None
    busy_percent: float | None
    sm_percent: float | None
    memory_busy_percent: float | None
    processes: int
    watched_s: float
    """How long its agent has sampled it; restarts with the agent."""
    age_s: float | None
    """Of these numbers; null if not sampled yet."""
    idle_s: float | None
    """Null if in use or unknown."""


class UsagesDocument(Document, frozen=True, kw_only=True):
    """`sluice usage --json`."""

    version: int = VERSION
    slices: tuple[UsageDocument, ...]
    """By owner; with `--idle` only idle ones, longest first."""
    silent: dict[str, str]
    """Nodes whose agents did not answer, and why."""


def nodes_with_slices(fleet_state: FleetState) -> dict[str, AgentAddress]:
    """Addresses of agents that have slices, by node."""
    news = fleet_state.news()
    nodes = dict.fromkeys(booking.node for _, booking in fleet_state.bookings())
    return {node: news[node].address for node in nodes if node in news}


def usages_document(
    answers: Mapping[str, NodeUsage], silent: Mapping[str, str], *, idle_s: float | None = None
) -> UsagesDocument:
    """All slices of all answers; with `idle_s` those idle for at least that long."""
    slices = [_document(usage, each) for usage in answers.values() for each in usage.slices]
    slices.sort(key=lambda each: (each.owner, each.request, each.device))
    shown = tuple(slices) if idle_s is None else longest_idle(slices, idle_s)
    return UsagesDocument(slices=shown, silent=dict(sorted(silent.items())))


def longest_idle(slices: Iterable[UsageDocument], idle_s: float) -> tuple[UsageDocument, ...]:
    """Those idle for at least that long, longest first."""
    idle = (each for each in slices if each.idle_s is not None and each.idle_s >= idle_s)
    return tuple(sorted(idle, key=lambda each: (-(each.idle_s or 0.0), each.owner, each.device)))


def _document(usage: NodeUsage, each: SliceUsage) -> UsageDocument:
    return UsageDocument(
        request=each.request,
        allocation=each.allocation,
        owner=f"{each.namespace}/{each.name}",
        containers=each.containers,
        node=usage.node,
        gpu=each.gpu,
        device=each.device,
        profile=each.profile,
        mode=each.mode,
        memory_mib=each.memory_mib,
        memory_used_mib=each.memory_used_mib,
        busy_percent=each.busy_percent,
        sm_percent=each.sm_percent,
        memory_busy_percent=each.memory_busy_percent,
        processes=each.processes,
        watched_s=round(each.watched_s, 1),
        age_s=_round(each.age_s),
        idle_s=_round(each.idle_s),
    )


def usage_cells(each: UsageDocument) -> tuple[str, ...]:
    """One slice as a row of `COLUMNS`."""
    what = each.profile or "whole GPU"
    return (
        each.owner,
        each.node,
        what if each.mode == "exclusive" else f"{each.mode} on {what}",
        _percent(each.busy_percent),
        _percent(each.sm_percent),
        memory_text(each),
        str(each.processes) if each.age_s is not None else "?",
        "-" if each.idle_s is None else duration_text(each.idle_s),
    )


def usage_of_pod(request: str, usages: Iterable[UsageDocument]) -> str:
    """A pod's usage as a cell: `57%, 300 of 4864 MiB`; empty if unknown."""
    of_it = [each for each in usages if each.request == request and each.age_s is not None]
    return "; ".join(f"{_percent(each.busy_percent)}, {memory_text(each)}" for each in of_it)


def use_by_request(usages: UsagesDocument) -> dict[str, str]:
    """Usage of each request as a cell."""
    return {each.request: usage_of_pod(each.request, usages.slices) for each in usages.slices}


def memory_text(each: UsageDocument) -> str:
    """`300 of 4864 MiB`; a driver may not report a GPU's total (0)."""
    return f"{'?' if each.memory_used_mib is None else each.memory_used_mib} of {each.memory_mib or '?'} MiB"


def duration_text(duration_s: float) -> str:
    """`3 d 4 h`, `1 h 02 min`, `5 min`, `12 s`."""
    minutes = int(duration_s) // 60
    if minutes < 1:
        return f"{int(duration_s)} s"
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"


def silent_lines(document: UsagesDocument) -> list[str]:
    """Lines about agents that did not answer."""
    lines = [f"usage is unknown for the slices on {node}: {why}" for node, why in document.silent.items()]
    more = len(lines) - _SILENT_SHOWN_MAX
    return [*lines[:_SILENT_SHOWN_MAX], *([f"and for those on {more} more nodes"] if more > 0 else [])]


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}%"


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
