"""
Ledger and journals that are lost in one moment, in some seeds: then only tickets, devices and pods say what was there.

Drawn apart, so that all else of a seed stays what it is without them.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

LOSING_SEEDS = 0.3
"""In so many of the seeds in which they may be, both are lost together."""
LOST_TWICE = 0.3
APART_S = 1.5
"""So far apart at most: a journal is lost before the wipe is over, or a moment before it."""
NOT_BESIDE = frozenset({"foreign", "node removed", "reboot", "disk wiped", "relaid", "identities lost", "replica lags"})
"""
Kinds beside which nobody could tell what was whose: what somebody made by hand; nodes that were said to be gone; what
takes the devices that tickets name as well, for then the third copy is lost, too. And kinds that presume a bus that
forgets nothing (`troubles.impossible`).
"""

Row = tuple[float, str, str, float, int]
"""When, what, where, for how long, and a number that the kind makes something of."""


def draw_losses(seed: int, nodes: Sequence[str], struck: AbstractSet[str], until: float) -> list[Row]:
    """A wipe of the broker, and with it the journals of some nodes; empty for most seeds."""
    dice = Random(f"lost together {seed}")
    if dice.random() >= LOSING_SEEDS or not NOT_BESIDE.isdisjoint(struck):
        return []
    rows: list[Row] = []
    for _ in range(2 if dice.random() < LOST_TWICE else 1):
        at = dice.uniform(4.0, until - 8.0)
        rows.append((at, "broker wipe", "", 0.0, 0))
        for node in dice.sample(list(nodes), dice.randint(1, len(nodes))):
            when = at + dice.uniform(-APART_S, APART_S)
            rows.append((when, "journal lost", node, dice.uniform(0.2, 4.0), dice.randrange(2)))
    return rows
