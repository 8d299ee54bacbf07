"""What a large fleet, and a long history, cost in memory: what recurs is there once, what has ended is not there."""

import gc
import tracemalloc

import msgspec
from factories.scheduling.allocator import (
    FOLDER,
    INCARNATION,
    Bench,
    all_said,
    asked,
    claim,
    gpu_report,
    kinds,
    report_of,
    snapshot,
    whole_gpu,
    working_allocator,
)
from factories.scheduling.gangs import member

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import AllocationId, GpuUuid, NodeName, RequestId
from sluice_allocator.core.events import LeaseChanged
from sluice_allocator.core.state.conditions import Condition

GPUS_PER_NODE = 8
BYTES_PER_GPU_MAX = 2048
CREATABLE = {"1g.5gb": 7, "1g.5gb+me": 1, "1g.10gb": 4, "2g.10gb": 3, "3g.20gb": 2, "4g.20gb": 1, "7g.40gb": 1}
REPORTS = tuple(gpu_report("any", index) for index in range(GPUS_PER_NODE))


def over_the_wire(message: msgspec.Struct) -> msgspec.Struct:
    """As another process would read it: nothing is shared."""
    return msgspec.json.decode(msgspec.json.encode(message), type=type(message))


def full_node(name: str) -> msg.NodeSnapshot:
    uuids = [GpuUuid(f"GPU-{name}-11111111-2222-3333-4444-{index:012}") for index in range(GPUS_PER_NODE)]
    links = {uuid: {other: 100 for other in uuids if other != uuid} for uuid in uuids}
    gpus = (
        msgspec.structs.replace(report, uuid=uuid, creatable=CREATABLE, links=links[uuid])
        for report, uuid in zip(REPORTS, uuids, strict=True)
    )
    return snapshot(name, tuple(gpus))


def add(bench: Bench, name: str) -> None:
    """A node comes, with all that is said of it on the bus."""
    seen = full_node(name)
    counts = tuple(
        msg.GpuCounts(uuid=gpu.uuid, model=gpu.model, instances=0, creatable=CREATABLE, creatable_total=19)
        for gpu in seen.gpus
    )
    news = msg.NodeChanged(
        node=seen.node, endpoint="10.0.0.1:1", boot_id="boot-1", agent_run=seen.agent_run, generation=1, gpus=counts
    )
    labels = {f"label.example.com/key-{number}": f"value-{number}" for number in range(20)}
    host = msg.HostFacts(
        cpu_cores=96.0, memory_mib=1_000_000, pods_free=110, labels=labels, taints=(msg.Taint(key="gpu"),)
    )
    bench.land_all(bench.observe(subjects.node(seen.node), over_the_wire(news)))
    bench.observe(subjects.host(seen.node), over_the_wire(host))
    inventory = over_the_wire(msg.NodeInventory(snapshot=seen, stale=False))
    bench.land_all(bench.observe(subjects.inventory(seen.node), inventory))
    bench.said.clear()


def test_a_gpu_costs_less_than_two_kibibytes():
    """A hundred thousand GPUs fit in a small process; measured on what is added per GPU, with all that nodes say."""
    bench = working_allocator()
    add(bench, "warm-up")
    added = []
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for batch in range(2):  # in one of them a table of the interpreter's may double, for all of this process
            for number in range(100):
                add(bench, f"gpu-node-{batch}{number:03}")
            bench.state.clear()
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
            added.append(after - before)
            before = after
    finally:
        tracemalloc.stop()

    assert min(added) / (100 * GPUS_PER_NODE) < BYTES_PER_GPU_MAX


def test_of_a_new_snapshot_only_what_changed_is_new(bench):
    """A slice more or less is in the ledger; foreign instances and health are kept, and change."""
    node = NodeName("node-a")
    grant = bench.bound("p1")
    world = bench.allocator.ctx.facts
    before = world.inventories[node].snapshot.gpus[0]
    allocation = grant.booking.allocation
    ours = msg.InstanceReport(gi_id=1, profile="1g.5gb", start=6, size=1, uuid="MIG-1", allocation=allocation)
    there = (report_of(grant.booking),)
    seen = snapshot(node, (gpu_report(node, 0, instances=(ours,)),), generation=2, slices=there)
    bench.observe(subjects.inventory(node), over_the_wire(msg.NodeInventory(snapshot=seen, stale=False)))

    assert world.inventories[node].snapshot.gpus[0] is before
    assert world.inventories[node].snapshot.slices[0].booking is grant.booking
    foreign = msg.InstanceReport(gi_id=2, profile="1g.5gb", start=0, size=1, uuid="MIG-2")
    seen = snapshot(node, (gpu_report(node, 0, instances=(foreign,)),), generation=3)
    bench.observe(subjects.inventory(node), over_the_wire(msg.NodeInventory(snapshot=seen, stale=False)))
    assert world.inventories[node].snapshot.gpus[0].instances == (foreign,)


def test_pods_that_have_ended_leave_only_their_last_words(bench):
    """Nothing that is wanted or remembered of a pod outlives it; its closing messages run out by themselves."""
    ctx = bench.allocator.ctx
    small = claim(profile="7g.40gb")
    for number in range(30):
        name = f"p{number}"
        grant = bench.bound(name, small)
        bench.land_all(bench.request(asked(f"{name}-waits", small)))
        for ended in (f"{name}-waits", name):
            bench.land_all(bench.ends(ended))
        bench.land_all(bench.gone(grant))
        for ended in (f"{name}-waits", name):
            closing = msg.RequestWithdrawn(revision=3, source=FOLDER, cause="pod gone", closing=True)
            bench.land_all(bench.observe(subjects.request(RequestId(ended)), closing))

    assert ctx.cluster.booked() == {}
    assert (len(ctx.queue), len(ctx.to_try), len(ctx.backoff.of_request)) == (0, 0, 0)
    assert (ctx.undecided, ctx.undecided_under, ctx.committing, ctx.assumed) == ({}, {}, {}, {})
    assert not ctx.node_waits.node_of
    assert not ctx.offers
    assert not ctx.conditions.young(Condition.GRANT_WITHOUT_REQUEST)
    assert all(ctx.outbox.kept(subjects.waiting(RequestId(f"p{number}-waits"))) is None for number in range(30))
    assert not ctx.outbox.busy(subjects.binding(RequestId("p29")))


def test_a_standby_remembers_no_pod_that_has_gone(bench):
    """For months others work: all that ever was would be kept, and looked at when it takes over."""
    ctx, node = bench.allocator.ctx, NodeName("node-a")
    of_node = (
        (subjects.node(node), ctx.facts.news[node]),
        (subjects.inventory(node), ctx.facts.inventories[node]),
        (subjects.head(node), ctx.facts.heads[node]),
    )
    bench.land_all(bench.request(member("waits", claim(profile="7g.40gb"))))
    bench.handle(LeaseChanged(held=False))
    for number in range(30):
        request, allocation = RequestId(f"p{number}"), AllocationId(f"p{number}_r9_1")
        bench.request(asked(request))
        grant = msg.Grant(revision=1, incarnation=INCARNATION, booking=whole_gpu(allocation, request=request))
        bench.reads(grant)
        bench.gone(grant)
        closed = msg.Closed(revision=2, allocation=allocation, request=request, node=node, cause="gone")
        bench.observe(subjects.ledger(node, allocation), closed)
        closing = msg.RequestWithdrawn(revision=3, source=FOLDER, cause="pod gone", closing=True)
        bench.observe(subjects.request(request), closing)
    bench.read_all(all_said(), *of_node)
    assert (len(ctx.changed_requests), len(ctx.strays), len(ctx.queue), len(ctx.gangs.member_of)) == (0, 0, 0, 0)
    bench.handle(LeaseChanged(held=True))
    assert kinds(bench.asks(asked("new"))) == [msg.Grant]
