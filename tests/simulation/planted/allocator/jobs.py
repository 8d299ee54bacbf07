"""Bugs about jobs, planted on purpose: what is granted together or not at all."""

from typing import Any

from simulation.judges.jobs import with_jobs
from simulation.plans.plan import Plan
from simulation.planted.bug import Bugs, PlantedBug, always

from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.gangs import reconcile as groups
from sluice_allocator.core.gangs.gang import PartyStatus

JOB_BUGS = Bugs()


def _all_jobs(plan: Plan) -> Plan:
    return with_jobs(plan, 1.0)


@JOB_BUGS.plant("trial left booked", "I4", SchedulerContext, "drop_trial", _all_jobs)
def _trial_left(_original: Any, self: Any) -> None:
    """What a trial has found stays booked in this process when the last one has no place.
    Loses capacity, for as long as the allocator runs."""
    self.gangs.trial = None


JOB_BUGS += [
    PlantedBug(
        "group bound one by one",
        "GPUs, to pods that wait for the rest of their job",
        ("together",),
        ((PartyStatus, "may_start", property(always(True))),),
        _all_jobs,
    ),
]

HALF_KEPT = PlantedBug(
    "half a group kept",
    "capacity, to two jobs that wait for each other",
    ("I4",),
    ((groups, "_is_given_up", always(False)),),
)
"""Rare among seeds: `test_jobs` plays it."""

ONE_TOO_MANY = PlantedBug(
    "surplus group member waits",
    "an update: the pod that comes before another one goes is never served",
    ("I4",),
    ((groups, "_runs_whole", always(False)),),
)
"""The same."""
