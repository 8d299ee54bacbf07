"""Packers to compare with, written from descriptions: first fit, HAMi old and new, and the ideal that moves pods."""

from collections import Counter
from dataclasses import dataclass, field

SPANS = {
    "1g.5gb": (1, (0, 1, 2, 3, 4, 5, 6)),
    "1g.10gb": (2, (0, 2, 4, 6)),
    "2g.10gb": (2, (0, 2, 4)),
    "3g.20gb": (4, (0, 4)),
    "4g.20gb": (4, (0,)),
    "7g.40gb": (8, (0,)),
}
"""Size and starts in memory slices (NVIDIA MIG user guide, A100-SXM4-40GB)."""

TEMPLATES = (("1g.5gb",) * 7, ("2g.10gb", "2g.10gb", "2g.10gb", "1g.5gb"), ("3g.20gb", "3g.20gb"), ("7g.40gb",))
"""The geometries of an A100-40GB in the default `device-config.yaml` of HAMi up to 2.9 (Project-HAMi/HAMi)."""

COVERS = {
    "1g.5gb": ("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb"),
    "1g.10gb": ("2g.10gb", "3g.20gb", "7g.40gb"),
    "2g.10gb": ("2g.10gb", "3g.20gb", "7g.40gb"),
    "3g.20gb": ("3g.20gb", "7g.40gb"),
    "4g.20gb": ("7g.40gb",),
    "7g.40gb": ("7g.40gb",),
}
"""Which slots of the templates give at least what a profile gives, smallest first."""

GPUS_PER_NODE = 4
HAMI_SCORES = {
    "1g.5gb": 1 / 7 + 0.15 + 4864 / 40960,
    "2g.10gb": 1 / 7 + 0.29 + 9984 / 40960,
    "3g.20gb": 1 / 7 + 0.43 + 20096 / 40960,
    "7g.40gb": 1 / 7 + 1.0 + 40320 / 40960,
}
"""HAMi 2.10's `migProfileAllowlist` of an A100-40GB by memory; per instance one of seven slots, its part of the
multiprocessors in whole percents rounded up, and of the memory."""


class FirstFit:
    """
    The first GPU on which the profile fits, at its lowest free start.

    So does kube-scheduler's structured allocator with partitionable devices: it takes the first device, in the order
    of the ResourceSlices (NVIDIA's driver: by GPU, profile, start), whose counters are not used up. Memory slices are
    counters; on this model no other runs out first. That it meets the nodes in one order favours it.
    """

    def __init__(self, gpus: int) -> None:
        self._taken = [0] * gpus
        self._places: dict[int, tuple[int, int]] = {}
        self._fitting: dict[tuple[int, str], int] = {}

    def place(self, number: int, profile: str) -> bool:
        for gpu, taken in enumerate(self._taken):
            span = self._lowest(taken, profile)
            if span:
                self._taken[gpu] |= span
                self._places[number] = (gpu, span)
                return True
        return False

    def release(self, number: int) -> None:
        gpu, span = self._places.pop(number)
        self._taken[gpu] &= ~span

    def _lowest(self, taken: int, profile: str) -> int:
        """The memory slices of the lowest start that is free, as bits; 0 when there is none."""
        known = self._fitting.get((taken, profile))
        if known is None:
            size, starts = SPANS[profile]
            spans = (((1 << size) - 1) << start for start in starts)
            known = self._fitting[taken, profile] = next((span for span in spans if not span & taken), 0)
        return known


class Templates:
    """Fixed geometries: that with the smallest slot for a GPU's first pod, kept until it is idle; first fit."""

    def __init__(self, gpus: int) -> None:
        self._free: list[Counter[str]] = [Counter() for _ in range(gpus)]
        self._used = [0] * gpus
        self._places: dict[int, tuple[int, str]] = {}

    def place(self, number: int, profile: str) -> bool:
        for gpu, free in enumerate(self._free):
            if not self._used[gpu]:
                smallest = next(slot for slot in COVERS[profile] if any(slot in template for template in TEMPLATES))
                free.clear()
                free.update(next(template for template in TEMPLATES if smallest in template))
            slot = next((slot for slot in COVERS[profile] if free[slot]), None)
            if slot is not None:
                free[slot] -= 1
                self._used[gpu] += 1
                self._places[number] = (gpu, slot)
                return True
        return False

    def release(self, number: int) -> None:
        gpu, slot = self._places.pop(number)
        self._free[gpu][slot] += 1
        self._used[gpu] -= 1


class Hami:
    """
    HAMi 2.10: on each GPU the smallest profile with enough memory that has a free place, 1g and 3g from the highest
    start. Of the nodes where one fits that with the highest score before the pod, of its GPUs the least used (`spread`,
    the default) or the most used one (`binpack`). HAMi looks at memory alone; here, as with templates, a pod gets no
    fewer compute slices than it needs, so a 4g has to ask for a 7g's memory.
    """

    def __init__(self, gpus: int, *, spread: bool = True) -> None:
        self._order = 1 if spread else -1
        self._taken = [0] * gpus
        self._scores = [0.0] * gpus
        self._nodes = [range(first, min(first + GPUS_PER_NODE, gpus)) for first in range(0, gpus, GPUS_PER_NODE)]
        self._places: dict[int, tuple[int, int, float]] = {}
        self._fitting: dict[tuple[int, str], tuple[int, float] | None] = {}

    def place(self, number: int, profile: str) -> bool:
        for node in sorted(self._nodes, key=lambda gpus: -round(sum(self._scores[gpu] for gpu in gpus), 6)):
            for gpu in sorted(node, key=lambda gpu: self._order * round(self._scores[gpu], 6)):
                found = self._found(self._taken[gpu], profile)
                if found is not None:
                    self._places[number] = (gpu, *found)
                    self._change(gpu, *found, 1)
                    return True
        return False

    def release(self, number: int) -> None:
        gpu, span, score = self._places.pop(number)
        self._change(gpu, span, score, -1)

    def _change(self, gpu: int, span: int, score: float, sign: int) -> None:
        self._taken[gpu] ^= span
        self._scores[gpu] += sign * score

    def _found(self, taken: int, profile: str) -> tuple[int, float] | None:
        """The memory slices as bits, and what the instance adds to the score; None when nothing fits."""
        if (taken, profile) not in self._fitting:
            fitting = (
                (span, HAMI_SCORES[name])
                for name in COVERS[profile]
                for start in sorted(SPANS[name][1], reverse=name[:2] in {"1g", "3g"})
                if not (span := ((1 << SPANS[name][0]) - 1) << start) & taken
            )
            self._fitting[taken, profile] = next(fitting, None)
        return self._fitting[taken, profile]


@dataclass
class Ideal:
    """Takes a pod whenever some packing exists as if moves were free; exactly when the counts pass `fits`."""

    gpus: int
    running: Counter[str] = field(default_factory=Counter)
    profile_of: dict[int, str] = field(default_factory=dict)

    def place(self, number: int, profile: str) -> bool:
        self.running[profile] += 1
        if not self.fits():
            self.running[profile] -= 1
            return False
        self.profile_of[number] = profile
        return True

    def release(self, number: int) -> None:
        self.running[self.profile_of.pop(number)] -= 1

    def fits(self) -> bool:
        """Whether those who run can be packed: the biggest first, each where it harms least."""
        count = self.running
        left = right = self.gpus - count["7g.40gb"]
        left -= count["4g.20gb"] + max(0, count["3g.20gb"] - right)
        right = max(0, right - count["3g.20gb"])
        pairs, weak = 2 * left + right - count["2g.10gb"], right
        pairs -= max(0, count["1g.10gb"] - weak)
        weak = max(0, weak - count["1g.10gb"])
        return left >= 0 and pairs >= 0 and count["1g.5gb"] <= weak + 2 * pairs
