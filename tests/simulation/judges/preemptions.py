"""Pods of several priorities that may be evicted for each other: which they are, who evicts them, what must be so.

The evictor plays the API server and the controllers behind it: it evicts a pod that is ordered to go, unless a
disruption budget is in the way, which some pods have for a while; and the controller makes another in its place. The
judge knows the pods as they were written, the ledger and the orders, and uses no code of the system but its messages.
"""

from dataclasses import dataclass, replace
from math import inf
from random import Random
from typing import TYPE_CHECKING

from factories.words import write_of
from simulation.judges.books import Books
from simulation.judges.quotas import QuotaSaid
from simulation.plans.pods import Pod
from simulation.world.broker import Answer, Broker
from simulation.world.manifest_folder import Folder

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Stream, Write
from sluice.contracts.ids import RequestId

if TYPE_CHECKING:
    from simulation.plans.plan import Plan, PodLife
    from simulation.world.world import World

PREEMPTING_SEEDS = 0.4
"""In so many seeds pods have priorities, and may be evicted for each other."""
GUARANTEED_PODS = 0.3
PATIENT_PODS = 0.2
"""Pods for which others are evicted, but which never evict, however high their priority."""
PRIORITY, PREEMPTIBLE, GROUP = "sluice.dev/priority", "sluice.dev/preemptible", "sluice.dev/group"
ORDER_IS_LATE_S = 25.0
"""An order may land so long after its grant was revoked, from a paused process."""
CLONES_MAX = 2
"""How often a controller recreates a pod, so that a seed ends."""


def with_preemptions(plan: "Plan", seeds: float = PREEMPTING_SEEDS) -> "Plan":
    """In some seeds some pods have priorities: drawn apart, so that all else of a seed stays what it is without."""
    dice = Random(f"preemptions {plan.seed}")
    if dice.random() >= seeds:
        return plan
    others = 0.0 if plan.quotas else GUARANTEED_PODS
    pods = tuple(replace(life, pod=_ranked(life.pod, dice, others)) for life in plan.pods)
    patient = Random(f"never preempting {plan.seed}")
    pods = tuple(_patient(life, patient) for life in pods)
    if plan.quotas:
        return replace(plan, pods=pods)
    guaranteed = QuotaSaid(0.0, "den", guaranteed=(dice.choice((1, 2, 3)), None, None))
    return replace(plan, pods=pods, quotas=(guaranteed,))


def _patient(life: "PodLife", dice: Random) -> "PodLife":
    """The same, which may never have another evicted for it if it is of those."""
    never, ranked = dice.random() < PATIENT_PODS, any(key == PRIORITY for key, _ in life.pod.ask.annotations)
    return replace(life, pod=replace(life.pod, preempts=False)) if never and ranked else life


def _ranked(pod: Pod, dice: Random, others: float) -> Pod:
    """The same pod with a priority, if it may be had; so many of them in a namespace that is guaranteed something."""
    priority, goes, is_other = dice.choice((0, 0, 1, 1, 2, 5)), dice.random() < 0.6, dice.random() < others
    keys = {key for key, _ in pod.ask.annotations}
    if pod.ask.end != "bound" or PRIORITY in keys or any(key.startswith(GROUP) for key in keys):
        return pod
    more = ((PRIORITY, str(priority)), *(((PREEMPTIBLE, "true"),) if goes else ()))
    namespace = "den" if is_other else pod.namespace
    return replace(pod, namespace=namespace, ask=replace(pod.ask, annotations=(*pod.ask.annotations, *more)))


def folder_evicts(seed: int) -> bool:
    """In half of the seeds the folder's pod-watcher carries out orders itself; in the others the evictor does."""
    return Random(f"who evicts {seed}").random() < 0.5


# -- who evicts -------------------------------------------------------------------------------------------------------


class Evictor:
    """Carries out orders to evict; a budget blocks it for some pods until faults stop, for others now and then."""

    def __init__(self, world: "World") -> None:
        """Start without evictions."""
        self._world = world
        self._broker: Broker = world.broker
        self._folder: Folder = world.folder
        self._dice = Random(f"evictor {world.plan.seed}")
        self._blocked: dict[str, bool] = {}
        self._busy: dict[str, None] = {}
        self._numbered = 0
        self._clones: dict[str, int] = {}

    def landed(self, write: Write, _sequence: int) -> None:
        """An order was written, or a pod is asked for (again) that is ordered to go: it is taken up soon."""
        if self._world.watcher.evicts or not isinstance(write.message, (msg.EvictionOrdered, msg.AllocationRequested)):
            return
        request = write.subject.rpartition(".")[2]
        ordered = self._word(subjects.eviction(RequestId(request)).subject)
        if self._stands(ordered) and request not in self._busy:
            self._busy[request] = None
            self._later(request)

    def started(self) -> None:
        """The broker is back, and may have lost its latest messages: orders may stand again, and are read again."""
        if self._world.watcher.evicts:
            return
        values = self._broker.values
        there = values.values_after(Stream.STATE, 0, self._world.clockwork.now) if values.has(Stream.STATE) else []
        for value in there:
            message = value.entry.message
            if isinstance(message, msg.EvictionOrdered) and self._stands(message) and message.request not in self._busy:
                self._busy[message.request] = None
                self._later(message.request)

    def _stands(self, word: msg.AnyMessage | None) -> bool:
        return isinstance(word, msg.EvictionOrdered) and self._world.judge.is_of_this_life(word)

    def _later(self, request: str) -> None:
        self._world.clockwork.after(self._dice.uniform(0.1, 2.0), lambda: self._try(request))

    def _try(self, request: str) -> None:
        """Evict the pod if the order still stands; try again while a budget is in the way, or nothing can be read."""
        if not self._broker.up:
            self._later(request)
            return
        asked = self._word(subjects.request(RequestId(request)).subject)
        ordered = self._word(subjects.eviction(RequestId(request)).subject)
        if not self._stands(ordered) or not isinstance(asked, msg.AllocationRequested):
            del self._busy[request]
            return
        if asked.name not in self._folder.pods:
            del self._busy[request]
            self._say(request, msg.EvictionDone(request=RequestId(request)))
        elif self._is_blocked(request):
            self._say(request, msg.EvictionBlocked(request=RequestId(request), why="the budget allows none"))
            self._later(request)
        else:
            del self._busy[request]
            self._say(request, msg.EvictionDone(request=RequestId(request)))
            self.evict(asked.name)

    def _is_blocked(self, request: str) -> bool:
        if self._world.clockwork.now >= self._world.plan.faults_until:
            return False
        for_long = self._blocked.setdefault(request, self._dice.random() < 0.3)
        return for_long or self._dice.random() < 0.2

    def evict(self, name: str) -> None:
        """The pod is deleted, and its controller creates another one in its place."""
        pod = self._folder.pods[name]
        self._world.trace.tell("folder", "pod evicted", name)
        self._world.remove(name)
        base = name.partition("-again-")[0]
        clone = self._clones.get(base, 0) + 1
        self._clones[base] = clone
        if clone <= CLONES_MAX and self._world.clockwork.now < self._world.plan.faults_until:
            again = replace(pod, name=f"{base}-again-{clone}")
            self._world.clockwork.after(self._dice.uniform(0.1, 1.0), lambda: self._make(again))

    def _make(self, pod: Pod) -> None:
        if self._world.clockwork.now < self._world.plan.faults_until:
            self._world.trace.tell("folder", "pod recreated", pod.name)
            self._folder.put(pod, self._world.clockwork.now)

    def _word(self, subject: str) -> object:
        last = self._broker.values.last(subject, self._world.clockwork.now)
        return last.message if last is not None else None

    def _say(self, request: str, outcome: msg.EvictionDone | msg.EvictionBlocked) -> None:
        address = subjects.evicted(RequestId(request))
        last = self._broker.values.last(address.subject, self._world.clockwork.now)
        if self._broker.values.incarnation(Stream.STATE) is None:
            return
        self._numbered += 1
        write = write_of(address, outcome, last, f"evictor-{self._numbered}")
        self._broker.write("evictor", write, _nothing)


def _nothing(_answer: Answer) -> None:
    """Whether it was observed does not matter: what counts is that the pod is gone."""


# -- the judge --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rank:
    """What a pod said of itself."""

    priority: int
    preemptible: bool
    preempts: bool


class PreemptionJudge:
    """Observes what lands on the bus, after the judge did."""

    def __init__(self, judge: Books) -> None:
        """Start without evictions."""
        self._judge = judge
        self._ranks: dict[str, dict[Rank, float]] = {}
        """What each request said of itself, with until when it did."""
        self._stood_until: dict[str, float] = {}
        """Per request, until when a grant was known to stand in the place that it is evicted from."""

    def landed(self, write: Write, _sequence: int) -> None:
        """A value is the last one of its subject now."""
        match write.message:
            case msg.AllocationRequested() as asked:
                self._rank(write.subject.rpartition(".")[2], asked)
            case msg.Grant() as grant if grant.evict and not grant.adopted:
                self._granted(grant)
            case msg.Revoke() | msg.Closed() as entry:
                self._ended(entry)
            case msg.EvictionOrdered() as ordered if self._judge.is_of_this_life(ordered):
                self._judge.sent_away[ordered.request] = None
                self._ordered(ordered.request)
            case _:
                pass

    def _rank(self, request: str, asked: msg.AllocationRequested) -> None:
        """A request says what its pod's text says, or said: an edit that is refused leaves the pod as it was."""
        said = [_rank_of(pod) for pod in self._judge.folder.written.get(asked.name, ())]
        if not said:
            return
        rank = Rank(asked.priority, asked.leeway.preemptible, asked.preempts)
        now, ranks = self._judge.clockwork.now, self._ranks.setdefault(request, {})
        for before, until in ranks.items():
            ranks[before] = min(until, now)
        ranks[rank if rank in said else said[-1]] = inf

    def _ranks_of(self, request: str) -> list[Rank]:
        now = self._judge.clockwork.now
        return [rank for rank, until in self._ranks.get(request, {}).items() if now - until <= ORDER_IS_LATE_S]

    def _granted(self, grant: msg.Grant) -> None:
        """Evicted pods have a lower priority and opted in; no pod is evicted for one that never preempts."""
        booking = grant.booking
        asks = self._ranks_of(booking.request)
        mine = max((rank.priority for rank in asks), default=None)
        for allocation in grant.after:
            victim = self._judge.bookings.get(allocation)
            if victim is None or victim.request == booking.request:
                continue
            ranks = self._ranks_of(victim.request)
            if not ranks or mine is None or self._is_kept(victim):
                continue
            if not any(rank.preempts for rank in asks):
                self._judge.fail("never preempts", f"{victim.request} goes for {booking.request}, which only waits")
            least = min((rank.priority for rank in ranks if rank.preemptible), default=None)
            if least is None:
                self._judge.fail("twice opt-in", f"{victim.request} goes for {booking.request} and never said it may")
            elif least >= mine:
                text = f"{victim.request} of {least} goes for {booking.request} of {mine}"
                self._judge.fail("less important", text)
        if not grant.after:
            self._judge.fail("place first", f"{booking.allocation} evicts, and waits for none")

    def _is_kept(self, victim: msg.Booking) -> bool:
        """Whether a place is kept for a moved pod's replacement: after its own slice. No pod is on it."""
        after = [self._judge.bookings.get(each) for each in self._judge.after.get(victim.allocation, ())]
        return bool(after) and all(each is not None and each.request == victim.request for each in after)

    def _ended(self, entry: msg.Revoke | msg.Closed) -> None:
        """A grant that evicted does not stand any more: orders that follow from it may still be on their way."""
        allocation = entry.booking.allocation if isinstance(entry, msg.Revoke) else entry.allocation
        for each in self._judge.after.get(allocation, ()):
            victim = self._judge.bookings.get(each)
            if victim is not None:
                self._stood_until[victim.request] = self._judge.clockwork.now

    def _ordered(self, request: str) -> None:
        """No eviction without a booked place that it is for."""
        stands = any(
            isinstance(entry, msg.Grant) and entry.evict and self._is_for(entry, request)
            for book in self._judge.ledger.values()
            for entry in book.values()
        )
        ended = self._stood_until.get(request, -1e9)
        late = self._judge.clockwork.now - ended <= ORDER_IS_LATE_S
        others = self._judge.is_drained(request) or self._judge.lost_what_it_held(request, ORDER_IS_LATE_S)
        if not (stands or late or others):
            self._judge.fail("place first", f"{request} is ordered to be evicted, and no place is booked for that")

    def _is_for(self, grant: msg.Grant, request: str) -> bool:
        victims = (self._judge.bookings.get(each) for each in grant.after)
        return any(victim is not None and victim.request == request for victim in victims)

    def wiped(self) -> None:
        """The broker forgot its ledger: what was ordered by it may still come."""
        now = self._judge.clockwork.now
        self._stood_until = dict.fromkeys(self._ranks, now)


def _rank_of(pod: Pod) -> Rank:
    keys = dict(pod.ask.annotations)
    return Rank(int(keys.get(PRIORITY, "0")), keys.get(PREEMPTIBLE) == "true", pod.preempts)
