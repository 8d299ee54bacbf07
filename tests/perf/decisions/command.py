"""Runs the benchmark of decisions, each scene in a process of its own, and checks its thresholds."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec, TypeVar

from perf.decisions import scenes
from perf.decisions.preemption import SCENES as PREEMPTING
from perf.decisions.preemption import Preempting, preempting
from perf.figures import Threshold, conclude, options_of

SIZES = (100, 1_000, 10_000, 100_000)
WAITING = 100_000
SCENES: dict[str, Callable[[int], scenes.Running]] = {
    "MIG instances": scenes.exclusive,
    "fractional shares": scenes.fractional,
    "MPS shares": scenes.mps,
    "two on one node": scenes.two_on_one_node,
    "limited namespace": scenes.limited,
    "replicas apart and spread": scenes.apart_and_spread,
}
BESIDE_ONE_INSTANCE = ("two on one node", "limited namespace", "replicas apart and spread")
"""What may cost more than one instance alone, and how much more is the promise."""
PLAIN = {"one instance": "MIG instances", "two GPUs of one node": "two on one node", "one share": "MPS shares"}
"""Beside which plain decision one is measured that evicts a pod."""
Measured = TypeVar("Measured")
Given = ParamSpec("Given")


def alone(measure: Callable[Given, Measured], *given: Given.args, **more: Given.kwargs) -> Measured:
    """Measure in a fresh process: no scene shall inherit another's heap."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, *given, **more).result()


def thresholds(
    costs: dict[str, list[scenes.Costs]],
    waking: Sequence[scenes.Waking],
    held: scenes.Memory,
    evicting: Sequence[Preempting],
) -> list[Threshold]:
    found: list[Threshold] = []

    def at_most(bound: float, unit: str, digits: int, what: str, measured: float) -> None:
        found.append(Threshold(what, measured, "at most", bound, unit, digits))

    for one in evicting:
        for plain in (each for each in costs.get(PLAIN[one.what], ()) if each.gpus == one.gpus):
            what = f"preemption, {one.what}: times a plain decision, {one.gpus:,} GPUs"
            at_most(5, "x", 2, what, one.decide / plain.both)
    for scene, at_sizes in costs.items():
        small, large = at_sizes[0], at_sizes[-1]
        if scene in BESIDE_ONE_INSTANCE:
            ratio = large.both / costs["MIG instances"][-1].both
            at_most(5, "x", 2, f"{scene}: times one instance, {large.gpus:,} GPUs", ratio)
            continue
        what = f"{scene}: allocate and release, {large.gpus:,} against {small.gpus:,} GPUs"
        at_most(10, "us", 1, what, large.both - small.both)
        found.append(Threshold(f"{scene}: decisions a second", large.decisions_a_second, "at least", 20_000, "", 0))
        at_most(1000, "us", 0, f"{scene}: p99 of an allocation", large.p99)
    for each in waking:
        what = f"worst step, place freed, {each.waiting:,} waiting, {each.kind}"
        at_most(5, "ms", 2, what, each.worst_freed)
    at_most(2048, "bytes", 0, f"memory per GPU, {held.gpus:,} GPUs", held.per_gpu)
    return found


def report(
    costs: dict[str, list[scenes.Costs]], waking: Sequence[scenes.Waking], evicting: Sequence[Preempting]
) -> str:
    lines = [
        "| scene | GPUs | allocate, us | release, us | decisions a second | p50, us | p99, us | whole life, us |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for scene, at_sizes in costs.items():
        for one in at_sizes:
            figures = (one.allocate, one.release, one.decisions_a_second, one.p50, one.p99, one.life)
            lines.append(f"| {scene} | {one.gpus:,} | " + " | ".join(f"{figure:,.0f}" for figure in figures) + " |")
    lines += ["", "| waiting | kind | worst step as they came, ms | worst step as places were freed, ms | served |"]
    lines += ["|---|---|---|---|---|"]
    for woken in waking:
        times = f"{woken.worst_arrival:.2f} | {woken.worst_freed:.2f}"
        lines.append(f"| {woken.waiting:,} | {woken.kind} | {times} | {woken.served} |")
    lines += ["", "| preemption | GPUs | decide, us | p50, us | p99, us | pods that go for one |"]
    lines += ["|---|---|---|---|---|---|"]
    for one in evicting:
        times = f"{one.decide:,.0f} | {one.p50:,.0f} | {one.p99:,.0f}"
        lines.append(f"| {one.what} | {one.gpus:,} | {times} | {one.victims:.1f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = options_of("decisions", __doc__)
    parser.add_argument("--most", type=int, default=SIZES[-1], help="leave out larger fleets")
    parser.add_argument("--waiting", type=int, default=WAITING, help="pods that wait")
    parser.add_argument("--scenes", nargs="*", default=list(SCENES), choices=list(SCENES))
    options = parser.parse_args(arguments)
    if options.most < SIZES[0]:
        parser.error(f"--most {options.most}: the smallest fleet has {SIZES[0]} GPUs")
    if options.waiting < 1:
        parser.error(f"--waiting {options.waiting}: at least one pod has to wait")
    sizes = [size for size in SIZES if size <= options.most]
    beside = ["MIG instances"] if set(options.scenes) & set(BESIDE_ONE_INSTANCE) else []
    costs = {name: alone(scenes.compared, SCENES[name], sizes) for name in dict.fromkeys([*beside, *options.scenes])}
    waking = [alone(scenes.freed, kind, options.waiting) for kind in scenes.WAITS]
    held = alone(scenes.memory, sizes[-1])
    evicting = [one for what in PREEMPTING for one in alone(preempting, what, [sizes[0], sizes[-1]])]
    promised = thresholds(costs, waking, held, evicting)
    return conclude("decisions", report(costs, waking, evicting), promised, write=options.write)
