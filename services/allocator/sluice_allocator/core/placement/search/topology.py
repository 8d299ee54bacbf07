"""Finds the GPUs of a node that are closest to each other, and those that share a NUMA node, from agents' reports. Pair
scores are those of HAMi (https://github.com/Project-HAMi/HAMi, docs): 10 across CPUs, 20 on one CPU, 30 over a host
bridge, 40 and 50 over PCIe switches, 60 on one board, 100 per NVLink. An unknown score is 0, and so is that of a pair
whose two ends report different scores: one of them is wrong."""

from collections.abc import Mapping, Sequence
from itertools import combinations

from sluice.contracts.ids import GpuUuid

EXACT_UP_TO = 10
"""Up to this many candidates the search is exact (252 sets). HAMi compares all sets at any size: 12,870 for 8 of 16
GPUs."""

SEEDS = 16  # of more candidates only this many, the best linked, start a set, which bounds the time per node

Links = Mapping[GpuUuid, Mapping[GpuUuid, int]]  # per GPU its reported links (`GpuReport.links`)


def pair_score(links: Links, one: GpuUuid, other: GpuUuid) -> int:
    """How close two GPUs are, larger is closer; 0 when not known or not symmetric."""
    there = links.get(one, {}).get(other, 0)
    return there if there == links.get(other, {}).get(one, 0) else 0


def closest(links: Links, candidates: Sequence[GpuUuid], count: int) -> tuple[GpuUuid, ...]:
    """The `count` candidates with the largest sum of pair scores, in the given order. A single one is the worst linked:
    the well linked are kept for requests for several. Of equal sets the first in the order given. Exact up to
    EXACT_UP_TO candidates; above, a set is grown from each candidate (or the SEEDS best linked) by the one that adds
    most, single members are exchanged while that helps, and the best of these is taken. Raises ValueError when there
    are fewer candidates than asked for."""
    if not 0 <= count <= len(candidates):
        raise ValueError(f"{count} of {len(candidates)} GPUs")
    if count == 0:
        return ()
    every = range(len(candidates))
    scores = [[pair_score(links, one, other) if one != other else 0 for other in candidates] for one in candidates]
    if count == 1:
        chosen: tuple[int, ...] = (min(every, key=lambda each: (sum(scores[each]), each)),)
    elif len(candidates) <= EXACT_UP_TO or count == len(candidates):
        chosen = max(combinations(every, count), key=lambda members: _sum(scores, members))
    else:
        seeds = sorted(sorted(every, key=lambda each: -sum(scores[each]))[:SEEDS])
        grown = (_exchanged(scores, _grown(scores, seed, count)) for seed in seeds)
        chosen = max(grown, key=lambda members: _sum(scores, members))
    return tuple(candidates[each] for each in chosen)


def by_numa(numa_nodes: Mapping[GpuUuid, int | None], candidates: Sequence[GpuUuid]) -> tuple[tuple[GpuUuid, ...], ...]:
    """The candidates of each NUMA node, lowest first, in the order given. Those that report none are in no group."""
    groups: dict[int, list[GpuUuid]] = {}
    for each in candidates:
        numa = numa_nodes.get(each)
        if numa is not None:
            groups.setdefault(numa, []).append(each)
    return tuple(tuple(groups[numa]) for numa in sorted(groups))


def _sum(scores: list[list[int]], members: tuple[int, ...]) -> int:
    return sum(scores[one][other] for one, other in combinations(members, 2))


def _grown(scores: list[list[int]], seed: int, count: int) -> tuple[int, ...]:
    members = [seed]
    gains = list(scores[seed])
    while len(members) < count:
        added = max((each for each in range(len(scores)) if each not in members), key=lambda each: (gains[each], -each))
        members.append(added)
        gains = [gain + more for gain, more in zip(gains, scores[added], strict=True)]
    return tuple(sorted(members))


def _exchanged(scores: list[list[int]], members: tuple[int, ...]) -> tuple[int, ...]:
    """Exchange one member for one outsider while that raises the sum, the best exchange first."""
    while True:
        ties = [sum(row[member] for member in members) for row in scores]
        swaps = (
            (ties[outside] - scores[outside][member] - ties[member], -member, -outside)
            for member in members
            for outside in range(len(scores))
            if outside not in members
        )
        gain, member, outside = max(swaps, default=(0, 0, 0))
        if gain <= 0:
            return members
        members = tuple(sorted({*members, -outside} - {-member}))
