"""The same pods through every packer, run by run, and what the differences of the pairs say."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from perf.packing.loss import Packer, Taken, run
from perf.packing.mixes import ALL_MIXES, MIXES, arrivals
from perf.packing.others import FirstFit, Hami, Ideal, Templates
from perf.packing.ours import Core

OTHERS: Mapping[str, Callable[[int], Packer]] = {
    "first fit (DRA)": FirstFit,
    "HAMi 2.10": Hami,
    "HAMi 2.10, binpack": lambda gpus: Hami(gpus, spread=False),
    "fixed templates": Templates,
    "ideal, pods may move": Ideal,
}
OURS = "sluice"
WARM_UP_PART = 5
"""One part in so many of the pods is not counted."""
STUDENT_95 = {6: 2.571, 12: 2.201, 18: 2.110, 24: 2.069, 30: 2.045, 36: 2.030, 42: 2.020, 48: 2.012}
"""Student's t for a two-sided interval of 95 %, by number of pairs."""


@dataclass(frozen=True)
class Experiment:
    """How large a run is."""

    gpus: int = 100
    pods: int = 25_000
    seeds: int = 8
    load: float = 1.0


@dataclass(frozen=True)
class Run:
    """One mix and seed: what each packer took, and what the judge said of ours (None: it did not look)."""

    mix: str
    seed: int
    taken: Mapping[str, Taken]
    problems: tuple[str, ...] | None


@dataclass(frozen=True)
class Interval:
    """A mean difference and the half width of its 95 % interval."""

    mean: float
    half: float


def one_run(experiment: Experiment, mix: str, seed: int) -> Run:
    """All packers, one after another, on the same pods. The judge looks at the first seed of each mix."""
    pods = list(arrivals(mix, seed, count=experiment.pods, gpus=experiment.gpus, load=experiment.load))
    warm_up = experiment.pods // WARM_UP_PART
    core = Core(experiment.gpus, judged=seed == 0)
    taken = {OURS: run(pods, core, warm_up)}
    for name, packer in OTHERS.items():
        taken[name] = run(pods, packer(experiment.gpus), warm_up)
    return Run(mix, seed, taken, tuple(core.problems) if seed == 0 else None)


def all_runs(experiment: Experiment, jobs: int) -> list[Run]:
    """Every mix and seed, on `jobs` processes."""
    with ProcessPoolExecutor(jobs) as pool:
        runs = [pool.submit(one_run, experiment, mix, seed) for seed in range(experiment.seeds) for mix in ALL_MIXES]
        return [run.result() for run in runs]


def gain_over(other: str, runs: Sequence[Run]) -> Interval:
    """How much more of the offered slices we take than `other`, over all pairs of the six mixes."""
    gains = [run.taken[OURS].by_slices() - run.taken[other].by_slices() for run in runs if run.mix in MIXES]
    if len(gains) < 2:
        return Interval(gains[0], float("inf"))
    student = STUDENT_95.get(len(gains), 1.96 if len(gains) > 48 else 2.571)
    return Interval(statistics.fmean(gains), student * statistics.stdev(gains) / len(gains) ** 0.5)


def acceptance(name: str, runs: Sequence[Run], mix: str | None = None) -> float:
    """The mean of the slice-weighted acceptance over the seeds, of one mix or of the six."""
    mixes = MIXES if mix is None else {mix}
    return statistics.fmean(run.taken[name].by_slices() for run in runs if run.mix in mixes)
