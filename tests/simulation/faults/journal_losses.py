"""
Lost journals where little else shows what was on a node: together with the ledger, so that only tickets, marks, devices
and pods do; or beside wiped brokers, idle instances and foreign instances.

Drawn separately, so that the rest of a seed stays the same without them.
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
NOT_BESIDE = frozenset(
    {"node removed", "reboot", "disk wiped", "relaid", "journal damaged", "identities lost", "replica lags"}
)
"""Kinds that would make owners unknowable: removed nodes; devices removed together with the tickets that name them, the
third copy. Also kinds that presume a bus that forgets nothing (`troubles.impossible`). Foreign instances have no mark
(ADR 0050)."""
BESIDE_SEEDS = 0.5
"""In so many of the seeds with a wiped broker, idle instances or something made by hand, and no journal lost yet."""
BESIDE = frozenset({"broker wipe", "foreign"})
BESIDE_MAX = 3

Row = tuple[float, str, str, float, int]
"""When, what, where, for how long, and a number that the kind makes something of."""


def draw_lost_beside(
    seed: int, nodes: Sequence[str], struck: AbstractSet[str], until: float, *, warm: bool
) -> list[Row]:
    """Journals that are lost at some time or other; empty where that is drawn with all else, and for many seeds."""
    dice = Random(f"lost beside {seed}")
    never = NOT_BESIDE if "broker wipe" in struck else frozenset({"node removed"})
    is_new = (warm or not BESIDE.isdisjoint(struck)) and "journal lost" not in struck
    if dice.random() >= BESIDE_SEEDS or not is_new or not never.isdisjoint(struck):
        return []
    return [
        (dice.uniform(3.0, until - 4.0), "journal lost", dice.choice(nodes), dice.uniform(0.2, 4.0), dice.randrange(2))
        for _ in range(dice.randint(1, BESIDE_MAX))
    ]


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
