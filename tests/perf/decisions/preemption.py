"""What a decision with an eviction costs: important pods come and go on a fleet full of preemptible ones."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from perf.decisions.scenes import ALL_MODES, ALLOCATE, PROFILES, in_turn
from perf.decisions.system import System

from sluice.contracts.ids import AllocationId
from sluice.contracts.messages import AnyMessage, Claim, Grant

PRIORITIES = (0, 1, 2, 5)
IMPORTANT = 100
PODS_PER_BATCH = 50
WARM_UP = 100
TENANTS_PER_GPU = 5
"""More than a GPU ever holds of a mixed lot: the rest finds no place."""


@dataclass(frozen=True)
class Preempting:
    """Microseconds of CPU: one important pod's request, from its event to the promise of its place."""

    what: str
    gpus: int
    decide: float
    p50: float
    p99: float
    victims: float
    """Pods that go for one, in the mean."""


class Full(System):
    """A fleet on which nothing is free, and all pods may be evicted."""

    def __init__(self, gpus: int, *, shares: bool = False) -> None:
        super().__init__(gpus, mig=not shares, modes=ALL_MODES if shares else ("exclusive",))
        self.random = Random(0)
        self.promises: list[Grant] = []
        fleet = self.core.ctx.cluster
        if shares:
            self.fill(share(self.random) for _ in range(13 * gpus))
        else:
            mixed = [self.random.choice(PROFILES) for _ in range(2 * gpus)]
            smallest = [PROFILES[0]] * (TENANTS_PER_GPU * gpus)
            self.fill(Claim(container="main", profile=profile) for profile in mixed + smallest)
        self.priority = {allocation: self.random.choice(PRIORITIES) for allocation in fleet.booked()}
        for allocation in self.priority:
            self.offer(allocation)

    def offer(self, allocation: AllocationId) -> None:
        self.core.ctx.cluster.offer_victim(allocation, self.priority[allocation], guarded=False)

    def _hear(self, message: AnyMessage) -> None:
        super()._hear(message)
        if isinstance(message, Grant):
            self.promises.append(message)

    def preempt(self, name: str, claim: Claim) -> None:
        """An important pod comes, takes the place of an evicted one, and is gone again; the others stay."""
        self.arrive(name, claim, priority=IMPORTANT)
        self.depart(name)
        for allocation in self.promises[-1].after:
            self.offer(allocation)


@dataclass
class Important:
    """Important pods on one fleet."""

    what: str
    gpus: int
    system: Full
    claim: Callable[[Random], Claim]
    came: int = 0
    batches: list[float] = field(default_factory=list)
    decisions: list[int] = field(default_factory=list)

    def step(self, pods: int) -> None:
        for _ in range(pods):
            self.system.preempt(f"important-{self.came}", self.claim(self.system.random))
            self.came += 1

    def batch(self) -> None:
        took = self.system.core.took_ns
        took.clear()
        self.step(PODS_PER_BATCH)
        self.decisions += took[ALLOCATE]
        self.batches.append(sum(took[ALLOCATE]) / PODS_PER_BATCH / 1000)

    def costs(self) -> Preempting:
        """The mean of the quickest batch, and the quantiles of all."""
        promised = [grant for grant in self.system.promises if grant.evict]
        if len(promised) < self.came:
            raise SystemExit(f"{self.gpus} GPUs: {len(promised)} of {self.came} pods were promised a place")
        cuts = statistics.quantiles(self.decisions, n=100)
        victims = statistics.mean(len(grant.after) for grant in promised)
        return Preempting(self.what, self.gpus, min(self.batches), cuts[49] / 1000, cuts[98] / 1000, victims)


def share(random: Random) -> Claim:
    return Claim(container="main", modes=("mps",), memory_mib=random.randint(2000, 6000))


def one_slice(random: Random) -> Claim:
    """An instance of any profile but the smallest."""
    return Claim(container="main", profile=random.choice(PROFILES[1:]))


def two_gpus(_random: Random) -> Claim:
    return Claim(container="main", profile="7g.40gb", gpus=2)


def large_share(random: Random) -> Claim:
    """A share in the place of two or three."""
    return Claim(container="main", modes=("mps",), memory_mib=random.randint(7000, 12_000))


SCENES: dict[str, tuple[bool, Callable[[Random], Claim]]] = {
    "one instance": (False, one_slice),
    "two GPUs of one node": (False, two_gpus),
    "one share": (True, large_share),
}


def preempting(what: str, sizes: Sequence[int]) -> list[Preempting]:
    shares, claim = SCENES[what]
    return in_turn((Important(what, gpus, Full(gpus, shares=shares), claim) for gpus in sizes), WARM_UP)
