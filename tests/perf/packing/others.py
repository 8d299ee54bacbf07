"""Packers to compare with, written from descriptions: first fit, fixed templates, and the ideal that moves pods."""

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
"""The geometries of an A100-40GB in HAMi's default `device-config.yaml` (Project-HAMi/HAMi)."""

COVERS = {
    "1g.5gb": ("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb"),
    "1g.10gb": ("2g.10gb", "3g.20gb", "7g.40gb"),
    "2g.10gb": ("2g.10gb", "3g.20gb", "7g.40gb"),
    "3g.20gb": ("3g.20gb", "7g.40gb"),
    "4g.20gb": ("7g.40gb",),
    "7g.40gb": ("7g.40gb",),
}
"""Which slots of the templates give at least what a profile gives, smallest first."""


class FirstFit:
    """The first GPU on which the profile fits, at its lowest free start."""

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
