"""
Neighbours of the plans that are kept: the same worlds a little earlier, later, longer, and with other luck on the way.

Where one bug was others are near: two things that meet in a kept plan meet in most of its neighbours, a step further
on. It adds nothing to a plan, so that what no plan may hold no neighbour holds either.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

from simulation.plans.plan import Fault, Plan, PodLife
from simulation.plans.plan_file import read_plan
from simulation.plans.storms import APART

KEPT = Path(__file__).resolve().parents[1] / "kept"
APART_S = (0.05, 0.3, 1.0, 2.5)
"""How far what happens is moved at most, one of these for a neighbour: within a step, or past several."""
LASTS = (0.5, 1.6)
LEFT_OUT = 0.05
"""Of the faults, so many are left out."""


def neighbour(seed: int) -> Plan:
    """A neighbour of one of the plans that are kept. Raises PlanFileError."""
    dice = Random(f"neighbour {seed}")
    plan, apart_s = dice.choice(_kept()), dice.choice(APART_S)
    if any(fault.kind == "identities lost" for fault in plan.faults):
        apart_s = 0.0  # their time says what may be beside them

    def moved(at: float) -> float:
        return max(0.2, at + dice.uniform(-apart_s, apart_s))

    def fault(each: Fault) -> Fault:
        lasts_s = each.lasts_s * dice.uniform(*LASTS) if apart_s else each.lasts_s
        return each if each.kind in APART else replace(each, at=moved(each.at), lasts_s=lasts_s)

    def pod(life: PodLife) -> PodLife:
        removed_at = moved(life.removed_at) if life.removed_at is not None else None
        return life.coming_at(moved(life.made_at), removed_at)

    faults = [fault(each) for each in plan.faults if dice.random() >= LEFT_OUT]
    return replace(
        plan,
        seed=seed,
        faults=tuple(sorted(faults, key=lambda each: each.at)),
        pods=tuple(pod(life) for life in plan.pods),
    )


@cache
def _kept() -> tuple[Plan, ...]:
    return tuple(read_plan(path).plan for path in sorted(KEPT.glob("*.json")))
