"""The pure core of the recorder: turns the bus's history into amounts per minute. It takes messages in the order in
which the server stored them, with the server's times, and keeps what is open: pods with slices, requests that wait,
GPUs of nodes. A change of a rate within a minute is one correction, so a minute costs its series and changes, whatever
the number of pods. State is saved at the end of a minute with the position in the history."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from sluice.contracts import messages as msg
from sluice.contracts.request_syntax.claim_text import claims_text
from sluice_inventory.recorder.amounts import MICRO, Amount, GpuFacts, amounts_by_model, facts_of

MINUTE_S = 60
CONFIRM_S = 600.0
"""How long something open may lack any sign on the bus, where there should be one, until it is taken for ended."""
WHAT_MAX = 80  # characters of a shape


class Series(NamedTuple):
    """What amounts are summed up for. `kind`: allocated, waiting, capacity, used or idle. Either `namespace` or `node`
    is empty; `what` is a model, or the shape that waits."""

    kind: str
    namespace: str
    node: str
    what: str


class Running(msgspec.Struct, frozen=True):
    """A pod's slices, from grant to their end."""

    request: str
    namespace: str
    node: str
    since: float
    amounts: dict[str, Amount]
    bound: bool = False


class Waiting(msgspec.Struct, frozen=True):
    """A request without a binding. `confirmed`: seen in this life of the history."""

    namespace: str
    shape: str
    since: float
    confirmed: bool = True


class Waited(NamedTuple):
    """A request was bound after `seconds`."""

    namespace: str
    seconds: float


class MinuteRecord(NamedTuple):
    """One whole minute from `start` (unix time): amounts times seconds by series, and the waits that ended."""

    start: int
    amounts: dict[Series, Amount]
    waited: list[Waited]


class UsageRecorder:
    """What is open, and the minute that is being summed up. `changed` names what to save at its end."""

    def __init__(self, minute: int) -> None:
        self.minute = minute
        self.gpus: dict[str, GpuFacts] = {}
        self.running: dict[str, Running] = {}
        self.waiting: dict[str, Waiting] = {}
        self.changed: set[tuple[str, str]] = set()
        """(`running` or `waiting`, key) of what began, changed or ended since the last save."""
        self._granted: dict[str, str] = {}  # the latest allocation of each request that has one
        self._capacity: dict[str, dict[str, Amount]] = {}
        self._rates: dict[Series, Amount] = {}
        self._corrections: dict[Series, Amount] = {}
        self._waited: list[Waited] = []

    def resume(self, running: dict[str, Running], waiting: dict[str, Waiting]) -> None:
        """Take over what was open when the state was saved, before anything else."""
        for key, pod in running.items():
            self.running[key] = pod
            self._granted[pod.request] = key
            self._shift_running(pod, 1, float(self.minute))
        for key, request in waiting.items():
            self.waiting[key] = request
            self._shift(_series_of(request), Amount(pods=1), float(self.minute))

    def complete_minute(self) -> MinuteRecord:
        """Sum up the minute, and begin the next. Now the state may be saved."""
        amounts = dict(self._corrections)
        for series, rate in self._rates.items():
            amounts[series] = amounts.get(series, Amount()).plus(rate, MINUTE_S)
        record = MinuteRecord(self.minute, {key: each for key, each in amounts.items() if any(each)}, self._waited)
        self.minute += MINUTE_S
        self._corrections, self._waited = {}, []
        return record

    def _shift(self, series: Series, amount: Amount, at: float, sign: int = 1) -> None:
        rate = self._rates.get(series, Amount()).plus(amount, sign)
        if any(rate):
            self._rates[series] = rate
        else:
            self._rates.pop(series, None)
        into_s = round(min(max(at - self.minute, 0.0), MINUTE_S))
        self._correct(series, amount, -sign * into_s)

    def _correct(self, series: Series, amount: Amount, times: int) -> None:
        if times:
            self._corrections[series] = self._corrections.get(series, Amount()).plus(amount, times)

    def observe(self, message: msg.AnyMessage, request: str, at: float) -> None:
        """Take in one message about `request`, stored at `at`: within the minute, or after it."""
        match message:
            case msg.AllocationRequested():
                self._observe_request(request, message, at)
            case msg.Bound(allocation=allocation):
                self._bind(request, allocation, at)
            case msg.Refused() | msg.RequestRejected() | msg.RequestWithdrawn():
                self._end_waiting(request, at)
            case msg.Grant(booking=booking):
                amounts = amounts_by_model(message.counts or booking.devices, self.gpus)
                self._run(booking.allocation, Running(request, booking.namespace, booking.node, at, amounts), at)
            case msg.Closed(allocation=allocation):
                self._end(allocation, at)
            case msg.NodeInventory():
                self.observe_node(message, at)

    def observe_node(self, inventory: msg.NodeInventory, at: float) -> None:
        """The GPUs of a node: learned, and counted as capacity while the node is there."""
        snapshot = inventory.snapshot
        capacity: dict[str, Amount] = {}
        if not inventory.removed:
            for gpu in snapshot.gpus:
                self.gpus[gpu.uuid] = facts_of(gpu)
                capacity[gpu.model] = capacity.get(gpu.model, Amount()).plus(Amount(0, MICRO, gpu.memory_mib))
        self._set_capacity(snapshot.node, capacity, at)

    def forget_nodes(self, known: Iterable[str], at: float) -> None:
        """Nodes that the inventory does not know (any more) have no capacity."""
        for node in self._capacity.keys() - set(known):
            self._set_capacity(node, {}, at)

    def add_use(self, namespace: str, node: str, model: str, *, micro_gpus: int, is_idle: bool) -> None:
        amount = Amount(0, micro_gpus, 0)
        kind = "idle" if is_idle else "used"
        self._correct(Series(kind, namespace, "", model), amount, MINUTE_S)
        self._correct(Series(kind, "", node, model), amount, MINUTE_S)

    def doubt_waiting(self) -> None:
        """The history began again: requests must show themselves in it."""
        self.waiting = {key: msgspec.structs.replace(each, confirmed=False) for key, each in self.waiting.items()}

    def end_unconfirmed(self, at: float) -> None:
        """Requests that a new history has not shown within `CONFIRM_S` are over."""
        for key, each in list(self.waiting.items()):
            if not each.confirmed:
                self._end_waiting(key, at)

    def end_missing(self, booked: dict[str, set[str]], at: float) -> None:
        """End pods whose slices their nodes do not have: their last message was lost with a broker. `booked`: the
        allocations in the current snapshot of each node that answers."""
        for key, pod in list(self.running.items()):
            there = booked.get(pod.node)
            if there is not None and key not in there and at - pod.since > CONFIRM_S:
                self._end(key, at)

    def _observe_request(self, request: str, asked: msg.AllocationRequested, at: float) -> None:
        if asked.held is not None:
            self._end_waiting(request, at)
        elif request in self.waiting or asked.declined is not None or request not in self._granted:
            before = self.waiting.get(request)
            since = before.since if before is not None else at
            self._set_waiting(request, Waiting(asked.namespace, claims_text(asked.claims)[:WHAT_MAX], since), at)

    def _bind(self, request: str, allocation: str, at: float) -> None:
        """The end of a wait. Copies of two writers may be stored in another order: a grant before its request."""
        waiting, pod = self.waiting.get(request), self.running.get(allocation)
        first = waiting or pod
        if first is not None and (pod is None or not pod.bound):
            self._waited.append(Waited(first.namespace, max(0.0, at - first.since)))
        if pod is not None and not pod.bound:
            self.running[allocation] = msgspec.structs.replace(pod, bound=True)
            self.changed.add(("running", allocation))
        self._end_waiting(request, at)

    def _end_waiting(self, request: str, at: float) -> None:
        if request in self.waiting:
            self._set_waiting(request, None, at)

    def _set_waiting(self, request: str, now: Waiting | None, at: float) -> None:
        before = self.waiting.pop(request, None)
        if before is not None:
            self._shift(_series_of(before), Amount(pods=1), at, -1)
        if now is not None:
            self.waiting[request] = now
            self._shift(_series_of(now), Amount(pods=1), at)
        if now != before:
            self.changed.add(("waiting", request))

    def _run(self, allocation: str, pod: Running, at: float) -> None:
        before = self.running.get(allocation)
        if before is not None:  # a new revision: another size, or the same
            self._end(allocation, at)
            pod = msgspec.structs.replace(pod, since=before.since, bound=before.bound)
        self.running[allocation] = pod
        self._granted[pod.request] = allocation
        self.changed.add(("running", allocation))
        self._shift_running(pod, 1, at)

    def _end(self, allocation: str, at: float) -> None:
        pod = self.running.pop(allocation, None)
        if pod is not None:
            if self._granted.get(pod.request) == allocation:
                del self._granted[pod.request]
            self.changed.add(("running", allocation))
            self._shift_running(pod, -1, at)

    def _shift_running(self, pod: Running, sign: int, at: float) -> None:
        for model, amount in pod.amounts.items():
            self._shift(Series("allocated", pod.namespace, "", model), amount, at, sign)
            self._shift(Series("allocated", "", pod.node, model), amount, at, sign)

    def _set_capacity(self, node: str, capacity: dict[str, Amount], at: float) -> None:
        before = self._capacity.pop(node, {})
        if capacity:
            self._capacity[node] = capacity
        if before != capacity:
            for sign, amounts in ((-1, before), (1, capacity)):
                for model, amount in amounts.items():
                    self._shift(Series("capacity", "", node, model), amount, at, sign)


def _series_of(waiting: Waiting) -> Series:
    return Series("waiting", waiting.namespace, "", waiting.shape)
