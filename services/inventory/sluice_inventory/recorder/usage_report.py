"""Answers what the recorder's file says of a span of time. Reads only, with a connection of its own per answer."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

from sluice_inventory.recorder import amounts, usage_recorder
from sluice_inventory.recorder.usage_store import QUARTER_S, connect, wait_of

Key = Literal["", "namespace", "model", "node"]
POINTS_MAX = 1000  # of one row: more steps are joined
ROWS_WITH_POINTS_MAX = 50
HOUR_S = 3600


class Span(NamedTuple):
    """Unix seconds: quarters of an hour from `start` to `cut`, minutes from there to `end`."""

    start: int
    cut: int
    end: int

    @property
    def point_s(self) -> int:
        """The length of one point: steps are joined so that there are at most POINTS_MAX."""
        step = usage_recorder.MINUTE_S if self.cut == self.start else QUARTER_S
        return step * -(-(self.end - self.start) // (step * POINTS_MAX))


@dataclass(slots=True)
class Row:
    """Sums of one key: millionths of GPUs, MiB and pods, each times seconds; pods by class of their wait."""

    key: str
    micro_gpu_s: dict[str, int] = field(default_factory=dict)  # by kind of series: allocated, used, idle, capacity
    by_model: dict[str, int] = field(default_factory=dict)  # of what was granted: millionths of GPUs times seconds
    memory_mib_s: int = 0
    pods_s: int = 0
    waiting_pods_s: int = 0
    waits: dict[int, int] = field(default_factory=dict)
    points: dict[int, dict[str, int]] = field(default_factory=dict)
    """By start of the step, by kind: millionths of GPUs (waiting: pods) times seconds."""

    @property
    def gpu_hours(self) -> float:
        return self.hours("allocated")

    def hours(self, kind: str) -> float:
        return self.micro_gpu_s.get(kind, 0) / amounts.MICRO / HOUR_S

    @property
    def bound(self) -> int:
        return sum(self.waits.values())

    def wait_s(self, percent: float) -> float:
        """A percentile of the waits, in seconds; 0 without any."""
        before, wanted = 0, self.bound * percent / 100
        for bucket in sorted(self.waits):
            before += self.waits[bucket]
            if before >= wanted:
                return wait_of(bucket)
        return 0.0


class NothingRecordedError(Exception):
    """The file has nothing of the span. One sentence that says what it has."""


def report(path: Path, start: int, end: int, by: Key, *, points: bool = False) -> tuple[Span, list[Row]]:
    """The rows of a span, by GPU hours. Raises NothingRecordedError, sqlite3.Error."""
    with closing(connect(path)) as db:
        span = _span(db, start, end)
        rows = _sum_up(db, span, by)
        _add_waits(db, span, by, rows)
        found = sorted(rows.values(), key=lambda row: (-row.gpu_hours, -row.waiting_pods_s, row.key))
        if points:
            shown = {row.key: row for row in found[:ROWS_WITH_POINTS_MAX]}
            _add_points(db, span, by, shown)
        return span, found


def _span(db: sqlite3.Connection, start: int, end: int) -> Span:
    """What is recorded of the span: by minutes where they reach back far enough, else by quarters before them."""
    (first_quarter,) = db.execute("SELECT MIN(start) FROM usage WHERE step = 900").fetchone()
    (first_minute,) = db.execute("SELECT MIN(start) FROM usage WHERE step = 60").fetchone()
    position = db.execute("SELECT minute FROM position").fetchone()
    if first_minute is None or position is None:
        raise NothingRecordedError("nothing is recorded yet: a minute is recorded when it is over")
    oldest = min(first_minute, first_quarter if first_quarter is not None else first_minute)
    if max(start, first_minute) <= max(start, oldest):
        begin = max(start // usage_recorder.MINUTE_S * usage_recorder.MINUTE_S, first_minute)
        span = Span(begin, begin, min(end, position[0]))
    else:
        begin = max(start // QUARTER_S * QUARTER_S, first_quarter)
        cut = max(begin, min(end, position[0]) // QUARTER_S * QUARTER_S)
        span = Span(begin, cut, min(end, position[0]))
    if span.start >= span.end:
        raise NothingRecordedError(f"recorded is from {_text(oldest)} to {_text(position[0])}")
    return span


def _text(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="minutes")


_KEYS: dict[Key, tuple[str, str]] = {
    "": ("''", "(node <> '' OR kind = 'waiting')"),
    "namespace": ("namespace", "namespace <> ''"),
    "model": ("what", "node <> ''"),
    "node": ("node", "node <> ''"),
}
"""The key of a series, and which series count: amounts are recorded by namespace and again by node."""
_OF_SPAN = "((step = 900 AND start >= :start AND start < :cut) OR (step = 60 AND start >= :cut AND start < :end))"


def _sum_up(db: sqlite3.Connection, span: Span, by: Key) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    key_of, counted = _KEYS[by]
    found = db.execute(
        f"SELECT kind, {key_of}, what, SUM(pods_s), SUM(micro_gpu_s), SUM(mib_s) FROM usage "  # noqa: S608
        f"JOIN series ON series = id WHERE {counted} AND {_OF_SPAN} GROUP BY 1, 2, 3",
        span._asdict(),
    )
    for kind, key, model, pods_s, micro_gpu_s, mib_s in found:
        row = rows.setdefault(key, Row(key))
        if kind == "waiting":
            row.waiting_pods_s += pods_s
            continue
        row.micro_gpu_s[kind] = row.micro_gpu_s.get(kind, 0) + micro_gpu_s
        if kind == "allocated":
            row.by_model[model] = row.by_model.get(model, 0) + micro_gpu_s
            row.pods_s += pods_s
            row.memory_mib_s += mib_s
    return rows


def _add_waits(db: sqlite3.Connection, span: Span, by: Key, rows: dict[str, Row]) -> None:
    if by not in {"", "namespace"}:
        return
    found = db.execute(
        f"SELECT namespace, bucket, SUM(pods) FROM waits WHERE {_OF_SPAN} GROUP BY namespace, bucket",  # noqa: S608
        span._asdict(),
    )
    for namespace, bucket, pods in found:
        key = namespace if by else ""
        waits = rows.setdefault(key, Row(key)).waits
        waits[bucket] = waits.get(bucket, 0) + pods


def _add_points(db: sqlite3.Connection, span: Span, by: Key, rows: dict[str, Row]) -> None:
    key_of, counted = _KEYS[by]
    found = db.execute(
        f"SELECT start / :point * :point, kind, {key_of}, SUM(pods_s), SUM(micro_gpu_s) FROM usage "  # noqa: S608
        f"JOIN series ON series = id WHERE {counted} AND {_OF_SPAN} GROUP BY 1, 2, 3",
        span._asdict() | {"point": span.point_s},
    )
    for start, kind, key, pods_s, micro_gpu_s in found:
        if key in rows:
            rows[key].points.setdefault(start, {})[kind] = pods_s if kind == "waiting" else micro_gpu_s
