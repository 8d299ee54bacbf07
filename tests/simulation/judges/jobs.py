"""Jobs: pods granted together or not at all. Which pods of a seed form one, and what must hold.

The judge knows a job from its pods' manifests, and its slices from agents. It does not know the search order, so it
demands only what is certain: no pod is bound before there was a slice for each; and when all is calm, no pod waits for
a job that would fit whole.
"""

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from simulation.judges.books import Books
from simulation.judges.gpu_tables import GpuRow, ProfileRow, Span, fits_in, overlap
from simulation.judges.share_limits import Held
from simulation.judges.shared_devices import instances_of
from simulation.plans.pods import Ask, Device, Pod, Terms
from simulation.world.hardware import OPERATOR, Gpu

from sluice.contracts.bus.events import Write
from sluice.contracts.messages import AllocationRequested, Bound

if TYPE_CHECKING:
    from simulation.plans.plan import Plan, PodLife

JOB_SEEDS = 0.3
"""In so many seeds some pods are of jobs."""
SURGES = 0.3
"""Of the jobs of a seed, so many get one more pod while they run, as a Deployment does when its template changes."""
SURGES_UNTIL_S = 36.0
"""Before the last faults end, and everything is to be calm."""
JOBS = 4
SIZES = (2, 2, 3, 3, 4)
PROFILES = ("1g.5gb", "2g.10gb", "3g.20gb", "3g.20gb", "4g.20gb", "7g.40gb", "7g.40gb")
GROUP, SIZE = "sluice.dev/group", "sluice.dev/group-size"
TOGETHER_S = 4.0
"""A controller makes the pods of one job within so long."""


def of_job(name: str, size: int, profile: str) -> Ask:
    """What each pod of a job asks for: one slice, together with the others."""
    keys = (("sluice.dev/profile", profile), (GROUP, name), (SIZE, str(size)))
    return Ask(keys, ("main",), (Device("profile", profile=profile),))


def with_jobs(plan: "Plan", seeds: float = JOB_SEEDS) -> "Plan":
    """In some seeds some pods are of jobs: drawn apart, so that all else of a seed stays what it is without."""
    dice = Random(f"jobs {plan.seed}")
    if dice.random() >= seeds or any(job_of(life.pod) is not None for life in plan.pods):
        return plan
    lives = list(plan.pods)
    free, later = list(range(len(lives))), Random(f"surges {plan.seed}")
    for number in range(dice.randint(1, JOBS)):
        size = dice.choice(SIZES)
        if size > len(free):
            break
        chosen, free = free[:size], free[size:]
        ask, begins = of_job(f"job-{number}", size, dice.choice(PROFILES)), lives[chosen[0]].made_at
        ends = lives[chosen[0]].removed_at
        for each in chosen:
            lives[each] = _life(lives[each], ask, begins + dice.uniform(0.0, TOGETHER_S), ends, dice)
        if dice.random() < 0.4:  # one pod of it is retried: deleted, and created again under another UID
            lives.append(_retry(lives[chosen[-1]], dice))
            lives[chosen[-1]] = replace(lives[chosen[-1]], removed_at=lives[-1].made_at - 0.5)
        if later.random() < SURGES:
            lives.append(_surge(lives[chosen[0]], later))
    return replace(plan, pods=tuple(lives))


def _life(life: "PodLife", ask: Ask, made_at: float, ends: float | None, dice: Random) -> "PodLife":
    pod = replace(life.pod, ask=ask, namespace="lab", user=None)
    removed = max(ends, made_at) + dice.uniform(0.1, 1.0) if ends is not None else None
    return replace(life, pod=pod, made_at=made_at, edited_at=None, edit=None, removed_at=removed)


def _retry(life: "PodLife", dice: Random) -> "PodLife":
    made = life.made_at + dice.uniform(1.0, 8.0)
    return replace(life, pod=replace(life.pod, name=f"{life.pod.name}-again"), made_at=made)


def _surge(life: "PodLife", dice: Random) -> "PodLife":
    made = min(life.made_at + dice.uniform(5.0, 30.0), SURGES_UNTIL_S)
    surge = life.coming_at(made, life.removed_at)
    return replace(surge, pod=replace(life.pod, name=f"{life.pod.name}-surge"))


def job_of(pod: Pod) -> tuple[str, str, int] | None:
    """Namespace, name and size of the job that a pod is of."""
    said = dict(pod.ask.annotations)
    return (pod.namespace, said[GROUP], int(said[SIZE])) if GROUP in said else None


def whole_job(pod: Pod, row: GpuRow, *, mig: bool) -> tuple[int, int, int] | None:
    """The most that all pods of a pod's job count on such GPUs, as `Pod.counts_on`."""
    job, one = job_of(pod), pod.counts_on(row, mig)
    return (one[0] * job[2], one[1] * job[2], one[2] * job[2]) if job is not None and one is not None else one


class JobJudge:
    """Observes what lands on the bus, after the judge did."""

    def __init__(self, judge: Books) -> None:
        self.judge = judge
        self.begun: dict[str, None] = {}
        """Requests that were bound, ever."""

    def landed(self, write: Write, _sequence: int) -> None:
        """No pod is bound before every pod of its job had a slice; pods that come later may be."""
        bound = write.message
        if not isinstance(bound, Bound):
            return
        asked = self.judge.requests.get(bound.request)
        if asked is not None and asked.group is not None:
            job = [request for request, other in self.judge.requests.items() if _are_together(other, asked)]
            ready = {self.judge.bookings[each].request for each in self.judge.ready if each in self.judge.bookings}
            has_begun = any(request in self.begun for request in job)
            if not has_begun and len(ready.intersection(job)) < asked.group.size:
                text = f"{bound.request} is bound, and of its job only {sorted(ready.intersection(job))} had a slice"
                self.judge.fail("together", text)
        self.begun[bound.request] = None

    def may_wait(self, pod: Pod, pods: list[Pod], usable: dict[str, list[Gpu]]) -> bool | None:
        """Whether a pod may wait for its job now that all is calm; None without a job, or when its job has begun."""
        job = job_of(pod)
        if job is None:
            return None
        sisters = [other.name for other in pods if job_of(other) == job]
        living = [
            request
            for request, asked in self.judge.requests.items()
            if asked.name in sisters and request not in self.judge.ended
        ]
        if sum(request in self.judge.bound for request in living) >= job[2]:
            return None
        if len(sisters) > job[2]:
            return True  # who of them is too many is not for the judge to say
        if any(request in self.judge.bound for request in living):
            return None
        if len(sisters) < job[2]:
            return True
        profile = pod.ask.devices[0].profile
        room = sum(_how_many(gpu, self.judge.held(node), profile) for node, gpus in usable.items() for gpu in gpus)
        return room < job[2] or any(other.terms != Terms() for other in pods)


def _are_together(one: AllocationRequested, other: AllocationRequested) -> bool:
    return (one.namespace, one.group) == (other.namespace, other.group)


def _how_many(gpu: Gpu, held: list[Held], name: str) -> int:
    """How many more instances of a profile fit on a GPU beside what is held there."""
    row = gpu.row.profile(name)
    if not gpu.mig or row is None:
        return 0
    if gpu.layout is not None:
        on_gpu = [one.span for one in held if one.gpu == gpu.uuid]
        free = [at for at, span in gpu.layout if at == name and not any(overlap(span, other) for other in on_gpu)]
        return len(free)
    there = instances_of(held, gpu.uuid)
    there += [(one.profile.name, one.span) for one in gpu.instances.values() if one.maker == OPERATOR]
    return _most(gpu, there, row)


def _most(gpu: Gpu, there: list[tuple[str, Span]], row: ProfileRow) -> int:
    found = 0
    for span in sorted(row.placements, reverse=True):
        if fits_in(gpu.row, there, row, span):
            there = [*there, (row.name, span)]
            found += 1
    return found
