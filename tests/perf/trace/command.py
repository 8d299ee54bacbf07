"""Runs the experiments on the trace, prints their tables and checks their thresholds."""

import os
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from perf.figures import Threshold, conclude, options_of
from perf.trace.experiments import DEFAULT, Allocated, Rounded, as_auto, as_instance, fractional, on_mig

PUBLISHED = {"default": 95.39, "gpushare100": 86.90}
"""GPU allocation in percent at 130 % demand, mean of 10 seeds, of the best policy published (FGD;
hkust-adsl/kubernetes-scheduler-simulator, experiments/analysis/expected_results/analysis_allo_discrete.csv)."""
OTHER_POLICIES = ("binpack", "first-fit", "spread")
BOUNDS = {"default": 95.4, "gpushare100": 86.9}


def thresholds(shares: Sequence[Allocated], mixes: Sequence[Rounded], pure: Sequence[Rounded]) -> list[Threshold]:
    waste = statistics.fmean(one.waste for one in mixes)
    problems = sum(len(one.problems) for one in (*shares, *mixes, *pure))
    given = {trace: _mean(shares, trace) for trace in BOUNDS}
    return [
        *(Threshold(f"GPUs given away, {of}", part, "at least", BOUNDS[of], "%", 2) for of, part in given.items()),
        Threshold("lost to rounding on sharing pods, `auto`", waste, "at most", 5, "%", 2),
        Threshold("illegal places", problems, "at most", 0, digits=0),
    ]


def report(shares: Sequence[Allocated], mixes: Sequence[Rounded], pure: Sequence[Rounded]) -> str:
    lines = ["| trace | seeds | GPUs given away, % | least | most | published best, % |", "|---|---|---|---|---|---|"]
    for trace, published in PUBLISHED.items():
        percents = _percents(shares, trace)
        figures = (statistics.fmean(percents), min(percents), max(percents), published)
        lines.append(f"| {trace} | {len(percents)} | " + " | ".join(f"{figure:.2f}" for figure in figures) + " |")
    lines += ["", "| policy | default, % | gpushare100, % |", "|---|---|---|"]
    for policy in (DEFAULT, *OTHER_POLICIES):
        cells = (f"{_mean(shares, trace, policy):.2f}" for trace in PUBLISHED)
        lines.append(f"| `{policy}` | {' | '.join(cells)} |")
    head = "| default trace, every GPU with MIG | lost to rounding, % | got an instance, % | GPUs given away, % |"
    lines += ["", head, "|---|---|---|---|"]
    for what, runs in (("`auto`: instance where snug, else share", mixes), ("instances only", pure)):
        columns = zip(*((one.waste, one.instances, one.allocated) for one in runs), strict=True)
        lines.append(f"| {what} | " + " | ".join(f"{statistics.fmean(column):.2f}" for column in columns) + " |")
    return "\n".join(lines)


def _percents(shares: Sequence[Allocated], trace: str, policy: str = DEFAULT) -> list[float]:
    return [one.percent for one in shares if (one.trace, one.policy) == (trace, policy)]


def _mean(shares: Sequence[Allocated], trace: str, policy: str = DEFAULT) -> float:
    return statistics.fmean(_percents(shares, trace, policy))


def main(arguments: Sequence[str]) -> int:
    """Measure, print, check; skipped with a reason where the trace is not there."""
    parser = options_of("trace", __doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--few-seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    folder = Path(os.environ.get("TRACE_DIR", ""))
    if "TRACE_DIR" not in os.environ or not (folder / "openb_node_list_gpu_node.csv").exists():
        sys.stdout.write(
            "skipped: TRACE_DIR names no folder with openb_node_list_gpu_node.csv and openb_pod_list_*.csv"
            " (from alibaba/clusterdata, cluster-trace-gpu-v2023/csv)\n"
        )
        return 0
    with ProcessPoolExecutor(options.jobs) as pool:
        sharing = [pool.submit(fractional, folder, trace, seed) for seed in range(options.seeds) for trace in BOUNDS]
        sharing += [
            pool.submit(fractional, folder, trace, seed, policy)
            for seed in range(options.few_seeds)
            for trace in BOUNDS
            for policy in OTHER_POLICIES
        ]
        mixing = [pool.submit(on_mig, folder, seed, as_auto) for seed in range(options.few_seeds)]
        rounding = [pool.submit(on_mig, folder, seed, as_instance) for seed in range(options.few_seeds)]
        shares = [one.result() for one in sharing]
        mixes, pure = [one.result() for one in mixing], [one.result() for one in rounding]
    code = conclude("trace", report(shares, mixes, pure), thresholds(shares, mixes, pure), write=options.write)
    for problem in [problem for one in (*shares, *mixes, *pure) for problem in one.problems][:10]:
        sys.stdout.write(f"{problem}\n")
    return code
