"""The queue model: pods wait for a place and live their time from then; the whole core decides."""

import heapq
import statistics
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace

from factories.scheduling.allocator import asked, claim
from perf.decisions.system import withdrawn
from perf.packing.mixes import COMPUTE_SLICES, MIXES, SLICES_PER_GPU, Arrival, arrivals
from perf.packing.ours import nodes
from perf.packing.paired import WARM_UP_PART

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import RequestId, RunId
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.offline.perfect_cluster import PerfectCluster

LARGEST = "7g.40gb"
LIFETIME_S = 3600.0
"""The mean lifetime of a pod; what the rules say in seconds is measured against it."""
UNBOUNDED = 1 << 62
USUAL = SchedulerConfig()
ROOMY = msg.HostFacts(cpu_cores=1024.0, memory_mib=1 << 30, pods_free=10_000)
"""A node whose GPUs alone run out."""


@dataclass
class Waits:
    """How long pods waited, in mean lifetimes, by profile; one that waits at the end counts with what it has waited."""

    of: dict[str, list[float]] = field(default_factory=dict)
    waiting: int = 0
    """How many still wait at the end."""
    used: float = 0.0
    """The part of the compute slices that was in use, over the time that counts."""

    def longest(self, profile: str) -> float:
        return max(self.of[profile])

    def mean(self, *profiles: str) -> float:
        """The mean wait of some profiles; of all when none is named."""
        return statistics.fmean(wait for name in profiles or self.of for wait in self.of.get(name, ()))

    def longest_of_others(self) -> float:
        return max(self.longest(name) for name in self.of if name != LARGEST)

    def mean_of_others(self) -> float:
        return self.mean(*(name for name in self.of if name != LARGEST))


class Queue:
    """A fleet with a queue, and the pods that come and go on it."""

    def __init__(self, gpus: int, rules: SchedulerConfig) -> None:
        self._allocator = Allocator(RunId("perf"), rules)
        self._cluster = PerfectCluster(self._allocator, self._hear)
        self._gpus = gpus
        self._pods: dict[RequestId, Arrival] = {}
        self._ends: list[tuple[float, RequestId]] = []
        self._used = 0
        self._area = 0.0
        self._counted_at = 0.0
        self._waits = Waits()
        self._first_counted = 0
        self._cluster.start([(node, ROOMY) for node in nodes(gpus)])

    def run(self, pods: Sequence[Arrival]) -> Waits:
        """Let all pods come; the run ends with the last arrival."""
        self._first_counted = len(pods) // WARM_UP_PART
        began = 0.0
        for pod in pods:
            while self._ends and self._ends[0][0] <= pod.at:
                at, request = heapq.heappop(self._ends)
                self._go_to(at)
                self._end(request)
            self._go_to(pod.at)
            if pod.number == self._first_counted:
                began, self._area = pod.at, 0.0
            self._arrive(pod)
        self._waits.used = self._area / (self._gpus * SLICES_PER_GPU * (pods[-1].at - began))
        for pod in self._pods.values():
            if RequestId(str(pod.number)) in self._allocator.ctx.queue:
                self._waits.waiting += 1
                self._count(pod, pods[-1].at - pod.at)
        return self._waits

    def _go_to(self, at: float) -> None:
        self._area += self._used * (at - self._counted_at)
        self._counted_at = at
        self._cluster.now = at * LIFETIME_S
        self._cluster.tick()

    def _arrive(self, pod: Arrival) -> None:
        request = RequestId(str(pod.number))
        self._pods[request] = pod
        self._cluster.say(subjects.request(request), asked(request, claim(profile=pod.profile)))
        self._cluster.settle()

    def _end(self, request: RequestId) -> None:
        self._used -= COMPUTE_SLICES[self._pods.pop(request).profile]
        self._cluster.say(subjects.request(request), withdrawn(closing=False))
        self._cluster.settle()

    def _hear(self, message: msg.AnyMessage) -> None:
        if isinstance(message, msg.Bound):
            pod = self._pods[message.request]
            self._used += COMPUTE_SLICES[pod.profile]
            heapq.heappush(self._ends, (self._counted_at + pod.until - pod.at, message.request))
            self._count(pod, self._counted_at - pod.at)
        elif isinstance(message, msg.Released):
            self._cluster.say(subjects.request(message.request), withdrawn(closing=True), last_word=True)

    def _count(self, pod: Arrival, waited: float) -> None:
        if pod.number >= self._first_counted:
            self._waits.of.setdefault(pod.profile, []).append(waited)


@dataclass(frozen=True)
class Experiment:
    """How large a run is, and what is promised in it."""

    percent: int
    after_s: float = USUAL.promise_after_s
    gpus: int = 100
    pods: int = 20_000
    load: float = 0.92

    def rules(self) -> SchedulerConfig:
        """Production's, where one event is worth any number of tries, for no time passes between two."""
        return replace(
            USUAL,
            promises_percent=self.percent,
            promise_after_s=self.after_s,
            wake_tries=UNBOUNDED,
            new_tries=UNBOUNDED,
            promise_tries=UNBOUNDED,
            pending_refresh_batch=0,
        )


def one_run(experiment: Experiment, mix: str, seed: int) -> Waits:
    pods = list(arrivals(mix, seed, count=experiment.pods, gpus=experiment.gpus, load=experiment.load))
    return Queue(experiment.gpus, experiment.rules()).run(pods)


def all_runs(experiments: Iterable[Experiment], seeds: int, jobs: int) -> dict[tuple[Experiment, str], list[Waits]]:
    """Every mix and seed under every rule, on `jobs` processes."""
    cases = [(each, mix, seed) for seed in range(seeds) for mix in MIXES for each in experiments]
    found: dict[tuple[Experiment, str], list[Waits]] = {}
    with ProcessPoolExecutor(jobs) as pool:
        for (experiment, mix, _), waits in zip(cases, pool.map(one_run, *zip(*cases, strict=True)), strict=True):
            found.setdefault((experiment, mix), []).append(waits)
    return found
