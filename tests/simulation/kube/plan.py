"""Seeds whose pods are those of a cluster instead of a folder's: what goes wrong at their API server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

KubeKind = Literal[
    "api away", "api busy", "api lags", "watch gap", "watch replays", "node object gone", "node cordoned",
    "claim deleted", "reservation removed",
]  # fmt: skip
KINDS: tuple[KubeKind, ...] = (
    "api away", "api busy", "api lags", "watch gap", "watch gap", "watch replays", "node object gone",
)  # fmt: skip
FAULTS_MEAN = 5
LASTS_S = {
    "api away": (0.5, 15.0),
    "api busy": (1.0, 6.0),
    "api lags": (2.0, 20.0),
    "watch gap": (1.0, 20.0),
    "watch replays": (0.0, 0.0),
    "node object gone": (1.0, 25.0),
}
WATCHERS = ("pod-watcher", "pod-watcher-2")
TWO_WATCHERS = 0.5
"""In so many of these seeds there are two pod-watchers, of which one works."""
HANDED_OVER_MEAN = 3
CLAIM_FAULTS_MEAN = 5
CORDONS = 0.5
"""In so many of these seeds an operator cordons nodes with kubectl."""


@dataclass(frozen=True, slots=True)
class ApiFault:
    """One fault, before a plan has it."""

    at: float
    kind: KubeKind
    target: str
    lasts_s: float
    number: int


def draw_kube_faults(dice: Random, nodes: Sequence[str], until: float, but: Sequence[str]) -> list[ApiFault]:
    """What goes wrong at the API server of one seed; each kind in half of them."""
    kinds = [kind for kind in KINDS if dice.random() < 0.5]
    count = min(12, round(dice.gammavariate(3, FAULTS_MEAN / 3))) if kinds else 0
    rows: list[ApiFault] = []
    for _ in range(count):
        kind = dice.choice(kinds)
        target = dice.choice(nodes) if kind == "node object gone" else ""
        rows.append(
            ApiFault(dice.uniform(1.0, until - 1.0), kind, target, dice.uniform(*LASTS_S[kind]), dice.randrange(1000))
        )
    return [row for row in rows if row.kind not in but]


def draw_handovers(dice: Random, until: float, but: Sequence[str]) -> list[tuple[float, str, str, float]]:
    """
    What makes one of two pod-watchers take over from the other: when, which kind of fault, of whom, and for how long.

    Empty for a seed that has one only. It takes over when the other one stands still or is not heard for longer than
    the lease lasts; and what comes back is beside its successor for a moment.
    """
    if dice.random() >= TWO_WATCHERS:
        return []
    kinds = [kind for kind in ("pause", "pause", "crash", "mute", "deaf") if kind not in but]
    count = 1 + min(5, round(dice.gammavariate(2, HANDED_OVER_MEAN / 2))) if kinds else 0
    return [
        (dice.uniform(2.0, until - 4.0), dice.choice(kinds), dice.choice(WATCHERS), dice.uniform(0.5, 9.0))
        for _ in range(count)
    ]


def draw_kube_cordons(dice: Random, nodes: Sequence[str], until: float, but: Sequence[str]) -> list[ApiFault]:
    """Which nodes are cordoned with kubectl for a while: often for the moment in which pods come.

    Drawn apart, so that all else of a seed stays what it is without.
    """
    if dice.random() >= CORDONS or "node cordoned" in but:
        return []
    lasts_s = [dice.choice((dice.uniform(0.0, 0.5), dice.uniform(0.5, 12.0))) for _ in range(dice.randint(1, 8))]
    return [ApiFault(dice.uniform(0.5, until - 1.0), "node cordoned", dice.choice(nodes), each, 0) for each in lasts_s]


def draw_claim_faults(dice: Random, until: float, but: Sequence[str]) -> list[ApiFault]:
    """What becomes of claims beside Sluice, in a seed whose pods have some."""
    kinds: list[KubeKind] = [kind for kind in _CLAIM_KINDS if kind not in but]
    count = min(12, round(dice.gammavariate(2, CLAIM_FAULTS_MEAN / 2))) if kinds else 0
    return [
        ApiFault(dice.uniform(1.0, until - 1.0), dice.choice(kinds), "", 0.0, dice.randrange(1000))
        for _ in range(count)
    ]


_CLAIM_KINDS: tuple[KubeKind, ...] = ("claim deleted", "reservation removed")
