"""Each node's allocated share over the last minutes, as a line of bars: as a screen saw it, or a recorder before."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sluice_console.core.documents import GpusDocument
from sluice_console.core.fleet.report import ReportDocument

STEP_S = 15
STEPS = 20
SPAN_S = STEP_S * STEPS
HEADING = f"LAST {SPAN_S // 60} MIN"
_BARS, _DIGITS = "▁▂▃▄▅▆▇█", "0123456789"


def shares_of(gpus: GpusDocument) -> dict[str, float]:
    """The part of each node's memory slices that is allocated, 0 to 1."""
    taken: dict[str, float] = {}
    there: dict[str, int] = {}
    for gpu in gpus.gpus:
        taken[gpu.node] = taken.get(gpu.node, 0.0) + gpu.allocated_fraction * gpu.memory_slices
        there[gpu.node] = there.get(gpu.node, 0) + gpu.memory_slices
    return {node: taken[node] / slices for node, slices in there.items() if slices}


def recorded_shares(report: ReportDocument) -> Iterable[tuple[str, int, float]]:
    """Node, unix time and share of each step of a report by node."""
    for row in report.rows:
        for point in row.points:
            start = int(datetime.fromisoformat(point.start).timestamp())
            for at in range(start, start + report.step_s, STEP_S) if point.capacity_gpus else ():
                yield row.key, at, point.allocated_gpus / point.capacity_gpus


@dataclass(slots=True)
class NodeShares:
    """The last `STEPS` steps; the latest value of a step counts."""

    _steps: dict[int, dict[str, float]] = field(default_factory=dict)

    def see(self, unix_s: float, shares: Mapping[str, float]) -> None:
        """The present shares."""
        step = int(unix_s // STEP_S)
        self._steps.setdefault(step, {}).update(shares)
        for old in [each for each in self._steps if each <= step - STEPS]:
            del self._steps[old]

    def add(self, recorded: Iterable[tuple[str, int, float]], unix_s: float) -> None:
        """What a recorder knows of the steps that were not seen."""
        now = int(unix_s // STEP_S)
        for node, at, share in recorded:
            if now - STEPS < at // STEP_S <= now:
                self._steps.setdefault(at // STEP_S, {}).setdefault(node, share)

    def line(self, node: str, unix_s: float, *, unicode: bool = True) -> str:
        """A character a step, the present one last; a space where nothing is known."""
        marks, now = _BARS if unicode else _DIGITS, int(unix_s // STEP_S)
        shares = (self._steps.get(step, {}).get(node) for step in range(now - STEPS + 1, now + 1))
        return "".join(" " if each is None else marks[round(min(1.0, each) * (len(marks) - 1))] for each in shares)
