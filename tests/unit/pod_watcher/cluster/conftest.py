"""A cluster's pod-watcher driven by hand: the test is the API server, the allocator and the bus."""

import copy
import itertools
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from api_model import ApiModel, RefusedError, new_pod
from factories.scheduling.allocator import gpu_report, snapshot
from factories.words import booking_of
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import events as bus_events
from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, Incarnation, NodeName, OperationId, RequestId, RunId, SourceName
from sluice_pod_watcher.core.cluster import events as e
from sluice_pod_watcher.core.cluster.config import ClusterConfig
from sluice_pod_watcher.core.cluster.watcher import ClusterWatcher
from sluice_pod_watcher.core.folder.events import WriteLogLine

RUNNING = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}


def bound(
    uid: str,
    node: str = "node-a",
    *,
    number: int = 1,
    revision: int = 1,
    ticket: str = "t-1",
    devices: str = "MIG-1",
    life: str = "",
) -> msg.Bound:
    return msg.Bound(
        request=RequestId(uid),
        request_revision=1,
        allocation=AllocationId(f"{uid}_r_{number}"),
        node=NodeName(node),
        revision=revision,
        ticket=ticket,
        containers=(msg.ContainerDevices(container="main", visible_devices=devices),),
        incarnation=Incarnation(life),
    )


def listing(what: str, objects: Iterable[dict[str, Any]], version: str) -> list[Any]:
    seen = [e.Seen(what, copy.deepcopy(each)) for each in objects]
    return [e.ListingStarted(what), *seen, e.ListingEnded(what, version)]


@dataclass
class Bench:
    """Drives one pod-watcher. Its writes to the bus land at once; its calls of the API server wait in `calls`."""

    core: ClusterWatcher
    api: ApiModel
    now: float = 1000.0
    bus: dict[str, msg.AnyMessage] = field(default_factory=dict)
    calls: list[Any] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    words: list[tuple[str, msg.AnyMessage]] = field(default_factory=list)
    sequence: itertools.count = field(default_factory=lambda: itertools.count(1))
    automatic: bool = True
    """Whether calls are carried out at once."""
    life: str = "1"
    blocked: str = ""
    """Why evictions are refused."""
    modes: list[str] = field(default_factory=list)
    """What admission was given to read, in order."""

    def handle(self, *events: Any) -> None:
        waiting = list(events)
        while waiting:
            event = waiting.pop(0)
            for instruction in self.core.handle(event, self.now):
                match instruction:
                    case bus_events.Write():
                        waiting.append(self._land(instruction))
                    case WriteLogLine():
                        self.told.append(instruction.sentence)
                    case bus_events.ReadAgain():
                        waiting += self._stream(instruction.stream)
                    case e.Continue():
                        waiting.append(e.Continued())
                    case e.WriteEvent():
                        self.api.events.append(instruction)
                    case _:
                        self.calls.append(instruction)
            while self.automatic and self.calls:
                waiting += self.carry_out(self.calls.pop(0))

    def carry_out(self, call: Any) -> list[Any]:
        """What the API server answers to one call; what it changed is in its history."""
        if isinstance(call, e.WatchClaims):
            return self.claims_listing()
        try:
            return [e.Done(call, self._answer(call))]
        except RefusedError as refused:
            return [e.Failed(call, refused.status, refused.message)]

    def _answer(self, call: Any) -> Any:
        match call:
            case e.BindPod() | e.AnnotatePod():
                return self.api.patch(call.name, call.patch)
            case e.WritePodCondition():
                return self._condition(call)
            case e.ReadPod():
                return copy.deepcopy(self.api.pods.get(call.name))
            case e.EvictPod():
                return self._evict(call)
            case e.CreateClaim():
                return self.api.claims.create(call.body)
            case e.ProtectClaim():
                return self.api.claims.protect(call.name, call.patch)
            case e.WriteClaimStatus():
                return self.api.claims.merge_status(call.name, call.body)
            case e.WriteHandOver():
                return self.modes.append(call.mode)
            case e.MirrorGpu() | e.UnmirrorGpu():
                return None
            case _:
                raise AssertionError(call)

    def claims_listing(self) -> list[Any]:
        version = str(next(self.api.claims.versions))
        classes = listing("classes", self.api.classes.values(), version)
        return [e.ClaimsServed(served=True), *classes, *listing("claims", self.api.claims.objects.values(), version)]

    def show_claim(self, claim: dict[str, Any]) -> None:
        self.handle(e.Seen("claims", copy.deepcopy(claim)))

    def lose_claim(self, name: str) -> None:
        gone = self.api.claims.objects.pop(name)
        gone["metadata"]["resourceVersion"] = str(next(self.api.claims.versions))
        self.handle(e.Gone("claims", gone))

    def _condition(self, call: e.WritePodCondition) -> dict[str, Any]:
        pod = self.api.found(call.uid)
        ours = {"type": "sluice.dev/SliceReady", "status": call.status, "reason": call.reason, "message": call.message}
        others = [each for each in pod["status"].get("conditions", []) if each["type"] != ours["type"]]
        pod["status"]["conditions"] = [*others, ours]
        self.api.conditions.append((call.uid, call.status, call.reason))
        return self.api.store(pod)

    def _evict(self, call: e.EvictPod) -> None:
        pod = self.api.found(call.uid)
        if self.blocked:
            raise RefusedError(429, self.blocked)
        self.api.evictions.append(call.uid)
        pod["metadata"]["deletionTimestamp"] = "now"
        self.api.store(pod)

    def _land(self, write: bus_events.Write) -> Any:
        self.bus[write.subject] = write.message
        self.words.append((write.subject, write.message))
        return bus_events.WriteAccepted(write.operation, next(self.sequence))

    def _stream(self, stream: bus_events.Stream) -> list[Any]:
        entries = [
            bus_events.Entry(subject, next(self.sequence), OperationId(f"other-{subject}"), message)
            for subject, message in self.bus.items()
            if (subject.split(".")[1] == "binding") == (stream is bus_events.Stream.BOOK)
        ]
        return [
            bus_events.ReadingStarted(stream, Incarnation(self.life)),
            *(bus_events.Observed(stream, entry) for entry in entries),
            bus_events.ReadingCaughtUp(stream),
        ]

    def start(self) -> "Bench":
        """Everything is read."""
        self.read()
        self.list_others()
        self.list()
        return self

    def resume(self) -> None:
        """The API server answers again: what waits, and whatever comes."""
        self.automatic = True
        waiting, self.calls = self.calls, []
        for call in waiting:
            self.handle(*self.carry_out(call))

    def read(self, *streams: bus_events.Stream) -> None:
        """Both streams are read again, one after the other."""
        for stream in streams or (bus_events.Stream.BOOK, bus_events.Stream.STATE):
            self.handle(*self._stream(stream))

    def list(self) -> None:
        ours = [pod for pod in self.api.pods.values() if pod["metadata"]["labels"]]
        self.handle(*listing("pods", ours, self.api.version))

    def list_others(self, *pods: dict[str, Any]) -> None:
        self.handle(*listing("others", pods, self.api.version))

    def list_nodes(self, *nodes: dict[str, Any]) -> None:
        self.handle(*listing("nodes", nodes, self.api.version))

    def create(self, name: str, uid: str, **how: Any) -> None:
        self.show(self.api.store(new_pod(name, uid, **how)))

    def show(self, pod: dict[str, Any]) -> None:
        self.handle(e.Seen("pods", copy.deepcopy(pod)))

    def change(self, uid: str, *, spec: Any = None, status: Any = None, meta: Any = None) -> None:
        pod = self.api.found(uid)
        pod["spec"] |= spec or {}
        pod["status"] |= status or {}
        pod["metadata"] |= meta or {}
        pod["metadata"]["generation"] += bool(spec)
        self.show(self.api.store(pod))

    def delete(self, uid: str, **last: Any) -> None:
        """A pod is deleted at once, with this last state; that is seen."""
        pod = self.api.found(uid)
        pod["metadata"] |= {"deletionTimestamp": "now", "deletionGracePeriodSeconds": 0}
        pod["status"] |= last
        self.handle(e.Gone("pods", self.api.store(pod, "DELETED")))

    def observe(self, address: Any, message: msg.AnyMessage) -> None:
        stream = bus_events.Stream.BOOK if address.kind == "binding" else bus_events.Stream.STATE
        number = next(self.sequence)
        self.bus[address.subject] = message
        entry = bus_events.Entry(address.subject, number, OperationId(f"other-{number}"), message)
        self.handle(bus_events.Observed(stream, entry))

    def bind(self, uid: str, **how: Any) -> None:
        """The allocator has given a slice, for the request as it is now."""
        asked = self.word(uid)
        revision = asked.revision if isinstance(asked, msg.AllocationRequested) else 1
        granted = replace(bound(uid, **how), request_revision=revision)
        self.observe(subjects.binding(RequestId(uid)), granted)

    def grant(self, name: str, uid: str, **how: Any) -> None:
        """A pod is created and given a slice."""
        self.create(name, uid, **how)
        self.bind(uid)

    def run(self, name: str, uid: str, **how: Any) -> None:
        """A pod is created, given a slice, and runs."""
        self.grant(name, uid, **how)
        self.change(uid, spec={"nodeName": "node-a"}, status=RUNNING)

    def order_eviction(self, uid: str = "u1", cause: str = "preempted") -> None:
        self.observe(subjects.eviction(RequestId(uid)), msg.EvictionOrdered(request=RequestId(uid), cause=cause))

    def release(self, uid: str, cause: str = "pod gone") -> None:
        self.observe(subjects.binding(RequestId(uid)), msg.Released(request=RequestId(uid), cause=cause))

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds * 2)):
            self.now += 0.5
            self.handle(bus_events.Ticked())

    def word(self, uid: str) -> msg.AnyMessage | None:
        return self.bus.get(f"sluice.request.{uid}")

    def notes(self, reason: str, uid: str = "u1") -> tuple[str, ...]:
        """What a pod's Events of this reason say."""
        return tuple(each.note for each in self.api.events if (each.reason, each.uid) == (reason, uid))

    def annotations(self, uid: str) -> dict[str, str]:
        pod = self.api.found(uid)
        return {key: text for key, text in pod["metadata"]["annotations"].items() if "granted" in key}


@pytest.fixture
def new():
    def make(
        api: ApiModel | None = None, bus: dict[str, msg.AnyMessage] | None = None, run: str = "w1", **config
    ) -> Bench:
        core = ClusterWatcher(RunId(run), ClusterConfig(**config))
        return Bench(core, api or ApiModel(), bus=dict(bus or {}))

    return make


@pytest.fixture
def bench(new) -> Bench:
    """A pod-watcher that has read an empty bus and an empty cluster."""
    return new().start()


@pytest.fixture
def sick_node():
    """Makes the inventory of node-a: one GPU with an Xid, and u1's slice on it in some state."""

    def make(state: str, *, stale: bool = False) -> msg.NodeInventory:
        gpu = gpu_report("node-a", 0, healthy=state == "ready", health_message="Xid 79")
        device = msg.DeviceGrant(container="main", gpu=gpu.uuid, profile="1g.5gb", start=0, size=1)
        mine = {"request": RequestId("u1"), "source": SourceName("cluster"), "namespace": "ns", "name": "train"}
        booking = booking_of("u1_r_1", "node-a", (device,), **mine)
        slices = (msg.SliceReport(booking=booking, revision=1, state=state, revoked=False),)
        return msg.NodeInventory(snapshot=snapshot("node-a", (gpu,), slices=slices), stale=stale)

    return make
