"""What aging by promises does: how long the largest wait with it and without it, and what it costs the others."""

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence

from perf.figures import Threshold
from perf.packing.mixes import MIXES
from perf.packing.waiting import LARGEST, USUAL, Experiment, Waits

Runs = Mapping[tuple[Experiment, str], Sequence[Waits]]


def pair(pods: int, load: float = 0.92) -> tuple[Experiment, Experiment]:
    """The same pods without promises, and with as many as by default."""
    return Experiment(0, pods=pods, load=load), Experiment(USUAL.promises_percent, pods=pods, load=load)


def thresholds(runs: Runs, without: Experiment, aged: Experiment) -> list[Threshold]:
    means = [_over(runs, each, lambda waits: waits.mean(LARGEST)) for each in (without, aged)]
    if not means[0]:
        sys.exit(f"--pods {without.pods}: no {LARGEST} waits in so short a run; 2000 is about the least that shows one")
    others = [_over(runs, each, Waits.mean_of_others) for each in (without, aged)]
    used = [_over(runs, each, lambda waits: waits.used) for each in (without, aged)]
    part, more, less = means[1] / means[0], others[1] - others[0], used[0] - used[1]
    return [
        Threshold("mean wait of 7g with promises, part of that without", part, "at most", 0.9),
        Threshold("mean wait of all others, more than without", more, "at most", 0.02, "lifetimes"),
        Threshold("slices in use, less than without", less, "at most", 0.005),
    ]


def report(runs: Runs, without: Experiment, aged: Experiment) -> str:
    seeds = len(next(iter(runs.values())))
    what = (
        f"{aged.gpus} A100-40GB, load {aged.load:g}, {seeds} seeds of {aged.pods} pods per mix, promised after "
        f"{aged.after_s:g} s of a mean lifetime of 3600 s, at most {aged.percent} % of the GPUs. Times are in mean "
        "lifetimes; in each cell the first figure is without promises, the second with."
    )
    columns = "longest wait, 7g | mean wait, 7g | mean wait, all others | longest wait, all others | slices in use"
    lines = [what, "", f"| mix | {columns} |", "|---|---|---|---|---|---|"]
    for mix in (*MIXES, None):
        cells = []
        for figure, digits in (
            (lambda waits: waits.longest(LARGEST), 2),
            (lambda waits: waits.mean(LARGEST), 3),
            (Waits.mean_of_others, 3),
            (Waits.longest_of_others, 2),
            (lambda waits: waits.used, 4),
        ):
            worst = max if digits == 2 else statistics.fmean
            both = (_over(runs, each, figure, mix, worst) for each in (without, aged))
            cells.append(" / ".join(f"{value:.{digits}f}" for value in both))
        lines.append(f"| {mix or 'all'} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _over(
    runs: Runs,
    experiment: Experiment,
    figure: Callable[[Waits], float],
    mix: str | None = None,
    how: Callable[[Sequence[float]], float] = statistics.fmean,
) -> float:
    """A figure over all runs of an experiment, of one mix or of all."""
    found = [waits for (each, of), waits in runs.items() if each == experiment and mix in {None, of}]
    return how([figure(each) for waits in found for each in waits])
