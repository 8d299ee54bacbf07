"""The loss model: a pod that finds no place when it comes is rejected for good; no pod waits."""

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from perf.packing.mixes import COMPUTE_SLICES, Arrival


class Packer(Protocol):
    """A placer of pods with a fleet of its own."""

    def place(self, number: int, profile: str) -> bool: ...

    def release(self, number: int) -> None: ...


@dataclass(frozen=True)
class Taken:
    """How many pods came and how many got a place, per profile, once the fleet was in its steady state."""

    offered: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)

    def by_slices(self) -> float:
        """The accepted part of the offered compute slices. Counted in pods, turning big ones away would look good."""
        return _slices(self.accepted) / _slices(self.offered)

    def of(self, profile: str) -> float:
        """The accepted part of the pods that asked for one profile."""
        return self.accepted[profile] / self.offered[profile]


def run(pods: Iterable[Arrival], packer: Packer, warm_up: int) -> Taken:
    """Let all pods come and go. The first `warm_up` are not counted: they find an empty fleet."""
    taken = Taken()
    ends: list[tuple[float, int]] = []
    for pod in pods:
        while ends and ends[0][0] <= pod.at:
            packer.release(heapq.heappop(ends)[1])
        placed = packer.place(pod.number, pod.profile)
        if placed:
            heapq.heappush(ends, (pod.until, pod.number))
        if pod.number >= warm_up:
            taken.offered[pod.profile] += 1
            taken.accepted[pod.profile] += placed
    return taken


def _slices(pods: Counter[str]) -> int:
    return sum(COMPUTE_SLICES[profile] * count for profile, count in pods.items())
