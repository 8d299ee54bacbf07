"""Metrics of this process, for operators of a fleet (docs/metrics.md).

Counting is a dictionary's addition on the event loop; never call it from another thread. Cores do not count: their
runners do, and the cores' state is read at each scrape (`collecting_from`).

A label has few values that are known beforehand, never an id or a text from outside: each is kept for good."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Bounds of durations: from one decision to destroying an instance whose tenant is slow to end."""
SERIES_MAX = 1000
"""Distinct label values of one metric. More would be a bug: they are counted as `OTHER`."""
OTHER = "other"


@dataclass(frozen=True, slots=True, eq=False)  # hashed by identity, which is fast
class Metric:
    """A metric by Prometheus' rules: a `counter` (`_total`), a `gauge`, or a `histogram` of seconds by `bounds`."""

    name: str
    kind: Kind
    help: str
    """One sentence for people; also in a table of the documentation."""
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = SECONDS


@dataclass(frozen=True, slots=True)
class Sample:
    """The current value of a gauge (or of a counter that a core keeps itself), by the values of its labels."""

    metric: Metric
    value: float
    labels: tuple[str, ...] = ()


class Histogram:
    """Values of one histogram's series."""

    __slots__ = ("counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.counts = [0] * (len(bounds) + 1)
        """By bound, the last one without; not cumulative."""
        self.total = 0.0


Collector = Callable[[], Iterable[Sample]]
"""Returns current values. Called on the event loop, between two decisions."""


class MetricRegistry:
    """All counts of a process. The functions of this module are those of the one that is served."""

    def __init__(self) -> None:
        self._counted: dict[Metric, dict[tuple[str, ...], float]] = {}
        self._histograms: dict[Metric, dict[tuple[str, ...], Histogram]] = {}
        self._collectors: list[Collector] = []

    def count(self, metric: Metric, *labels: str, by: float = 1) -> None:
        series = self._counted.get(metric)
        if series is None:
            series = self._counted[metric] = {}
        try:
            series[labels] += by
        except KeyError:
            labels = _checked(metric, labels, len(series))
            series[labels] = series.get(labels, 0) + by

    def observe(self, metric: Metric, value_s: float, *labels: str) -> None:
        series = self._histograms.get(metric)
        if series is None:
            series = self._histograms[metric] = {}
        histogram = series.get(labels)
        if histogram is None:
            labels = _checked(metric, labels, len(series))
            histogram = series.setdefault(labels, Histogram(metric.bounds))
        histogram.counts[bisect_left(metric.bounds, value_s)] += 1
        histogram.total += value_s

    @contextmanager
    def collecting_from(self, collector: Collector) -> Iterator[None]:
        self._collectors.append(collector)
        try:
            yield
        finally:
            self._collectors.remove(collector)

    def value(self, metric: Metric, *labels: str) -> float:
        if metric.kind == "histogram":
            histogram = self._histograms.get(metric, {}).get(labels)
            return sum(histogram.counts) if histogram is not None else 0
        return self._counted.get(metric, {}).get(labels, 0)

    def samples(self) -> Mapping[Metric, Mapping[tuple[str, ...], float]]:
        """Counters, and the collectors' samples. Values of samples with equal labels are added."""
        found = {metric: dict(series) for metric, series in self._counted.items()}
        for collector in tuple(self._collectors):
            for sample in collector():
                series = found.setdefault(sample.metric, {})
                labels = sample.labels
                if labels not in series:
                    labels = _checked(sample.metric, labels, len(series))
                series[labels] = series.get(labels, 0) + sample.value
        return found

    def histograms(self) -> Mapping[Metric, Mapping[tuple[str, ...], Histogram]]:
        return self._histograms


def _checked(metric: Metric, labels: tuple[str, ...], known: int) -> tuple[str, ...]:
    """Check new labels of a metric; beyond its limit, the labels of `OTHER`. Raises ValueError."""
    if len(labels) != len(metric.labels):
        raise ValueError(f"{metric.name} has the labels {metric.labels}, not {labels}")
    return labels if known < SERIES_MAX else (OTHER,) * len(labels)


PROCESS = MetricRegistry()
count, observe, collecting_from, value = PROCESS.count, PROCESS.observe, PROCESS.collecting_from, PROCESS.value
