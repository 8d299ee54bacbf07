"""Runs a workload through the production core: each line becomes a source's message, each relevant write an answer. All
consequences of a line are processed before the next is read. Without a queue, a pod that the core would let wait
withdraws its request at once, as any client could."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.fleet_file.empty_snapshots import empty_snapshot, host_facts
from sluice.contracts.fleet_file.fleet_spec import FleetSpec
from sluice.contracts.ids import AllocationId, RequestId, RunId
from sluice.contracts.reasons import Refusal
from sluice.contracts.request_syntax import RequestLimits
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.placement import PlacementConfig
from sluice_allocator.offline.answer_writer import AnswerWriter
from sluice_allocator.offline.perfect_cluster import PerfectCluster
from sluice_allocator.offline.pod_requests import WORKLOAD, Policies, request_of
from sluice_allocator.offline.workload import Arrival, Departure, Step, WorkloadError

UNBOUNDED = 1 << 62
NO_PLACE_NOW = "NoPlaceNow"  # refusal reason of a pod that would have to wait, when there is no queue
NOTHING_ASKED = "NothingAsked"
NOTHING_HELD = "NothingHeld"
EVICTED = "Evicted"  # why a pod left before its departure line


@dataclass(slots=True)
class _Pod:
    name: str
    request: RequestId
    granted: dict[AllocationId, msg.Booking] = field(default_factory=dict)  # a place, perhaps after a reserved one
    booking: msg.Booking | None = None  # its bound place
    bound: bool = False
    waiting: bool = False
    quiet: bool = False  # its end gets no answer: it was refused
    evicted: str = ""  # why it was evicted; empty if it was not


class Simulation:
    """One run over one fleet."""

    def __init__(
        self,
        fleet: FleetSpec,
        answers: AnswerWriter,
        *,
        policies: Policies,
        queue: bool,
        rules: SchedulerConfig | None = None,
    ) -> None:
        self._answers, self._policies, self._queue = answers, policies, queue
        rules = rules or rules_for(fleet)
        self._limits = RequestLimits(max_gpus_per_node=rules.max_gpus_per_node)
        self._cluster = PerfectCluster(Allocator(RunId("offline"), rules), self._hear)
        self._pods: dict[str, _Pod] = {}
        self._by_request: dict[RequestId, _Pod] = {}
        self._arrivals = 0
        self._at: float = 0
        self._cluster.start((empty_snapshot(node), host_facts(node)) for node in fleet.nodes)

    def run(self, steps: Iterable[Step]) -> None:
        """Every step, then the summary. Raises WorkloadError."""
        for step in steps:
            self._at = step.at
            if step.at > self._cluster.now:
                self._cluster.now = float(step.at)
                self._cluster.tick()  # what was due since the previous line
            if isinstance(step, Arrival):
                self._arrive(step)
            else:
                self._depart(step)
            self._cluster.settle()
        summary = self._answers.summary
        summary.running = sum(pod.bound for pod in self._pods.values())
        summary.waiting = sum(pod.waiting for pod in self._pods.values())
        self._answers.finish()

    def _arrive(self, arrival: Arrival) -> None:
        if arrival.pod in self._pods:
            raise WorkloadError(
                arrival.where, "arrive.id", arrival.pod, "is in use; an id is free again after its departure"
            )
        self._arrivals += 1
        self._answers.summary.arrivals += 1
        request = RequestId(f"r{self._arrivals}")  # ids in a workload may hold characters that a subject cannot
        asked = request_of(arrival, request, self._policies, self._limits)
        match asked:
            case msg.AllocationRequested():
                self._pods[arrival.pod] = self._by_request[request] = _Pod(arrival.pod, request)
                self._cluster.say(subjects.request(request), asked)
            case Refusal():
                self._answers.refused(self._at, arrival.pod, (asked,))
            case None:
                why = "no annotation and no resource asks for a GPU"
                self._answers.refused(self._at, arrival.pod, (_reason(NOTHING_ASKED, why),))

    def _depart(self, departure: Departure) -> None:
        pod = self._pods.get(departure.pod)
        if pod is None:
            self._answers.summary.departed_without += 1  # no answer: no pod has this id
        else:
            self._withdraw(pod)

    def _withdraw(self, pod: _Pod, *, closing: bool = False) -> None:
        withdrawn = msg.RequestWithdrawn(revision=2, source=WORKLOAD, cause="pod gone", closing=closing)
        self._cluster.say(subjects.request(pod.request), withdrawn, last_word=closing)

    def _hear(self, message: msg.AnyMessage) -> None:
        match message:
            case msg.Grant():
                self._by_request[message.booking.request].granted[message.booking.allocation] = message.booking
            case msg.Revoke():
                pod = self._by_request.get(message.booking.request)
                if pod is not None:
                    pod.granted.pop(message.booking.allocation, None)
            case msg.Bound():
                self._bound(self._by_request[message.request], message.allocation)
            case msg.Pending():
                pod = self._by_request.get(message.request)
                if pod is not None and not pod.waiting and not pod.quiet:
                    self._waits(pod, message)
            case msg.Refused():
                self._refuse(self._by_request[message.request], (message.refusal,))
            case msg.Released():
                self._released(self._by_request[message.request])
            case msg.EvictionOrdered():
                self._evict(self._by_request.get(message.request), message.cause)

    def _bound(self, pod: _Pod, allocation: AllocationId) -> None:
        pod.booking = pod.granted[allocation]
        pod.granted.clear()
        pod.bound, pod.waiting = True, False
        self._answers.bound(self._at, pod.name, pod.booking)

    def _waits(self, pod: _Pod, why: msg.Pending) -> None:
        if self._queue:
            pod.waiting = True
            self._answers.pending(self._at, pod.name, why.reasons)
        elif not pod.granted:  # else it gets its place once the evicted pods are gone
            self._refuse(pod, (_reason(NO_PLACE_NOW, why.message), *why.reasons))

    def _refuse(self, pod: _Pod, reasons: tuple[Any, ...]) -> None:
        """Answer once and delete the pod, so that its id can be used again."""
        self._answers.refused(self._at, pod.name, reasons)
        pod.quiet = True
        self._withdraw(pod)

    def _evict(self, pod: _Pod | None, cause: str) -> None:
        """The pod-watcher's part; here no budget forbids an eviction, and the pod is gone at once."""
        if pod is not None and not pod.evicted:
            pod.evicted = cause
            self._withdraw(pod)

    def _released(self, pod: _Pod) -> None:
        if pod.bound:
            why = (_reason(EVICTED, pod.evicted),) if pod.evicted else ()
            self._answers.released(self._at, pod.name, pod.booking, why)
        elif not pod.quiet:
            self._answers.summary.departed_waiting += 1
            self._answers.released(self._at, pod.name, None, (_reason(NOTHING_HELD, "it was still waiting"),))
        self._withdraw(pod, closing=True)
        del self._pods[pod.name], self._by_request[pod.request]


def rules_for(fleet: FleetSpec, placing: PlacementConfig = PlacementConfig()) -> SchedulerConfig:  # noqa: B008  # frozen
    """The rules of a production allocator, with three differences that only an offline run can afford. A pod may ask
    for as many GPUs as the largest node has. One event may take any number of tries, failed groups included, since no
    later event continues the work before time moves. Waiting pods get no repeated reasons."""
    usual = SchedulerConfig()
    most = max(sum(kind.count for kind in node.gpus) for node in fleet.nodes)
    return replace(
        usual,
        max_gpus_per_node=max(usual.max_gpus_per_node, most),
        wake_tries=UNBOUNDED,
        new_tries=UNBOUNDED,
        promise_tries=UNBOUNDED,
        group_pause_s=0.0,
        pending_refresh_batch=0,
        placing=placing,
    )


def _reason(word: str, message: str) -> dict[str, str]:
    return {"reason": word, "message": message}
