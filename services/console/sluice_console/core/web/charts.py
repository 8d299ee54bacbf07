"""Use over time for the page's charts: the recorder's answers, in few enough steps to draw."""

from collections.abc import Iterable, Sequence

from sluice.contracts.pb import inventory_pb2 as pb
from sluice_console.core.documents import VERSION, Document

STEPS_MAX = 240
"""Of one chart: a step is then some pixels wide."""
TEAMS_MAX = 8
"""Teams with a line of their own, as there are colours; the rest is summed up."""
SPAN_MAX_S = 90 * 86400
"""What is kept (docs/report.md)."""
OTHERS = ""


class TeamSeriesDocument(Document, frozen=True, kw_only=True):
    """One team: means over each step, and sums over the span. An empty name: all teams without a row of their own."""

    team: str
    allocated: tuple[float, ...]
    """GPUs, as are `used`."""
    used: tuple[float, ...]
    waiting: tuple[float, ...]
    """Pods."""
    gpu_hours: float
    used_gpu_hours: float
    idle_gpu_hours: float
    waiting_pod_hours: float
    bound: int
    wait_p50_s: float | None
    wait_p95_s: float | None


class ChartDocument(Document, frozen=True, kw_only=True):
    """`/api/report` of the web page's server. Times are unix seconds."""

    version: int = VERSION
    start: int
    step_s: int
    end: int
    """What is recorded of the span that was asked for."""
    capacity: tuple[float, ...]
    """GPUs that there were, by step."""
    teams: tuple[TeamSeriesDocument, ...]
    """By GPU hours, the most first."""


def chart_document(by_team: pb.ReportResponse, fleet: pb.ReportResponse) -> ChartDocument:
    """The document of two answers with points, by namespace and of everything, of the same span."""
    count = -(-(by_team.until_unix - by_team.from_unix) // max(1, by_team.step_s))
    joined = max(1, -(-count // STEPS_MAX))
    step_s = max(1, by_team.step_s) * joined
    steps = -(-(by_team.until_unix - by_team.from_unix) // step_s)
    grid = _Grid(by_team.from_unix, step_s, steps, by_team.until_unix)
    rows = list(by_team.rows)
    named, rest = (rows, []) if len(rows) <= TEAMS_MAX else (rows[: TEAMS_MAX - 1], rows[TEAMS_MAX - 1 :])
    teams = [_series(row.key, [row], grid, by_team.step_s) for row in named]
    teams += [_series(OTHERS, rest, grid, by_team.step_s)] if rest else []
    capacity = [(fleet.step_s, point.start_unix, point.capacity_gpus) for row in fleet.rows for point in row.points]
    return ChartDocument(
        start=by_team.from_unix,
        step_s=step_s,
        end=by_team.until_unix,
        capacity=grid.means(capacity),
        teams=tuple(teams),
    )


class _Grid:
    """The steps of the charts."""

    def __init__(self, start: int, step_s: int, steps: int, end: int) -> None:
        self._start, self._step_s, self._steps, self._end = start, step_s, steps, end

    def means(self, points: Iterable[tuple[int, int, float]]) -> tuple[float, ...]:
        """The mean of each step. `points`: length in seconds, start, mean; missing ones are 0."""
        sums = [0.0] * self._steps
        for length_s, start, value in points:
            at = (start - self._start) // self._step_s
            if value and 0 <= at < self._steps:
                sums[at] += value * length_s
        # The span may end inside the last step.
        lengths = (min(self._step_s, self._end - self._start - at * self._step_s) for at in range(self._steps))
        return tuple(round(total / length_s, 3) for total, length_s in zip(sums, lengths, strict=True))


def _series(team: str, rows: Sequence[pb.ReportRow], grid: _Grid, point_s: int) -> TeamSeriesDocument:
    points = [point for row in rows for point in row.points]
    waits = rows[0] if len(rows) == 1 and rows[0].bound else None
    return TeamSeriesDocument(
        team=team,
        allocated=grid.means((point_s, point.start_unix, point.allocated_gpus) for point in points),
        used=grid.means((point_s, point.start_unix, point.used_gpus) for point in points),
        waiting=grid.means((point_s, point.start_unix, point.waiting_pods) for point in points),
        gpu_hours=round(sum(row.gpu_hours for row in rows), 2),
        used_gpu_hours=round(sum(row.used_gpu_hours for row in rows), 2),
        idle_gpu_hours=round(sum(row.idle_gpu_hours for row in rows), 2),
        waiting_pod_hours=round(sum(row.waiting_pod_hours for row in rows), 2),
        bound=sum(row.bound for row in rows),
        wait_p50_s=round(waits.wait_p50_s, 1) if waits is not None else None,
        wait_p95_s=round(waits.wait_p95_s, 1) if waits is not None else None,
    )
