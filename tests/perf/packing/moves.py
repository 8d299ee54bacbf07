"""
What it gains to move pods so that larger ones fit, and what it costs: `python tests/perf moves [--write]`.

The loss model of the packing benchmark at load 1.0. Some pods may be moved; what one that is moved has worked since
its last checkpoint is done again, so it holds its place for longer. Moves are paid for by arrivals and a pod is not
moved again for a while, as in the allocator; that a successor takes seconds to come is not modelled.
"""

import heapq
import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from random import Random

from perf.figures import Threshold, conclude, options_of
from perf.packing.loss import Taken
from perf.packing.mixes import COMPUTE_SLICES, MIXES, Arrival, arrivals
from perf.packing.ours import Core
from perf.packing.paired import WARM_UP_PART

MOVABLE_PART = 0.3
COOLDOWN = 0.1
"""In mean lifetimes."""
MOVES_MAX = 3
CHECKPOINT = 0.02
"""Pods with checkpoints lose at most so much of their work, in mean lifetimes."""


@dataclass(frozen=True, slots=True)
class Way:
    """One move per so many arrivals (`every`, 0: none), and whether pods that are moved have checkpoints."""

    every: int
    checkpoints: bool = False

    def __str__(self) -> str:
        if not self.every:
            return "none moved"
        return f"one per {self.every}, {'with' if self.checkpoints else 'without'} checkpoints"


NONE, DEFAULT, CHECKPOINTED = Way(0), Way(20), Way(20, True)
WAYS = (NONE, DEFAULT, Way(5), CHECKPOINTED, Way(5, True))


@dataclass
class Run:
    """What one run came to. Slices are compute slices; times are in mean lifetimes."""

    taken: Taken = field(default_factory=Taken)
    moves: int = 0
    arrivals: int = 0
    done_again: float = 0.0
    """Slices times time that moved pods had worked already."""
    used: float = 0.0
    """Slices times time that ended pods have held their places, work that was done again taken off."""


class Floor:
    """The fleet with its pods, and which of them may be moved."""

    def __init__(self, gpus: int, way: Way) -> None:
        self.found = Run()
        self._core = Core(gpus)
        self._way = way
        self._credit = 0.0
        self._ends: list[tuple[float, int]] = []
        self._living: dict[int, Arrival] = {}
        self._began: dict[int, float] = {}
        self._until: dict[int, float] = {}
        self._movable: dict[int, None] = {}
        self._moved_at: dict[int, float] = {}

    def end_until(self, now: float, *, counts: bool) -> None:
        """Those whose time has come go; one that was moved goes later than it once would have."""
        while self._ends and self._ends[0][0] <= now:
            at, number = heapq.heappop(self._ends)
            if self._until.get(number) != at:
                continue
            self._core.release(number)
            ended = self._living.pop(number)
            self.found.used += (ended.until - ended.at) * COMPUTE_SLICES[ended.profile] if counts else 0
            del self._until[number], self._began[number]
            self._movable.pop(number, None)

    def place(self, pod: Arrival, *, movable: bool, counts: bool) -> bool:
        """Whether the pod got a place, be it that others were moved for it."""
        self._credit = min(MOVES_MAX, self._credit + 1 / self._way.every) if self._way.every else 0.0
        placed = self._core.place(pod.number, pod.profile) or self._make_room(pod, counts=counts)
        if placed:
            self._living[pod.number] = pod
            self._stays(pod.number, pod.at, pod.until)
            if movable:
                self._movable[pod.number] = None
        return placed

    def _make_room(self, pod: Arrival, *, counts: bool) -> bool:
        most = int(self._credit + 1e-9)
        if not most:
            return False
        rested = (each for each in self._movable if pod.at - self._moved_at.get(each, -COOLDOWN) >= COOLDOWN)
        profiles = {number: self._living[number].profile for number in rested}
        moved = self._core.make_room(pod.number, pod.profile, profiles, most)
        self._credit -= len(moved)
        for number in moved:
            again = pod.at - self._began[number]
            again = min(again, CHECKPOINT) if self._way.checkpoints else again
            if counts:
                self.found.moves += 1
                self.found.done_again += again * COMPUTE_SLICES[self._living[number].profile]
            self._moved_at[number] = pod.at
            self._stays(number, pod.at, self._until[number] + again)
        return bool(moved)

    def _stays(self, number: int, now: float, until: float) -> None:
        self._began[number], self._until[number] = now, until
        heapq.heappush(self._ends, (until, number))


def run(mix: str, seed: int, way: Way, pods: int, gpus: int) -> Run:
    """Let all pods come and go; make room where that is paid for."""
    floor, dice = Floor(gpus, way), Random(f"movable {mix} {seed}")
    for pod in arrivals(mix, seed, count=pods, gpus=gpus, load=1.0):
        counts = pod.number >= pods // WARM_UP_PART
        floor.end_until(pod.at, counts=counts)
        placed = floor.place(pod, movable=dice.random() < MOVABLE_PART, counts=counts)
        if counts:
            floor.found.arrivals += 1
            floor.found.taken.offered[pod.profile] += 1
            floor.found.taken.accepted[pod.profile] += placed
    return floor.found


def report(runs: dict[tuple[str, Way], list[Run]], what: str) -> tuple[str, list[Threshold]]:
    """The tables, as Markdown, and what is promised."""

    def mean(way: Way, of: Callable[[Run], float], mixes: Iterable[str] = MIXES) -> float:
        return statistics.fmean(of(each) for mix in mixes for each in runs[mix, way])

    def by_slices(run: Run) -> float:
        return run.taken.by_slices()

    def sevens(run: Run) -> float:
        return run.taken.of("7g.40gb")

    lines = [what, "", f"| mix | {' | '.join(map(str, WAYS))} |", "|---|" + "---|" * len(WAYS)]
    lines += [f"| {mix} | {' | '.join(f'{mean(way, by_slices, [mix]):.3f}' for way in WAYS)} |" for mix in MIXES]
    rows: dict[str, tuple[Callable[[Run], float], str]] = {
        "mean": (by_slices, ".3f"),
        "accepted 7g.40gb, mean": (sevens, ".3f"),
        "moves per 1,000 pods that came": (lambda run: 1000 * run.moves / run.arrivals, ".1f"),
        "work done again, percent of all work": (lambda run: 100 * run.done_again / run.used, ".2f"),
    }
    for name, (of, form) in rows.items():
        lines.append(f"| {name} | {' | '.join(format(mean(way, of), form) for way in WAYS)} |")
    more = 100 * (mean(CHECKPOINTED, sevens) - mean(NONE, sevens))
    lost = 100 * (mean(NONE, by_slices) - mean(DEFAULT, by_slices))
    gained = 100 * (mean(CHECKPOINTED, by_slices) - mean(NONE, by_slices))
    moves = mean(DEFAULT, rows["moves per 1,000 pods that came"][0])
    promised = [
        Threshold("more 7g.40gb accepted, one move per 20, with checkpoints", more, "at least", 2.0, "points", 2),
        Threshold("accepted slices gained, one move per 20, with checkpoints", gained, "at least", 0.5, "points", 2),
        Threshold("accepted slices lost, one move per 20, without checkpoints", lost, "at most", 1.0, "points", 2),
        Threshold("moves per 1,000 pods, one move per 20", moves, "at most", 50),
    ]
    return "\n".join(lines), promised


def main(arguments: Sequence[str]) -> int:
    parser = options_of("moves", __doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--gpus", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    keys = [(mix, seed, way) for mix in MIXES for seed in range(options.seeds) for way in WAYS]
    size = {"pods": options.pods, "gpus": options.gpus}
    with ProcessPoolExecutor(options.jobs) as pool:
        found = [pool.submit(run, *key, **size) for key in keys]
    runs: dict[tuple[str, Way], list[Run]] = {}
    for (mix, _, way), each in zip(keys, found, strict=True):
        runs.setdefault((mix, way), []).append(each.result())
    what = (
        f"{options.gpus} A100-40GB, load 1, {options.seeds} seeds of {options.pods} pods per mix, "
        f"{MOVABLE_PART:.0%} of the pods movable. Accepted part of the offered compute slices:"
    )
    section, promised = report(runs, what)
    return conclude("moves", section, promised, write=options.write)
