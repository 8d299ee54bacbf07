"""An allocator with a small fleet, driven by hand: the test is the bus and the agents."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from factories.words import booking_of, gpu_report, news_of, snapshot
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import events as ev
from sluice.contracts.bus import subjects
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import GpuUuid, Incarnation, OperationId, RequestId, RunId, SourceName
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import Continue, Event, Instruction, LeaseChanged
from sluice_node_agent.core.state.devices import never_read

INCARNATION = Incarnation("1000")
FOLDER = SourceName("folder")


def whole_gpu(allocation: str, *, node: str = "node-a", request: str = "p1") -> msg.Booking:
    """A booking of all of the first GPU of a node."""
    device = msg.DeviceGrant(container="main", gpu=GpuUuid(f"GPU-{node}-0"), profile="7g.40gb", start=0, size=8)
    return booking_of(allocation, node, (device,), request=request)


def unread(report: msg.GpuReport) -> msg.GpuReport:
    """The report of a restarted agent about a GPU that has not answered it yet."""
    return never_read(report.uuid, report.index, "the GPU has fallen off the bus")


def report_of(booking: msg.Booking, **changes: Any) -> msg.SliceReport:
    """A slice as its agent would report it: ready."""
    return msg.SliceReport(**({"booking": booking, "revision": 1, "state": "ready", "revoked": False} | changes))


def only(kinds: type | tuple[type, ...], said: Iterable[object]) -> list:
    """The messages of these kinds among messages, writes and other instructions."""
    words = (each.message if isinstance(each, ev.Write) else each for each in said)
    return [word for word in words if isinstance(word, kinds)]


def kinds(said: Iterable[object]) -> list[type]:
    """The kinds of these messages, or of those in these writes."""
    return [type(word) for word in only(object, said)]


def messages(said: Iterable[Instruction], *, but: type | tuple[type, ...] = ()) -> list:
    """What is written, without messages of some kinds."""
    return [each.message for each in said if isinstance(each, ev.Write) and not isinstance(each.message, but)]


def claim(**changes) -> msg.Claim:
    """One container's claim; by default a 1g.5gb."""
    return msg.Claim(**({"container": "main", "profile": "1g.5gb"} | changes))


def order(request: str, cause: str, life: Incarnation = INCARNATION) -> msg.EvictionOrdered:
    return msg.EvictionOrdered(request=RequestId(request), cause=cause, incarnation=life)


def asked(request: str, *claims: msg.Claim, revision: int = 1, priority: int = 0) -> msg.AllocationRequested:
    pod = {"source": FOLDER, "namespace": "default", "name": request, "origin": f"{request}.yaml", "owner": request}
    return msg.AllocationRequested(**pod, revision=revision, claims=claims or (claim(),), priority=priority)


@dataclass
class Bench:
    """Drives one allocator: its writes are collected, and land when the test decides."""

    allocator: Allocator
    now: float = 0.0
    sequence: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """Of BOOK: where its next value lands."""
    state_sequence: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    said: list[Instruction] = field(default_factory=list)
    state: dict[str, ev.Entry] = field(default_factory=dict)
    """What STATE holds."""
    life: Incarnation = INCARNATION

    def handle(self, event: Event) -> list[Instruction]:
        """One event in; its instructions out (and kept in `said`)."""
        if isinstance(event, ev.ReadingStarted) and event.stream is ev.Stream.STATE:
            self.state, self.life = {}, event.incarnation
        instructions = self.allocator.handle(event, self.now)
        self.said += instructions
        return instructions

    def read_all(
        self, *entries: tuple[Address, msg.AnyMessage], incarnation: Incarnation = INCARNATION
    ) -> list[Instruction]:
        """Both streams are read again and hold exactly `entries`."""
        for stream in (ev.Stream.BOOK, ev.Stream.STATE):
            self.handle(ev.ReadingStarted(stream, incarnation))
        for address, message in entries:
            self.observe(address, message)
        self.handle(ev.ReadingCaughtUp(ev.Stream.BOOK))
        return self.handle(ev.ReadingCaughtUp(ev.Stream.STATE))

    def observe(self, address: Address, message: msg.AnyMessage, operation: str | None = None) -> list[Instruction]:
        sequence = self._next(address.subject)
        said = OperationId(operation or f"other-{address.kind}-{sequence}")
        entry = ev.Entry(address.subject, sequence, said, message)
        self._keep(entry)
        return self.handle(ev.Observed(ev.stream_of(address.kind), entry))

    def observe_unreadable(self, address: Address, why: str) -> list[Instruction]:
        entry = ev.Entry(address.subject, self._next(address.subject), OperationId(""), None, why)
        self._keep(entry)
        return self.handle(ev.Observed(ev.stream_of(address.kind), entry))

    def tick(self) -> list[Instruction]:
        """Some time passes. If STATE has to be read again, that happens, and a little more time passes."""
        said = self.handle(ev.Ticked())
        if ev.ReadAgain(ev.Stream.STATE) not in said:
            return said
        said.remove(ev.ReadAgain(ev.Stream.STATE))
        return [*said, *self.read_state(), *self.handle(ev.Ticked())]

    def read_state(self) -> list[Instruction]:
        held = self.state
        said = self.handle(ev.ReadingStarted(ev.Stream.STATE, self.life))
        for entry in held.values():
            self._keep(entry)
            said += self.handle(ev.Observed(ev.Stream.STATE, entry))
        return [*said, *self.handle(ev.ReadingCaughtUp(ev.Stream.STATE))]

    def land(self, write: ev.Write) -> list[Instruction]:
        """A write of the allocator is accepted."""
        entry = ev.Entry(write.subject, self._next(write.subject), write.operation, write.message)
        self._keep(entry)
        return self.handle(ev.WriteAccepted(write.operation, entry.sequence))

    def _keep(self, entry: ev.Entry) -> None:
        if ev.stream_of(subjects.parse(entry.subject).kind) is ev.Stream.STATE:
            self.state[entry.subject] = entry

    def _next(self, subject: str) -> int:
        is_book = ev.stream_of(subjects.parse(subject).kind) is ev.Stream.BOOK
        return next(self.sequence if is_book else self.state_sequence)

    def land_all(self, instructions: list[Instruction]) -> list[ev.Write]:
        """Every write lands, and every write that follows from that; returns them all in order."""
        landed: list[ev.Write] = []
        waiting = [i for i in instructions if isinstance(i, ev.Write)]
        while waiting:
            write = waiting.pop(0)
            landed.append(write)
            waiting += [i for i in self.land(write) if isinstance(i, ev.Write)]
        return landed

    def settle(self, instructions: list[Instruction]) -> list[ev.Write]:
        """Everything lands, until nothing is left to be done."""
        landed = self.land_all(instructions)
        while self.allocator.unfinished:
            landed += self.land_all(self.handle(Continue()))
        return landed

    def words(self, instructions: list[Instruction], *, but: type | tuple[type, ...] = ()) -> list:
        """What is published when everything lands, without messages of some kinds."""
        return messages(self.settle(instructions), but=but)

    def ends(self, name: str, *, cause: str = "pod gone", held: msg.Held | None = None) -> list[Instruction]:
        """The pod is gone: its source withdraws its request."""
        gone = msg.RequestWithdrawn(revision=2, source=FOLDER, cause=cause, held=held)
        return self.observe(subjects.request(RequestId(name)), gone)

    def withdraw(self, name: str) -> list[msg.AnyMessage | None]:
        """The pod is gone; what is said."""
        return self.words(self.ends(name))

    def limit(self, namespace: str = "default", **total: int) -> list[Instruction]:
        """An operator sets the quota of a namespace."""
        quota = msg.QuotaSet(namespace=namespace, total=msg.Amounts(**total))
        return self.observe(subjects.quota(namespace), quota)

    def read_again(
        self, stream: ev.Stream, *entries: tuple[Address, msg.AnyMessage], life: Incarnation = INCARNATION
    ) -> list[Instruction]:
        """One stream is read again, and holds these."""
        said = self.handle(ev.ReadingStarted(stream, life))
        for address, message in entries:
            said += self.observe(address, message)
        return said + self.handle(ev.ReadingCaughtUp(stream))

    def passes(self, seconds: float, *, step: float | None = None) -> list[ev.Write]:
        """So much time, in steps (or at once); what is written meanwhile."""
        landed: list[ev.Write] = []
        for _ in range(round(seconds / step) if step else 1):
            self.now += step or seconds
            landed += self.land_all(self.handle(ev.Ticked()))
        return landed

    def pull(self, seen: msg.NodeSnapshot, **changes: Any) -> list[Instruction]:
        """The inventory has pulled this from a node."""
        message = msg.NodeInventory(**({"snapshot": seen, "stale": False} | changes))
        return self.observe(subjects.inventory(seen.node), message)

    def fails(self, grant: msg.Grant, message: str = "out of luck", *, error: str = "Unknown") -> list[Instruction]:
        """The slice of a grant cannot be made."""
        return self._told(grant, msg.SliceFailed, error=error, message=message)

    def breaks(self, grant: msg.Grant, message: str = "Xid 79") -> list[Instruction]:
        """The slice of a grant was made, and is not there any more."""
        return self._told(grant, msg.SliceDegraded, message=message)

    def _told(self, grant: msg.Grant, kind: type, **what: Any) -> list[Instruction]:
        booking = grant.booking
        about = {"allocation": booking.allocation, "request": booking.request, "revision": grant.revision}
        return self.observe(subjects.slice_(booking.node, booking.allocation), kind(**(about | what)))

    def reads(self, entry: msg.Grant | msg.Revoke) -> list[Instruction]:
        """An entry that another allocator has written to the ledger."""
        return self.observe(subjects.ledger(entry.booking.node, entry.booking.allocation), entry)

    def add_node(self, seen: msg.NodeSnapshot) -> list[ev.Write]:
        """A node appears, with its inventory, and is opened; returns what was written for that."""
        first = self.observe(subjects.node(seen.node), news_of(seen))
        return self.land_all(first + self.pull(seen))

    def add_nodes(self, *names: str, gpus: int = 1) -> list[ev.Write]:
        """Nodes appear that have so many empty A100-40GB each."""
        reports = {name: tuple(gpu_report(name, index) for index in range(gpus)) for name in names}
        return [write for name in names for write in self.add_node(snapshot(name, reports[name]))]

    def request(self, message: msg.AllocationRequested) -> list[Instruction]:
        return self.observe(subjects.request(RequestId(message.name)), message)

    def asks(self, *requests: msg.AllocationRequested) -> list:
        """All of them ask, one after the other; what is said."""
        return [word for each in requests for word in self.words(self.request(each))]

    def run(self, request: msg.AllocationRequested) -> msg.Grant:
        """A pod asks, is granted a place (others may get messages, too), and has its slice."""
        (grant,) = only(msg.Grant, self.asks(request))
        self.settle(self.ready(grant))
        return grant

    def ready(self, grant: msg.Grant, ticket: str = "ticket-1", **changes: Any) -> list[Instruction]:
        word = replace(ready_of(grant, ticket), **changes)
        return self.observe(subjects.slice_(grant.booking.node, grant.booking.allocation), word)

    def gone(self, grant: msg.Grant, revision: int = 2) -> list[Instruction]:
        return self._told(grant, msg.SliceGone, revision=revision, cause="revoked")

    def granted(self, name: str, *claims: msg.Claim) -> msg.Grant:
        """A request that is granted; its slice is not made yet."""
        (write,) = self.land_all(self.request(asked(name, *claims)))
        assert isinstance(write.message, msg.Grant)
        return write.message

    def bound(self, name: str, *claims: msg.Claim) -> msg.Grant:
        """A request that is granted, made and bound."""
        grant = self.granted(name, *claims)
        self.land_all(self.ready(grant))
        return grant


def ready_of(grant: msg.Grant, ticket: str = "ticket-1") -> msg.SliceReady:
    """The agent's report that a grant's slice is ready."""
    booking = grant.booking
    devices = tuple(
        msg.DeviceState(gpu=d.gpu, profile=d.profile, start=d.start, size=d.size, uuid=f"MIG-{ticket}-{n}")
        for n, d in enumerate(booking.devices)
    )
    containers = []
    for name in dict.fromkeys(d.container for d in booking.devices):
        its = [(state, d.share) for state, d in zip(devices, booking.devices, strict=True) if d.container == name]
        memory_mib = sum(share.memory_mib for _, share in its if share is not None)
        visible = ",".join(state.uuid for state, _ in its)
        containers.append(msg.ContainerDevices(container=name, visible_devices=visible, memory_mib=memory_mib))
    about = {"allocation": booking.allocation, "request": booking.request, "revision": grant.revision}
    return msg.SliceReady(**about, ticket=ticket, devices=devices, containers=tuple(containers))


def bound_of(grant: msg.Grant, **changes: Any) -> msg.Bound:
    """What an allocator publishes to the pod of a grant whose slice is ready."""
    booking, word = grant.booking, ready_of(grant)
    fields = {"request": booking.request, "request_revision": 1, "revision": 1, "ticket": word.ticket}
    fields |= {"allocation": booking.allocation, "node": booking.node, "containers": word.containers, "source": FOLDER}
    return msg.Bound(**(fields | changes))


def working_allocator(rules: SchedulerConfig | None = None, *entries: tuple[Address, msg.AnyMessage]) -> Bench:
    """An active allocator that has read a bus without requests, or with these entries."""
    rules = rules or SchedulerConfig(orphan_grace_s=30.0, closing_ttl_s=3600)
    bench = Bench(Allocator(RunId("r1"), rules))
    bench.read_all(all_said(), *entries)
    bench.handle(LeaseChanged(held=True))
    return bench


def all_said(source: SourceName = FOLDER) -> tuple[Address, msg.AnyMessage]:
    """A source has published all of its requests in this incarnation of the bus."""
    return subjects.source(source), msg.SourceSynced(source=source, run=RunId("w1"), epoch=1, count=0)


def restarted(bench: Bench) -> Bench:
    """Another allocator works, which has read what is on the bus."""
    after = begun_anew(bench, bench.allocator.ctx.rules)
    after.settle(after.handle(LeaseChanged(held=True)))
    return after


def begun_anew(bench: Bench, rules: SchedulerConfig, run: str = "r2") -> Bench:
    """Another process that knows what is on the bus, and nothing else; it stands by."""
    before = bench.allocator.ctx.facts
    other = Bench(Allocator(RunId(run), rules), now=bench.now, sequence=bench.sequence)
    entries: list[tuple[Address, msg.AnyMessage]] = []
    for node, inventory in before.inventories.items():
        entries += [(subjects.node(node), before.news[node]), (subjects.inventory(node), inventory)]
        entries.append((subjects.head(node), before.heads[node]))
    entries += [(subjects.request(each), message) for each, message in before.requests.items()]
    entries += [(subjects.source(each), message) for each, message in before.sources.items()]
    entries += [(subjects.binding(each), message) for each, message in before.bindings.items()]
    entries += [(subjects.eviction(each), message) for each, message in before.evictions.items()]
    entries += [(subjects.evicted(each), message) for each, message in before.evicted.items()]
    for allocation, entry in before.ledger.items():
        node = entry.node if isinstance(entry, msg.Closed) else entry.booking.node
        entries.append((subjects.ledger(node, allocation), entry))
    for allocation, slice_ in before.slices.items():
        entries.append((subjects.slice_(before.slice_nodes[allocation], allocation), slice_))
    other.read_all(*entries)
    return other
