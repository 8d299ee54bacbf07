"""Messages that make no sense stop no pod: whatever one writer publishes, the next pod gets its slice."""

from collections.abc import Iterator

import msgspec
import pytest
from factories.broker.nonsense import nonsense
from factories.scheduling.allocator import (
    Bench,
    asked,
    begun_anew,
    claim,
    gpu_report,
    snapshot,
    whole_gpu,
    working_allocator,
)

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Entry, Observed, stream_of
from sluice.contracts.bus.subjects import Address
from sluice.contracts.ids import OperationId, RequestId, SourceName
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import Continue, LeaseChanged

SOME = 14
"""Of each message; all of them are some 2,000 and take a quarter of a minute."""
TURNS_MAX = 50


def scene() -> Bench:
    """Two nodes; two pods that have their slices, and one that waits for its own to be made."""
    bench = working_allocator()
    bench.add_nodes("n-a")
    bench.add_node(snapshot("n-b", (gpu_report("n-b", 0), gpu_report("n-b", 1, mig=False))))
    bench.bound("p1")
    bench.bound("p2")
    bench.granted("p3")
    return bench


def words() -> Iterator[tuple[Address, msg.AnyMessage]]:
    """A sensible message at every kind of subject that an allocator reads."""
    world = scene().allocator.ctx.facts
    first = next(iter(world.ledger.values()))
    node, allocation = first.booking.node, first.booking.allocation
    yield subjects.ledger(node, allocation), first
    yield subjects.head(node), world.heads[node]
    yield subjects.slice_(node, allocation), world.slices[allocation]
    yield subjects.node(node), world.news[node]
    yield subjects.inventory(node), full(world.inventories[node], first)
    yield subjects.binding(first.booking.request), world.bindings[first.booking.request]
    needs = msg.HostNeeds(
        room=msg.HostRoom(cpu_milli=100, memory_mib=100, resources={"example.com/nic": 1}),
        node_selector={"zone": "a"},
        affinity=((msg.NodeExpression(key="zone", operator="Gt", values=("1",)),),),
        tolerations=(msg.Toleration(key="gpu", operator="Exists"),),
    )
    share = claim(
        container="b",
        profile=None,
        modes=("fractional",),
        memory_mib=100,
        sm_partition=20,
        uid=1,
        only=msg.DeviceFilter(models=("A100",), uuids=("GPU-n-a-0",)),
    )
    wide = asked("p9", claim(gpus=2, sm_count=14, memory_percentage=10), share, priority=3)
    wide = msgspec.structs.replace(
        wide,
        host=needs,
        node_policy="binpack",
        gpu_policy="binpack,topology",
        leeway=msg.Leeway(preemptible=True, movable=True, substitute="return"),
        group=msg.PodGroup(name="job", size=2),
        held=msg.Held(node=node, allocation=allocation),
    )
    yield subjects.request(RequestId("p9")), wide
    yield subjects.request(RequestId("p1")), world.requests[RequestId("p1")]
    facts = msg.HostFacts(
        cpu_cores=8,
        memory_mib=9000,
        pods_free=9,
        resources={"x": 1},
        labels={"zone": "a"},
        taints=(msg.Taint(key="gpu", effect="PreferNoSchedule"),),
    )
    yield subjects.host(node), facts
    yield subjects.cordon(node), msg.Cordoned(node=node, gpus=("GPU-n-a-0",), drain=True)
    some = msg.Amounts(gpus=1, memory_mib=10_000, compute_slices=2)
    yield subjects.quota("other"), msg.QuotaSet(namespace="other", total=some, request=some, guaranteed=some)
    yield subjects.eviction(RequestId("p1")), msg.EvictionOrdered(request=RequestId("p1"), cause="drain")
    yield subjects.evicted(RequestId("p1")), msg.EvictionBlocked(request=RequestId("p1"), why="a budget")
    yield subjects.waiting(RequestId("p3")), msg.Pending(request="p3", request_revision=1, message="m", reasons=())
    yield (
        subjects.source(SourceName("folder")),
        msg.SourceSynced(source=SourceName("folder"), run="f1", epoch=1, count=3),
    )


def full(inventory, grant: msg.Grant):
    """An inventory with something of everything on its first GPU, and few profiles: each place in it is a case."""
    gpu = inventory.snapshot.gpus[0]
    device = grant.booking.devices[0]
    instances = (
        msg.InstanceReport(gi_id=7, profile="1g.5gb", start=device.start, size=1, uuid="M", allocation="p1_r1_1"),
        msg.InstanceReport(gi_id=8, profile="2g.10gb", start=4, size=2, uuid="MIG-2"),
    )
    daemon = msg.MpsDaemonReport(profile="3g.20gb", start=4, size=4, device="M", namespace="d", uid=1, state="ready")
    profile = msgspec.structs.replace(gpu.profiles[0], placements=gpu.profiles[0].placements[:2])
    gpu = msgspec.structs.replace(
        gpu,
        profiles=(profile,),
        instances=instances,
        daemons=(daemon,),
        quarantined=(msg.PlacementReport(start=2, size=1),),
        links={"GPU-n-b-0": 100},
    )
    slices = (msg.SliceReport(booking=grant.booking, revision=1, state="ready", revoked=False),)
    return msgspec.structs.replace(
        inventory, snapshot=msgspec.structs.replace(inventory.snapshot, gpus=(gpu,), slices=slices)
    )


CASES = list(words())


def goes_on(bench: Bench) -> None:
    """Time passes, everything is looked at, and a pod that comes now is granted a place."""
    for _ in range(3):
        bench.passes(1.0)
        for _ in range(TURNS_MAX):
            if not bench.allocator.unfinished:
                break
            bench.land_all(bench.handle(Continue()))
    writes = bench.land_all(bench.request(asked("fresh")))
    granted = [w.message.booking.request for w in writes if isinstance(w.message, msg.Grant)]
    assert "fresh" in granted, [type(write.message).__name__ for write in writes]


@pytest.mark.parametrize(("address", "message"), CASES, ids=lambda value: getattr(value, "kind", None))
def test_pods_are_served_behind_a_word_that_makes_no_sense(address: Address, message: msg.AnyMessage):
    """One node's or one pod's nonsense would otherwise keep all pods from getting a GPU, after every restart again."""
    for poison in nonsense(address, message, some=SOME):
        bench = scene()
        bench.land_all(bench.observe(address, poison))
        goes_on(bench)


@pytest.mark.parametrize(("address", "message"), CASES, ids=lambda value: getattr(value, "kind", None))
def test_pods_are_served_behind_a_word_that_was_set_aside(address: Address, message: msg.AnyMessage):
    """Bytes of a later version, or of an unknown writer, hold up nothing, and taking their place they end no slice."""
    bench = scene()
    before = dict(bench.allocator.ctx.facts.ledger)
    bench.land_all(bench.observe(address, message))
    bench.observe_unreadable(address, "not ours")
    goes_on(bench)
    after = bench.allocator.ctx.facts.ledger
    for allocation, entry in before.items():
        if subjects.ledger(entry.booking.node, allocation).subject != address.subject:
            assert isinstance(after[allocation], msg.Grant), after[allocation]


def test_a_running_pod_keeps_its_slice_when_its_request_cannot_be_read():
    """A newer pod-watcher's message would otherwise look like none, and the pod's slice be revoked as an orphan."""
    before = scene()
    unread = Entry(subjects.request(RequestId("p1")).subject, 99_000, OperationId(""), None, "schema 2")
    before.handle(Observed(stream_of("request"), unread))
    bench = begun_anew(before, SchedulerConfig(orphan_grace_s=30.0))
    bench.handle(Observed(stream_of("request"), unread))
    bench.handle(LeaseChanged(held=True))
    source = subjects.source(SourceName("folder"))
    for epoch in range(1, 4):
        synced = msg.SourceSynced(source=SourceName("folder"), run="f1", epoch=epoch, count=2)
        bench.land_all(bench.observe(source, synced))
        bench.passes(100.0)
    assert isinstance(bench.allocator.ctx.facts.ledger["p1_r1_1"], msg.Grant)


def test_a_slice_that_is_reported_twice_does_not_end_the_allocator(bench: Bench):
    """Every allocator would end on reading it, and again after each start."""
    report = msg.SliceReport(booking=whole_gpu("p1_old_1"), revision=1, state="ready", revoked=False)
    gpus = (gpu_report("node-a", 0),)
    for generation in (2, 3):
        seen = snapshot("node-a", gpus, slices=(report, report), generation=generation)
        bench.land_all(bench.pull(seen))
