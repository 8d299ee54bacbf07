"""The faults of a seed in a few storms: what goes wrong comes at once, and pods come and go in the midst of it.

Drawn evenly over the time of a seed, faults seldom meet: what only shows when a broker is wiped twice within a second
takes tens of thousands of seeds to be found. It adds no fault, so what no plan may hold it does not hold either.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from simulation.plans.plan import Fault, Plan, PodLife

STORMS_MAX = 3
WIDTH_S = 2.0
"""What is drawn into a storm happens within so much of it, before or after."""
FAULTS_IN_STORMS = 0.75
PODS_IN_STORMS = 0.4
APART = frozenset({"node removed"})
"""Kinds whose time says what may be beside them (`plan.removing`); with lost identities nothing is moved at all."""


@dataclass(frozen=True, slots=True)
class _Storms:
    dice: Random
    centres: tuple[float, ...]

    def time(self) -> float:
        return max(0.2, self.dice.choice(self.centres) + self.dice.uniform(-WIDTH_S, WIDTH_S))

    def fault(self, fault: Fault) -> Fault:
        """The same fault, perhaps at another time."""
        if fault.kind in APART or self.dice.random() >= FAULTS_IN_STORMS:
            return fault
        return replace(fault, at=self.time())


def moved(life: PodLife, dice: Random, time: Callable[[], float]) -> PodLife:
    """The same pod, which perhaps comes or goes at such a time.

    It comes as it did beside the others of its job, and is edited as long after that as it was.
    """
    is_of_a_job = any("group" in key for key, _ in life.pod.ask.annotations)
    comes = life.made_at if is_of_a_job or dice.random() >= PODS_IN_STORMS else time()
    removed = life.removed_at + comes - life.made_at if life.removed_at is not None else None
    if removed is not None and dice.random() < PODS_IN_STORMS:
        removed = time()
    return life.coming_at(comes, removed)


def with_storms(plan: Plan) -> Plan:
    """The same plan with most faults, and some pods' comings and goings, moved into storms."""
    if any(fault.kind == "identities lost" for fault in plan.faults):
        return plan
    dice = Random(f"storms {plan.seed}")
    centres = tuple(dice.uniform(4.0, plan.faults_until - 8.0) for _ in range(dice.randint(1, STORMS_MAX)))
    storms = _Storms(dice, centres)
    faults = sorted((storms.fault(fault) for fault in plan.faults), key=lambda fault: fault.at)
    return replace(plan, faults=tuple(faults), pods=tuple(moved(life, dice, storms.time) for life in plan.pods))
