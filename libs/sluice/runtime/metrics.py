"""
Counts what happens in this process, for whoever watches a fleet (docs/metrics.md).

Like logging it belongs to the process, not to a part of it: anything in a shell may count, nobody reads a count to
decide something, and one page shows all of them (`sluice.runtime.metrics_page`). Counting is a dictionary's addition,
made on the event loop: from another thread it must not be called. Cores count nothing; what passes through them is
counted by those who drive them, and what they know is read when somebody asks (`asked_for`).

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


class Spread:
    """Values of one histogram's series."""

    __slots__ = ("counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """Nothing yet."""
        self.counts = [0] * (len(bounds) + 1)
        """By bound, the last one without; not summed up."""
        self.total = 0.0


Reader = Callable[[], Iterable[Sample]]
"""Says what is now. Called on the event loop, between two decisions."""


class Counts:
    """All counts of a process. The functions of this module are those of the one that is shown."""

    def __init__(self) -> None:
        """Nothing was counted."""
        self._counted: dict[Metric, dict[tuple[str, ...], float]] = {}
        self._spread: dict[Metric, dict[tuple[str, ...], Spread]] = {}
        self._readers: list[Reader] = []

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
        series = self._spread.get(metric)
        if series is None:
            series = self._spread[metric] = {}
        spread = series.get(labels)
        if spread is None:
            labels = _checked(metric, labels, len(series))
            spread = series.setdefault(labels, Spread(metric.bounds))
        spread.counts[bisect_left(metric.bounds, value_s)] += 1
        spread.total += value_s

    @contextmanager
    def asked_for(self, reader: Reader) -> Iterator[None]:
        """For the time of a `with`, ask `reader` whenever somebody looks."""
        self._readers.append(reader)
        try:
            yield
        finally:
            self._readers.remove(reader)

    def value(self, metric: Metric, *labels: str) -> float:
        """A counter's value; of a histogram, how many values it has had."""
        if metric.kind == "histogram":
            spread = self._spread.get(metric, {}).get(labels)
            return sum(spread.counts) if spread is not None else 0
        return self._counted.get(metric, {}).get(labels, 0)

    def samples(self) -> Mapping[Metric, Mapping[tuple[str, ...], float]]:
        """Counters, and what the readers say. Of two samples with equal labels the values are added."""
        found = {metric: dict(series) for metric, series in self._counted.items()}
        for reader in tuple(self._readers):
            for sample in reader():
                series = found.setdefault(sample.metric, {})
                labels = sample.labels
                if labels not in series:
                    labels = _checked(sample.metric, labels, len(series))
                series[labels] = series.get(labels, 0) + sample.value
        return found

    def spreads(self) -> Mapping[Metric, Mapping[tuple[str, ...], Spread]]:
        """Histograms."""
        return self._spread


def _checked(metric: Metric, labels: tuple[str, ...], known: int) -> tuple[str, ...]:
    """New labels of a metric; where it has too many, those that are no longer told apart. Raises ValueError."""
    if len(labels) != len(metric.labels):
        raise ValueError(f"{metric.name} has the labels {metric.labels}, not {labels}")
    return labels if known < SERIES_MAX else (OTHER,) * len(labels)


PROCESS = Counts()
"""What this process shows."""
count, observe, asked_for, value = PROCESS.count, PROCESS.observe, PROCESS.asked_for, PROCESS.value
