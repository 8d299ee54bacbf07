"""
Counts what happens in this process, for whoever watches a fleet (docs/metrics.md).

Like logging it belongs to the process, not to a part of it: anything in a shell may count, nobody reads a count to
decide something, and one page shows all of them (`sluice.runtime.prometheus.http_page`). Counting is a dictionary's
addition, made on the event loop: from another thread it must not be called. Cores count nothing; what passes through
them is counted by those who drive them, and what they know is read when somebody asks (`collecting_from`).

A label has few values that are known beforehand: a stream, a verb, a kind of error. Never an id, a pod, a request or a
text from outside, for each new value is kept as long as the process lives.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Bounds of durations: from one decision to unmaking an instance whose tenant takes his time."""
SERIES_MAX = 1000
"""Label values of one metric that are kept apart. More would be a mistake in the code: they are counted as `OTHER`."""
OTHER = "other"


@dataclass(frozen=True, slots=True, eq=False)  # each is one of its kind, and is quickly found by that
class Metric:
    """
    Something that is counted, named as Prometheus wants it (https://prometheus.io/docs/practices/naming/).

    A `counter` only grows and ends in `_total`, a `gauge` is what is now, a `histogram` sorts seconds by `bounds`.
    """

    name: str
    kind: Kind
    help: str
    """One sentence for people; a table of the documentation is made of them."""
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = SECONDS


@dataclass(frozen=True, slots=True)
class Sample:
    """What a gauge (or a counter that a core keeps itself) is at the moment, by the values of its labels."""

    metric: Metric
    value: float
    labels: tuple[str, ...] = ()


class Histogram:
    """Values of one histogram's series."""

    __slots__ = ("counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """Nothing yet."""
        self.counts = [0] * (len(bounds) + 1)
        """By bound, the last one without; not summed up."""
        self.total = 0.0


Collector = Callable[[], Iterable[Sample]]
"""Says what is now. Called on the event loop, between two decisions."""


class MetricRegistry:
    """All counts of a process. The functions of this module are those of the one that is shown."""

    def __init__(self) -> None:
        """Nothing was counted."""
        self._counted: dict[Metric, dict[tuple[str, ...], float]] = {}
        self._histograms: dict[Metric, dict[tuple[str, ...], Histogram]] = {}
        self._collectors: list[Collector] = []

    def count(self, metric: Metric, *labels: str, by: float = 1) -> None:
        """Add to a counter."""
        series = self._counted.get(metric)
        if series is None:
            series = self._counted[metric] = {}
        try:
            series[labels] += by
        except KeyError:
            labels = _checked(metric, labels, len(series))
            series[labels] = series.get(labels, 0) + by

    def observe(self, metric: Metric, value_s: float, *labels: str) -> None:
        """Add a value to a histogram."""
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
        """For the time of a `with`, ask `collector` whenever somebody looks."""
        self._collectors.append(collector)
        try:
            yield
        finally:
            self._collectors.remove(collector)

    def value(self, metric: Metric, *labels: str) -> float:
        """A counter's value; of a histogram, how many values it has had."""
        if metric.kind == "histogram":
            histogram = self._histograms.get(metric, {}).get(labels)
            return sum(histogram.counts) if histogram is not None else 0
        return self._counted.get(metric, {}).get(labels, 0)

    def samples(self) -> Mapping[Metric, Mapping[tuple[str, ...], float]]:
        """Counters, and what the readers say. Of two samples with equal labels the values are added."""
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
        """Histograms."""
        return self._histograms


def _checked(metric: Metric, labels: tuple[str, ...], known: int) -> tuple[str, ...]:
    """New labels of a metric; where it has too many, those that are no longer told apart. Raises ValueError."""
    if len(labels) != len(metric.labels):
        raise ValueError(f"{metric.name} has the labels {metric.labels}, not {labels}")
    return labels if known < SERIES_MAX else (OTHER,) * len(labels)


PROCESS = MetricRegistry()
"""What this process shows."""
count, observe, collecting_from, value = PROCESS.count, PROCESS.observe, PROCESS.collecting_from, PROCESS.value
