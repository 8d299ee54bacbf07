"""The ways in which the plan of a seed may be varied from the command line, so that each is said and recorded alike.

It draws nothing itself.
"""

from dataclasses import dataclass

from simulation.judges.time_quota import with_time
from simulation.plans.coincidences import with_coincidences
from simulation.plans.neighbours import neighbour
from simulation.plans.plan import SIZES, SMALL_SIZES, Plan, draw_plan, with_cluster
from simulation.plans.storms import with_storms


@dataclass(frozen=True, slots=True)
class Variant:
    """`without` leaves kinds of faults out; the others are what they say (`command._options`)."""

    without: tuple[str, ...] = ()
    cluster: bool = False
    timed: bool = False
    stormy: bool = False
    coinciding: bool = False
    near: bool = False
    small: bool = False

    def plan(self, seed: int) -> Plan:
        """The plan of a seed. Raises PlanFileError when it is near one that is kept, and that cannot be read."""
        if self.near:
            return neighbour(seed)
        plan = draw_plan(seed, self.without, SMALL_SIZES if self.small else SIZES)
        plan = with_time(plan) if self.timed else plan
        plan = with_cluster(plan, self.without) if self.cluster else plan
        plan = with_storms(plan) if self.stormy else plan
        return with_coincidences(plan) if self.coinciding else plan


PLAIN = Variant()
