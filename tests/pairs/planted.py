"""Bugs that allocators once had, planted again: proof that the judge finds them."""

from typing import Any

from msgspec.structs import replace
from pairs.plan import Comes, Goes, Plan, PodSpec
from pairs.worlds import draw_plan
from simulation.planted.bug import PlantedBug

from sluice.contracts.messages import Claim, Grant
from sluice_allocator.core import changes
from sluice_allocator.core.gangs import trial
from sluice_allocator.core.queue.capacity_offers import CapacityOffers
from sluice_allocator.core.request import reconcile
from sluice_allocator.core.serve import offers


def _ended_before_it_was_answered(_original: Any, ctx: Any, allocation: Any, entry: Any) -> bool:
    """What is counted, and was overwritten before the own write was answered, is counted for ever."""
    waits = isinstance(entry, Grant) and bool(entry.after)
    return waits or allocation in ctx.facts.promises or allocation in ctx.facts.unpromised


def _alike_in_a_job(original: Any, request: Any, *, limited: bool = False) -> bytes:
    """A pod of a job is the first of its shape: it gets no reservation, nor does any pod behind it."""
    return original(replace(request, group=None), limited=limited)


def _woken_by_itself(original: Any, self: Any, node: Any, *, as_before: bool = False) -> None:
    """What a trial in vain gives back is offered to the group that had found it."""
    original(self, node)


def _never_is_ignored(original: Any, ctx: Any, request: Any, asked: Any, **named: Any) -> Any:
    """Others are evicted for a pod that said it only waits."""
    return original(ctx, request, replace(asked, preempts=True), **named)


_WHOLE = (Claim(container="main", profile="7g.40gb"),)
_TWO_GPUS = (("a100-40gb", "a100-40gb"),)


def _of_job(name: str) -> Comes:
    return Comes(PodSpec(name, _WHOLE, group="job", group_size=2))


BEHIND_A_JOB = Plan(
    seed=0,
    nodes=_TWO_GPUS,
    promise_after_s=2.0,
    steps=(
        (0.5, _of_job("j0")),
        (0.5, _of_job("j1")),
        (3.0, Comes(PodSpec("tenant", _WHOLE))),
        (4.0, Goes("j1", again=True)),
        (8.0, Comes(PodSpec("single", _WHOLE))),
    ),
)
"""Of a job of two one runs; the other is made again and waits, for a tenant has its place, and so does a single pod."""
NO_PLACE_FOR_TWO = Plan(
    seed=0,
    nodes=_TWO_GPUS,
    promises_percent=0,
    group_steps=1,
    steps=((0.5, Comes(PodSpec("tenant", _WHOLE))), (24.9, _of_job("j0")), (24.9, _of_job("j1"))),
)
"""A job of two waits where one GPU is free, and a trial of it takes several events."""
PATIENT = Plan(
    seed=0,
    nodes=_TWO_GPUS,
    promises_percent=0,
    steps=(
        (0.5, Comes(PodSpec("one", _WHOLE, preemptible=True))),
        (0.5, Comes(PodSpec("two", _WHOLE, preemptible=True))),
        (4.0, Comes(PodSpec("patient", _WHOLE, priority=2, preempts=False))),
    ),
)
"""Both GPUs have tenants who may go, and one more important pod that only waits."""

BUGS = (
    (
        PATIENT,
        PlantedBug(
            name="never is ignored",
            loses="a pod, to one that said it only waits",
            caught_by=("never preempts",),
            patches=((offers, "_evict_for", _never_is_ignored),),
        ),
    ),
    (
        draw_plan(201),
        PlantedBug(
            name="promises counted for ever",
            loses="every promise: the limit of its model is used up by one that is over",
            caught_by=("promises counted",),
            patches=((changes, "is_about_promises", _ended_before_it_was_answered),),
        ),
    ),
    (
        BEHIND_A_JOB,
        PlantedBug(
            name="alike in a job",
            loses="a place: a pod behind one of a running job gets no reservation and evicts no pod",
            caught_by=("promised nothing",),
            patches=tuple((where, "shape_of", _alike_in_a_job) for where in (reconcile, offers, trial)),
        ),
    ),
    (
        NO_PLACE_FOR_TWO,
        PlantedBug(
            name="woken by itself",
            loses="a processor: a job without a place is tried without end",
            caught_by=("spins",),
            patches=((CapacityOffers, "freed", _woken_by_itself),),
        ),
    ),
)
"""In which world each is found."""
