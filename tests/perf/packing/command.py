"""Runs the packing benchmark, prints its tables and checks its thresholds."""

import statistics
import sys
from collections.abc import Sequence

from perf.figures import Threshold, conclude, options_of
from perf.packing.mixes import FOUR, MIXES
from perf.packing.paired import OTHERS, OURS, Experiment, Run, acceptance, all_runs, gain_over
from perf.packing.waiting import all_runs as all_waits
from perf.packing.waiting_report import pair
from perf.packing.waiting_report import report as waiting_report
from perf.packing.waiting_report import thresholds as waiting_thresholds

FIRST_FIT, _, HAMI, TEMPLATES, IDEAL = OTHERS


def thresholds(runs: Sequence[Run]) -> list[Threshold]:
    worst = min(MIXES, key=lambda mix: acceptance(OURS, runs, mix))
    largest = statistics.fmean(run.taken[OURS].of("7g.40gb") for run in runs if run.mix == "uniform")
    first_fit, hami, templates, ideal = (gain_over(each, runs) for each in (FIRST_FIT, HAMI, TEMPLATES, IDEAL))
    problems = sum(len(run.problems) for run in runs if run.problems is not None)
    return [
        Threshold("accepted slices, mean of the mixes", acceptance(OURS, runs), "at least", 0.89),
        Threshold(f"accepted slices, worst mix ({worst})", acceptance(OURS, runs, worst), "at least", 0.86),
        Threshold("accepted 7g.40gb, uniform mix", largest, "at least", 0.70),
        _lower(f"gain over {FIRST_FIT}, low end", first_fit.mean - first_fit.half, 1.5),
        _lower(f"gain over {HAMI}, low end", hami.mean - hami.half, 1.5),
        _lower(f"gain over {TEMPLATES}, low end", templates.mean - templates.half, 10.0),
        Threshold(f"below the {IDEAL}, mean", -100 * ideal.mean, "at most", 3.5, "points", 2),
        Threshold("illegal places", problems, "at most", 0, digits=0),
    ]


def _lower(what: str, part: float, bound: float) -> Threshold:
    return Threshold(f"{what} of the 95 % interval", 100 * part, "at least", bound, "points", 2)


def report(experiment: Experiment, runs: Sequence[Run]) -> str:
    names = (OURS, *OTHERS)
    what = f"{experiment.gpus} A100-40GB, load {experiment.load:g}, {experiment.seeds} seeds of {experiment.pods} pods"
    lines = [
        f"{what} per mix, the same pods for every packer. Accepted part of the offered compute slices:",
        "",
        f"| mix | {' | '.join(names)} |",
        "|---|" + "---|" * len(names),
    ]
    for mix in (*MIXES, None, FOUR):
        cells = (f"{acceptance(name, runs, mix):.3f}" for name in names)
        lines.append(f"| {mix or 'mean of six'} | {' | '.join(cells)} |")
    lines += ["", "| difference of pairs | mean, points | 95 % interval |", "|---|---|---|"]
    for other in OTHERS:
        gain = gain_over(other, runs)
        low, high = 100 * (gain.mean - gain.half), 100 * (gain.mean + gain.half)
        lines.append(f"| {OURS} - {other} | {100 * gain.mean:+.2f} | {low:+.2f} to {high:+.2f} |")
    return "\n".join(lines)


def measure_waiting(pods: int, seeds: int, jobs: int, *, write: bool) -> int:
    without, aged = pair(pods)
    runs = all_waits((without, aged), seeds, jobs)
    promised = waiting_thresholds(runs, without, aged)
    return conclude("waiting", waiting_report(runs, without, aged), promised, write=write)


def main(arguments: Sequence[str]) -> int:
    parser = options_of("packing", __doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--pods", type=int, default=25_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--waiting", action="store_true", help="measure a queue instead: how long each request waits")
    options = parser.parse_args(arguments)
    if options.waiting:
        return measure_waiting(min(options.pods, 10_000), options.seeds, options.jobs, write=options.write)
    experiment = Experiment(pods=options.pods, seeds=options.seeds)
    runs = all_runs(experiment, options.jobs)
    code = conclude("packing", report(experiment, runs), thresholds(runs), write=options.write)
    for run in runs:
        for problem in (run.problems or ())[:5]:
            sys.stdout.write(f"{run.mix}, seed {run.seed}: {problem}\n")
    return code
