"""What is measured of decisions: pods that come and go on a half-full fleet, a place freed for a long queue."""

import gc
import itertools
import statistics
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from perf.decisions.system import FOLDER, GPUS_PER_NODE, System, nodes

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import RunId
from sluice.contracts.kube.names import LABEL_HOSTNAME
from sluice.runtime.gc_freeze import collect_rarely, freeze_old_objects
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.offline.perfect_cluster import PerfectCluster

BATCHES = 10
PODS_PER_BATCH = 200
WARM_UP = 300
GRANTED_PERCENT = 95
LIVING = 20
"""So many pods live at a time besides those the fleet was filled with; each new one is followed by an end."""
PROFILES = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
SHARES_PER_GPU = 10
ALL_MODES: tuple[msg.Mode, ...] = ("exclusive", "mps", "fractional")

ALLOCATE = "AllocationRequested"
RELEASE = ("RequestWithdrawn", "SliceGone")


@dataclass(frozen=True)
class Costs:
    """Microseconds of CPU: `allocate` a request, `release` its place, and all that the core does in a pod's `life`."""

    gpus: int
    allocate: float
    release: float
    life: float
    p50: float
    p99: float

    @property
    def both(self) -> float:
        """Allocate and release together: the two decisions that a pod's life needs."""
        return self.allocate + self.release

    @property
    def decisions_a_second(self) -> float:
        return 2e6 / self.both


@dataclass
class Running:
    """One fleet with pods that come and go on it."""

    gpus: int
    system: System
    claim: Callable[[], msg.Claim]
    host: msg.HostNeeds = msg.NO_NEEDS
    came: int = 0
    batches: list[tuple[float, float, float]] = field(default_factory=list)
    allocations: list[int] = field(default_factory=list)

    def step(self, pods: int) -> None:
        """So many pods come, and the oldest ones go."""
        for _ in range(pods):
            self.arrive()
            if self.came >= LIVING:
                self.system.depart(f"pod-{self.came - LIVING}")
            self.came += 1

    def arrive(self) -> None:
        self.system.arrive(f"pod-{self.came}", self.claim(), self.host)

    def batch(self) -> None:
        took = self.system.core.took_ns
        took.clear()
        self.step(PODS_PER_BATCH)
        self.allocations += took[ALLOCATE]
        sums = sum(took[ALLOCATE]), sum(sum(took.get(word, ())) for word in RELEASE), sum(map(sum, took.values()))
        allocate, release, life = (total / PODS_PER_BATCH / 1000 for total in sums)
        self.batches.append((allocate, release, life))

    def costs(self) -> Costs:
        """The means of the quickest batch, and the quantiles of all allocations."""
        if self.system.grants < self.came * GRANTED_PERCENT // 100:
            raise SystemExit(f"{self.gpus} GPUs: {self.system.grants} of {self.came} pods found a place")
        cuts = statistics.quantiles(self.allocations, n=100)
        return Costs(self.gpus, *min(self.batches, key=sum), p50=cuts[49] / 1000, p99=cuts[98] / 1000)


def compared(scene: Callable[[int], Running], sizes: Sequence[int]) -> list[Costs]:
    return in_turn((scene(gpus) for gpus in sizes), WARM_UP)


def in_turn(scenes: Iterable[Any], warm_up: int) -> list[Any]:
    """What each costs, batch by batch in turn: a machine that is busy for a while is so for all of them."""
    collect_rarely()  # as the allocator's process does
    running = list(scenes)
    for each in running:
        each.step(warm_up)
    freeze_old_objects()
    for _ in range(BATCHES):
        for each in running:
            each.batch()
    return [each.costs() for each in running]


def exclusive(gpus: int) -> Running:
    """MIG instances of all profiles on a fleet that is half full."""
    random = Random(0)
    return Running(gpus, _half_full(gpus), lambda: msg.Claim(container="main", profile=random.choice(PROFILES)))


def two_on_one_node(gpus: int) -> Running:
    """Two instances of one node of a zone that has room for the pod's CPU and memory."""
    random = Random(0)
    needs = msg.HostNeeds(room=msg.HostRoom(cpu_milli=2000, memory_mib=8192), node_selector={"zone": "zone-1"})
    return Running(
        gpus, _half_full(gpus), lambda: msg.Claim(container="main", profile=random.choice(PROFILES[:3]), gpus=2), needs
    )


APPS = 5
"""Of so many applications the pods are: four replicas of each live at a time."""


class Replicas(Running):
    """The same, each a replica that is to have a host of its own, in the zone with fewest of its application."""

    def arrive(self) -> None:
        app = f"app-{self.came % APPS}"
        selector = (msg.NodeExpression(key="app", operator="In", values=(app,)),)
        apart = msg.PodTerm(topology_key=LABEL_HOSTNAME, selector=selector, namespaces=("default",))
        spread = msg.SpreadTerm(topology_key="zone", selector=selector, max_skew=2)
        host = msg.HostNeeds(apart=(apart,), spread=(spread,))
        self.system.arrive(f"pod-{self.came}", self.claim(), host, labels={"app": app})


def apart_and_spread(gpus: int) -> Running:
    """MIG instances of replicas that are to be apart by host and spread over zones."""
    random = Random(0)
    return Replicas(gpus, _half_full(gpus), lambda: msg.Claim(container="main", profile=random.choice(PROFILES)))


def limited(gpus: int) -> Running:
    """The same as MIG instances, in a namespace with limits in every dimension, none of which is ever reached."""
    running = exclusive(gpus)
    _limit(running.system, 10**9)
    return running


def _limit(system: System, devices: int) -> None:
    amounts = msg.Amounts(gpus=devices, memory_mib=10**12, compute_slices=10**9)
    quota = msg.QuotaSet(namespace="default", total=amounts, request=amounts, guaranteed=msg.Amounts(gpus=1))
    system.cluster.say(subjects.quota("default"), quota)
    synced = msg.SourceSynced(source=FOLDER, run=RunId("w1"), epoch=1, count=0)
    system.cluster.say(subjects.source(FOLDER), synced)  # before it no pod of a limited namespace is served
    system.cluster.settle()


def fractional(gpus: int) -> Running:
    """Shares of SMs and memory, ten live ones on every GPU."""

    def fraction(random: Random) -> msg.Claim:
        percent = random.randint(4, 9)
        amounts = {"sm_partition": percent, "memory_mib": 40 * 1024 * percent // 100}
        return msg.Claim(container="main", modes=("fractional",), **amounts)

    return _shares(gpus, fraction)


def mps(gpus: int) -> Running:
    """Shares of memory, ten live ones on every GPU."""
    share = {"container": "main", "modes": ("mps",)}
    return _shares(gpus, lambda random: msg.Claim(**share, memory_mib=random.randint(1500, 4000)))


def _half_full(gpus: int) -> System:
    system, random = System(gpus), Random(0)
    system.fill(msg.Claim(container="main", profile=random.choice(PROFILES)) for _ in range(gpus))
    return system


def _shares(gpus: int, claim: Callable[[Random], msg.Claim]) -> Running:
    system = System(gpus, mig=False, modes=ALL_MODES)
    random = Random(0)
    wanted = SHARES_PER_GPU * gpus
    placed = system.fill(claim(random) for _ in range(wanted))
    if placed < wanted:
        raise SystemExit(f"{placed} of {wanted} shares found a place")
    return Running(gpus, system, lambda: claim(random))


SET_ASIDE_PODS = 3_000
"""What is old is set aside by the clock; here after as many pods as come in about that time."""


@dataclass(frozen=True)
class Waking:
    """Very many wait and a place is freed; the slowest single step in milliseconds, and how many got a place."""

    kind: str
    waiting: int
    worst_arrival: float
    worst_freed: float
    served: int


def _equal(_number: int) -> tuple[msg.Claim, msg.HostNeeds]:
    return msg.Claim(container="main", profile="1g.5gb"), msg.NO_NEEDS


def _different(number: int) -> tuple[msg.Claim, msg.HostNeeds]:
    needs = msg.HostNeeds(room=msg.HostRoom(cpu_milli=1 + number))
    return msg.Claim(container="main", profile=PROFILES[number % len(PROFILES)]), needs


WAITS = {"all equal": _equal, "all different": _different, "all different, over their quota": _different}


def freed(kind: str, waiting: int) -> Waking:
    """A fleet of 1,000 GPUs, full; then the queue; then ten whole GPUs are given back one after another."""
    gpus, given_back = 1000, 10
    system = System(gpus)
    if kind.endswith("over their quota"):
        _limit(system, gpus)
    for number in range(gpus):
        system.arrive(f"whole-{number}", msg.Claim(container="main", profile="7g.40gb"))
    if system.grants < gpus:
        raise SystemExit(f"{system.grants} of {gpus} GPUs could be taken")
    system.core.took_ns.clear()
    collect_rarely()  # as the allocator's process does
    for number in range(waiting):
        system.arrive(f"waiting-{number}", *WAITS[kind](number))
        if number % SET_ASIDE_PODS == 0:
            freeze_old_objects()
    worst_arrival = _worst(system)
    for number in range(given_back):
        system.depart(f"whole-{number}")
    return Waking(kind, waiting, worst_arrival, _worst(system), served=system.grants - gpus)


def _worst(system: System) -> float:
    """The slowest step since it was last asked, in milliseconds."""
    slowest = max(itertools.chain.from_iterable(system.core.took_ns.values()))
    system.core.took_ns.clear()
    return slowest / 1e6


@dataclass(frozen=True)
class Memory:
    """What the allocator holds for one GPU once the fleet is open; bytes."""

    gpus: int
    per_gpu: float


def memory(gpus: int) -> Memory:
    """Traced from before the first node is observed until all are open and nothing is booked."""
    seen = nodes(gpus, mig=True, modes=("exclusive",))
    tracemalloc.start()
    allocator = Allocator(RunId("perf"), SchedulerConfig())
    cluster = PerfectCluster(allocator, lambda _: None)
    cluster.start(seen)
    del cluster  # the bus, which remembers every value of its own
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    if len(allocator.ctx.facts.heads) < -(-gpus // GPUS_PER_NODE):
        raise SystemExit("not every node was opened")
    return Memory(gpus, held / gpus)
