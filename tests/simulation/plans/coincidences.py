"""Faults that coincide: most begin or end within a moment of where another does, or where a pod comes or goes.

In a storm they are still seconds apart. What only shows when a GPU is lost in the moment in which its agent starts
took 25,000 seeds drawn evenly; of 91,000 small worlds drawn like this every 18,000th showed something new. It
adds no fault, so what no plan may hold it does not hold either.
"""

from dataclasses import dataclass, replace
from random import Random

from simulation.plans.plan import Fault, Plan
from simulation.plans.storms import APART, moved

WIDTHS_S = (0.02, 0.1, 0.3, 1.0)
"""How far from its moment what is moved there happens at most; one of these for a world."""
MOMENTS = (1, 2, 4, 100)
"""How many moments a world has, if it has as many."""
FAULTS_MOVED = (0.4, 0.7, 0.95)
SHORTER = (1.0, 1.0, 1.0, 0.3, 0.1)


@dataclass(frozen=True, slots=True)
class _Moments:
    dice: Random
    moments: list[float]
    width_s: float
    until: float

    def time(self) -> float:
        """Near one of them; now and then somewhat further off."""
        apart_s = self.dice.uniform(-self.width_s, self.width_s) * self.dice.choice((1, 1, 4))
        return min(self.until - 0.5, max(0.2, self.dice.choice(self.moments) + apart_s))

    def fault(self, fault: Fault) -> Fault:
        """The same fault, beginning or ending in a moment; where it ends or begins is one from now on."""
        at, lasts_s = self.time(), fault.lasts_s * self.dice.choice(SHORTER)
        if self.dice.random() < 0.5:
            at = max(0.2, at - lasts_s)
        self.moments.append(self.dice.choice((at, at + lasts_s)))
        return replace(fault, at=at, lasts_s=lasts_s)


def with_coincidences(plan: Plan) -> Plan:
    """The same plan, with most faults and some pods' comings and goings moved to where something happens already."""
    if any(fault.kind == "identities lost" for fault in plan.faults):
        return plan
    dice = Random(f"coinciding {plan.seed}")
    happens = [at for fault in plan.faults for at in (fault.at, fault.at + fault.lasts_s)]
    happens += [at for life in plan.pods for at in (life.made_at, life.removed_at) if at is not None]
    few = dice.sample(happens, min(len(happens), dice.choice(MOMENTS)))
    moments = _Moments(dice, few, dice.choice(WIDTHS_S), plan.faults_until)
    share = dice.choice(FAULTS_MOVED)
    faults = [fault if fault.kind in APART or dice.random() >= share else moments.fault(fault) for fault in plan.faults]
    return replace(
        plan,
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        pods=tuple(moved(life, dice, moments.time) for life in plan.pods),
    )
