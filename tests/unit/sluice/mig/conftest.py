"""An independent judge of layouts: slow and obvious, sharing no code with what it judges."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import pytest

from sluice.mig.model import GpuModel

Placed = tuple[str, int, int]
"""Profile name, start, size."""
Layout = frozenset[Placed]


@dataclass(slots=True)
class Judge:
    """Every legal layout of a model, found by trying all sets of placements."""

    model: GpuModel
    layouts: set[Layout] = field(default_factory=set)
    _more: dict[tuple[Layout, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._grow(frozenset(), self.placements())

    def placements(self) -> list[Placed]:
        return [(p.name, place.start, place.size) for p in self.model.profiles for place in p.placements]

    def _grow(self, layout: Layout, rest: list[Placed]) -> None:
        self.layouts.add(layout)
        for at, placed in enumerate(rest):
            grown = layout | {placed}
            if self.may_exist(grown):
                self._grow(grown, rest[at + 1 :])

    def may_exist(self, layout: Layout) -> bool:
        """No slice twice, and no engine, compute slice or profile more often than the whole GPU has it."""
        slices = [n for _, start, size in layout for n in range(start, start + size)]
        if len(slices) != len(set(slices)):
            return False
        profiles = {p.name: p for p in self.model.profiles}
        there = [profiles[name] for name, _, _ in layout]
        if sum(p.compute_slices for p in there) > self.model.compute_slices:
            return False
        if any(there.count(p) > p.max_instances for p in there):
            return False
        return all(
            sum(getattr(p.engines, kind) for p in there) <= max(getattr(p.engines, kind) for p in profiles.values())
            for kind in ("copy", "decode", "encode", "jpeg", "ofa")
        )

    def places(self, layout: Layout, profile: str) -> set[tuple[int, int]]:
        mine = [placed for placed in self.placements() if placed[0] == profile and placed not in layout]
        return {placed[1:] for placed in mine if layout | {placed} in self.layouts}

    def how_many_more(self, layout: Layout, profile: str) -> int:
        """How many more instances of the profile alone fit, by trying all ways."""
        known = self._more.get((layout, profile))
        if known is None:
            mine = [placed for placed in self.placements() if placed[0] == profile and placed not in layout]
            further = [layout | {placed} for placed in mine]
            known = max((1 + self.how_many_more(f, profile) for f in further if f in self.layouts), default=0)
            self._more[layout, profile] = known
        return known


@pytest.fixture(scope="session")
def judge_of() -> Callable[[GpuModel], Judge]:
    return lru_cache(maxsize=32)(Judge)
