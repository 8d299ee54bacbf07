"""Runs the benchmark of decisions, each scene in a process of its own, and checks its thresholds."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec, TypeVar

from perf.decisions.preemption import SCENES as PREEMPTING
from perf.decisions.preemption import Preempting, preempting
from perf.decisions.scenes import (
    Costs,
    Memory,
    Running,
    Waking,
    apart_and_spread,
    compared,
    exclusive,
    fractional,
    freed_for_all_different,
    freed_for_equals,
    given_back_to_a_quota,
    limited,
    memory,
    mps,
    two_on_one_node,
)
from perf.figures import conclude, options_of
from perf.thresholds import Threshold, exit_code, table

SIZES = (100, 1_000, 10_000, 100_000)
WAITING = 100_000
SCENES: dict[str, Callable[[int], Running]] = {
    "MIG instances": exclusive,
    "fractional shares": fractional,
    "MPS shares": mps,
    "two on one node": two_on_one_node,
    "limited namespace": limited,
    "replicas apart and spread": apart_and_spread,
}
BESIDE_ONE_INSTANCE = ("two on one node", "limited namespace", "replicas apart and spread")
"""What may cost more than one instance alone, and how much more is the promise."""
Measured = TypeVar("Measured")
Given = ParamSpec("Given")


def alone(measure: Callable[Given, Measured], *given: Given.args, **more: Given.kwargs) -> Measured:
    """Measure in a fresh process: no scene shall inherit another's heap."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, *given, **more).result()


PLAIN = {"one instance": "MIG instances", "two GPUs of one node": "two on one node", "one share": "MPS shares"}
"""Beside which plain decision one is measured that evicts somebody."""


def thresholds(
    costs: dict[str, list[Costs]], waking: Sequence[Waking], held: Sequence[Memory], evicting: Sequence[Preempting]
) -> list[Threshold]:
    found = [
        Threshold(
            f"preemption, {one.what}: times a plain decision, {one.gpus:,} GPUs",
            one.decide / plain[0].both,
            "at most",
            5,
            "x",
            2,
        )
        for one in evicting
        if (plain := [each for each in costs.get(PLAIN[one.what], ()) if each.gpus == one.gpus])
    ]
    for scene, at_sizes in costs.items():
        small, large = at_sizes[0], at_sizes[-1]
        if scene in BESIDE_ONE_INSTANCE:
            ratio = large.both / costs["MIG instances"][-1].both
            found.append(Threshold(f"{scene}: times one instance, {large.gpus:,} GPUs", ratio, "at most", 5, "x", 2))
            continue
        more = large.both - small.both
        found += [
            Threshold(
                f"{scene}: allocate and release, {large.gpus:,} against {small.gpus:,} GPUs",
                more,
                "at most",
                10,
                "us",
                1,
            ),
            Threshold(f"{scene}: decisions a second", large.decisions_a_second, "at least", 20_000, "", 0),
            Threshold(f"{scene}: p99 of an allocation", large.p99, "at most", 1000, "us", 0),
        ]
    found += [
        Threshold(
            f"worst step, place freed, {one.waiting:,} waiting, {one.kind}", one.worst_freed, "at most", 5, "ms", 2
        )
        for one in waking
    ]
    found += [Threshold(f"memory per GPU, {one.gpus:,} GPUs", one.per_gpu, "at most", 2048, "bytes", 0) for one in held]
    return found


def report(
    costs: dict[str, list[Costs]], waking: Sequence[Waking], held: Sequence[Memory], evicting: Sequence[Preempting]
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
    return "\n".join([*lines, "", table(thresholds(costs, waking, held, evicting))])


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
    scenes = dict.fromkeys([*beside, *options.scenes])
    costs = {name: alone(compared, SCENES[name], sizes) for name in scenes}
    waits = (freed_for_equals, freed_for_all_different, given_back_to_a_quota)
    waking = [alone(wait, options.waiting) for wait in waits]
    held = [alone(memory, sizes[-1])]
    evicting = [one for what in PREEMPTING for one in alone(preempting, what, [sizes[0], sizes[-1]])]
    section = report(costs, waking, held, evicting)
    conclude("decisions", section, write=options.write)
    return exit_code(thresholds(costs, waking, held, evicting))
