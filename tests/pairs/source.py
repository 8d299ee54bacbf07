"""The source of pods: requests, binds, evicts, each read a little late; evicted pods come again under other names."""

from dataclasses import dataclass
from random import Random

from pairs.bus import Bus, Reader
from pairs.judge import Judge
from pairs.plan import PodSpec

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Entry, Stream
from sluice.contracts.ids import RequestId, RunId, SourceName

FOLDER = SourceName("folder")
CLOSING_TTL_S = 4 * 3600
BLOCKED = 0.25
"""The part of evictions that a disruption budget is against for a while."""
BLOCKED_TIMES = 8


@dataclass(slots=True)
class Pod:
    """One pod, from its coming until its request is closed."""

    uid: RequestId
    spec: PodSpec
    generation: int
    revision: int = 1
    held: msg.Held | None = None
    over: str = ""
    """Why it is gone; empty while it lives."""
    over_at: float = float("inf")
    is_closed: bool = False
    is_ordered_out: bool = False
    is_out: bool = False


class Source:
    """All pods of a world."""

    def __init__(self, bus: Bus, judge: Judge, dice: Random) -> None:
        self.pods: dict[RequestId, Pod] = {}
        self.troubled = True
        """Whether pods end by themselves, and evictions are held up."""
        self.is_closing = False
        self._bus = bus
        self._judge = judge
        self._dice = dice
        self._state = bus.values.incarnation(Stream.STATE)
        synced = msg.SourceSynced(source=FOLDER, run=RunId("w1"), epoch=1, count=0, incarnation=self._state)
        bus.put(subjects.source(FOLDER), synced)
        late_by = lambda: dice.uniform(0.005, 0.1)  # noqa: E731
        Reader(bus, Stream.BOOK, ("sluice.binding.>",), late_by, self._bound)
        Reader(bus, Stream.STATE, ("sluice.eviction.>",), late_by, self._ordered)

    def alive(self) -> list[Pod]:
        """Pods that are not over."""
        return [each for each in self.pods.values() if not each.over]

    def named(self, name: str) -> list[Pod]:
        """The living pods of a name: the first, or one that came in its stead."""
        return [each for each in self.alive() if each.spec.name == name]

    def create(self, spec: PodSpec, generation: int = 0) -> None:
        uid = RequestId(f"{spec.name}-{generation}")
        pod = self.pods[uid] = Pod(uid, spec, generation)
        self._say(pod)

    def edit(self, pod: Pod, spec: PodSpec) -> None:
        """A pod that has nothing yet asks for something else."""
        if pod.held is None:
            pod.spec = spec
            pod.revision += 1
            self._say(pod)

    def end(self, pod: Pod, cause: str = "pod gone", *, again: bool = False) -> None:
        """A pod is over; `again`: another comes in its stead."""
        if pod.over:
            return
        pod.over, pod.over_at = cause, self._bus.now
        self._say(pod)
        if again:
            self._bus.clockwork.after(self._dice.uniform(0.05, 1.0), lambda: self._come_again(pod))

    def _come_again(self, pod: Pod) -> None:
        if not self.is_closing:
            self.create(pod.spec, pod.generation + 1)

    def _say(self, pod: Pod) -> None:
        address, spec = subjects.request(pod.uid), pod.spec
        if pod.over:
            gone = msg.RequestWithdrawn(
                revision=pod.revision, source=FOLDER, cause=pod.over, held=pod.held, closing=pod.is_closed
            )
            self._bus.put(address, gone, CLOSING_TTL_S if pod.is_closed else None)
            return
        asked = msg.AllocationRequested(
            revision=pod.revision,
            source=FOLDER,
            namespace=spec.namespace,
            name=pod.uid,
            origin=f"{pod.uid}.yaml",
            owner=pod.uid,
            claims=spec.claims,
            priority=spec.priority,
            leeway=msg.Leeway(preemptible=spec.preemptible, movable=spec.movable, substitute=spec.substitute),
            group=msg.PodGroup(name=spec.group, size=spec.group_size) if spec.group else None,
            held=pod.held,
            preempts=spec.preempts,
            incarnation=self._state,
        )
        self._bus.put(address, asked)

    def _bound(self, entry: Entry) -> None:
        message = entry.message
        pod = self.pods.get(getattr(message, "request", RequestId("")))
        if pod is not None and isinstance(message, msg.Released):
            self.end(pod, again=True)
            if not pod.is_closed:
                pod.is_closed = True
                self._say(pod)
        elif pod is not None and isinstance(message, msg.Bound) and not pod.over:
            if pod.held is not None:
                self._judge.binds(pod.held.allocation, message)
            elif message.request_revision < pod.revision:
                self.end(pod, again=True)
            else:
                pod.held = msg.Held(node=message.node, allocation=message.allocation)
                self._say(pod)
                if pod.spec.life_s is not None:
                    self._bus.clockwork.after(pod.spec.life_s, lambda: self._completes(pod))

    def _completes(self, pod: Pod) -> None:
        if self.troubled:
            self.end(pod, "containers ended")

    # -- evictions -------------------------------------------------------------------------------------------------

    def _ordered(self, entry: Entry) -> None:
        message = entry.message
        pod = self.pods.get(getattr(message, "request", RequestId("")))
        if pod is not None and isinstance(message, msg.EvictionOver):
            pod.is_ordered_out = False
        elif pod is not None and isinstance(message, msg.EvictionOrdered):
            pod.is_ordered_out = True
            blocked = BLOCKED_TIMES if self.troubled and self._dice.random() < BLOCKED else 0
            self._bus.clockwork.after(self._dice.uniform(0.1, 1.0), lambda: self._evict(pod, blocked))

    def _evict(self, pod: Pod, blocked: int) -> None:
        if not pod.is_ordered_out or pod.is_out:
            return
        if blocked and self.troubled and not pod.over:
            self._bus.put(subjects.evicted(pod.uid), msg.EvictionBlocked(request=pod.uid, why="budget"))
            self._bus.clockwork.after(1.0, lambda: self._evict(pod, blocked - 1))
            return
        pod.is_out = True
        self._bus.put(subjects.evicted(pod.uid), msg.EvictionDone(request=pod.uid))
        if not pod.over:
            self._judge.evicts(pod.uid, pod.spec.name)
            self._bus.clockwork.after(self._dice.uniform(0.0, 1.5), lambda: self.end(pod, again=True))
