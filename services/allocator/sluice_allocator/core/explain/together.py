"""What would become of several pods if they asked now, one after another. Nothing stays booked."""

from collections.abc import Sequence

from sluice_allocator.core.context import SchedulerContext
from sluice_allocator.core.explain.status import PodAsked, Simulated, simulate
from sluice_allocator.core.placement.search.trial_pods import TrialPods


def simulate_together(ctx: SchedulerContext, pods: Sequence[PodAsked]) -> list[Simulated]:
    """Each beside those before it that would be bound; one that would evict others takes nothing from the next."""
    answers: list[Simulated] = []
    refused: PodAsked | None = None
    with TrialPods(ctx.cluster.peers) as trial:
        try:
            for pod in pods:
                if pod == refused:  # nothing was taken since
                    answers.append(answers[-1])
                    continue
                answer, place = simulate(ctx, pod)
                answers.append(answer)
                refused = pod if place is None else None
                if place is not None:
                    trial.book(ctx.cluster, *place)
        finally:
            trial.unbook(ctx.cluster)
    return answers
