"""A promise is exchanged for what is free now together with a part of it, at once and without a moment between."""

import pytest
from factories.scheduling.allocator import FOLDER, Bench, asked, claim, gpu_report, snapshot
from msgspec.structs import replace as changed

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Ticked, Write, WriteRefused
from sluice.contracts.ids import AllocationId, GpuUuid, NodeName, RequestId, RunId
from sluice.contracts.messages import (
    Bound,
    Claim,
    Closed,
    Grant,
    HostNeeds,
    HostPort,
    NodeExpression,
    Pending,
    PodTerm,
    RequestWithdrawn,
    Revoke,
    SliceFailed,
    SliceQuarantined,
    Waived,
)
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import LeaseChanged

WHOLE = claim(profile="7g.40gb")
TWO = claim(profile="7g.40gb", gpus=2)
AFTER_S = 300.0
BIG = RequestId("big")
LLM = (NodeExpression(key="app", operator="In", values=("llm",)),)


@pytest.fixture
def half_there() -> Bench:
    """Three GPUs: a1, a2 and a3 have one each; big was promised two of them, and one of those is free by now."""
    bench = promised(WHOLE, TWO, gpus=3)
    end(bench, waited_for(bench)[0])
    return bench


def promised(has: Claim, wants: Claim, gpus: int) -> Bench:
    """On each of some GPUs a pod that has this (a1, a2 and so on), and big, which was promised what it wants."""
    bench = fleet(has, a=gpus)
    promise(bench, wants)
    return bench


def fleet(has: Claim, **nodes: int) -> Bench:
    """Nodes with so many GPUs, and on each of these a pod that has this: a1, a2 and so on are on node-a."""
    bench = Bench(Allocator(RunId("r1"), SchedulerConfig(promise_after_s=AFTER_S)))
    bench.read_all()
    bench.handle(LeaseChanged(held=True))
    for letter, gpus in nodes.items():
        node = f"node-{letter}"
        bench.add_node(snapshot(node, tuple(gpu_report(node, index) for index in range(gpus))))
        for number in range(gpus):
            bench.bound(f"{letter}{number + 1}", has)
    return bench


def promise(bench: Bench, wants: Claim) -> Grant:
    bench.land_all(bench.request(asked("big", wants)))
    bench.now += AFTER_S
    bench.land_all(bench.handle(Ticked()))
    (made,) = grants(bench, "big")
    return made


def end(bench: Bench, pod: str) -> list[Write]:
    """A pod ends and its slice is gone; returns what was written when it was."""
    grant = grants(bench, pod)[0]
    gone = RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone")
    bench.land_all(bench.observe(subjects.request(RequestId(pod)), gone))
    return bench.land_all(bench.gone(grant))


def failed(grant: Grant) -> SliceFailed:
    """What the agent says when it could not make a slice."""
    booking = grant.booking
    return SliceFailed(
        allocation=booking.allocation, request=booking.request, revision=1, error="Unknown", message="out of luck"
    )


def gpus_of(bench: Bench, pod: str) -> set[GpuUuid]:
    return {device.gpu for grant in grants(bench, pod) for device in grant.booking.devices}


def grants(bench: Bench, pod: str) -> list[Grant]:
    """What a pod is granted, in the order of the ledger."""
    world = bench.allocator.ctx.facts
    return [e for a in world.allocations_of[RequestId(pod)] if isinstance(e := world.ledger[a], Grant)]


def waited_for(bench: Bench) -> list[str]:
    (promise,) = grants(bench, "big")
    world = bench.allocator.ctx.facts
    return [world.ledger[a].booking.name for a in promise.after if not isinstance(world.ledger[a], Closed)]


def stays(bench: Bench) -> str:
    (name,) = waited_for(bench)
    return name


def third(bench: Bench) -> str:
    kept = gpus_of(bench, "big")
    return next(pod for pod in ("a1", "a2", "a3", "a4", "a5", "a6") if gpus_of(bench, pod) - kept)


def told(writes: list[Write], pod: str) -> list[str]:
    of_pod = [w.message for w in writes if pod in w.subject]
    return [type(message).__name__ for message in of_pod]


def test_a_promise_is_exchanged_for_the_free_gpu_beside_what_it_has(half_there: Bench):
    """Else the pod waits for a tenant that may live for days, although as many GPUs as it needs are free."""
    promise = grants(half_there, "big")[0]
    tenant = stays(half_there)
    writes = end(half_there, third(half_there))

    assert told(writes, "big") == ["Grant", "Waived", "Revoke", "Pending"]
    exchange = next(w.message for w in writes if isinstance(w.message, Grant))
    waived = next(w.message for w in writes if isinstance(w.message, Waived))
    revoke = next(w.message for w in writes if isinstance(w.message, Revoke) and w.message.booking == promise.booking)
    assert (exchange.after, exchange.evict) == ((promise.booking.allocation,), False)
    taken = {device.gpu for device in grants(half_there, tenant)[0].booking.devices}
    assert not taken & {device.gpu for device in exchange.booking.devices}
    assert waived.allocations == (promise.booking.allocation,)
    assert revoke.cause == "another place was free earlier"
    assert next(w.message for w in writes if isinstance(w.message, Pending)).message == (
        "its place on node-a is free, once its earlier reservation there is released"
    )

    after = half_there.land_all(half_there.gone(promise))
    assert told(after, "big") == ["Closed", "WaitOver"]
    (bound,) = [w.message for w in half_there.land_all(half_there.ready(exchange)) if isinstance(w.message, Bound)]
    assert bound.allocation == exchange.booking.allocation
    assert isinstance(grants(half_there, tenant)[0], Grant)


@pytest.mark.parametrize(
    "host",
    [
        HostNeeds(apart=(PodTerm(topology_key="kubernetes.io/hostname", selector=LLM, namespaces=("default",)),)),
        HostNeeds(ports=(HostPort(port=8000),)),
    ],
    ids=["one per host", "host port"],
)
def test_what_a_pod_was_promised_does_not_keep_it_from_what_is_free_beside(host: HostNeeds):
    """A pod that wants its host alone would be in its own way there, and wait for a tenant that need not go."""
    bench = fleet(WHOLE, a=3)
    big = changed(asked("big", TWO), host=host, labels={"app": "llm"})
    bench.land_all(bench.request(big))
    bench.now += AFTER_S
    bench.land_all(bench.handle(Ticked()))
    end(bench, waited_for(bench)[0])

    assert told(end(bench, third(bench)), "big") == ["Grant", "Waived", "Revoke", "Pending"]


def test_a_promise_that_is_kept_at_that_moment_is_bound_and_the_exchange_is_surplus(half_there: Bench):
    """Its agent has made the slice while another place was booked: the pod starts there and nothing stays booked."""
    promise, tenant = grants(half_there, "big")[0], grants(half_there, stays(half_there))[0]
    unsent = half_there.gone(grants(half_there, third(half_there))[0], revision=1)
    half_there.land_all(half_there.gone(tenant, revision=1))
    half_there.land_all(half_there.ready(promise))
    writes = half_there.land_all(unsent)

    assert [w.message.cause for w in writes if isinstance(w.message, Revoke)] == [
        "surplus: the request is bound elsewhere"
    ]
    bound = half_there.allocator.ctx.facts.bindings[BIG]
    assert isinstance(bound, Bound)
    assert bound.allocation == promise.booking.allocation


def test_an_exchange_whose_slice_fails_leaves_the_pod_its_turn(half_there: Bench):
    """What it kept is given up for it, so the pod must not wait for a promise as if it had just come."""
    promise = grants(half_there, "big")[0]
    end(half_there, third(half_there))
    half_there.land_all(half_there.gone(promise))
    (exchange,) = grants(half_there, "big")
    address = subjects.slice_(exchange.booking.node, exchange.booking.allocation)
    half_there.land_all(half_there.observe(address, failed(exchange)))
    half_there.land_all(half_there.gone(exchange))
    half_there.now += half_there.allocator.ctx.rules.promise_retry_max_s
    writes = half_there.land_all(half_there.handle(Ticked()))

    assert [w.message.booking.name for w in writes if isinstance(w.message, Grant)] == ["big"]


def test_two_allocators_exchange_a_promise_once(half_there: Bench):
    """What another one has booked for it is enough: with a second one beside it nothing would be left for anybody."""
    promise = grants(half_there, "big")[0]
    world = half_there.allocator.ctx.facts
    name, taken = third(half_there), gpus_of(half_there, stays(half_there))
    free = grants(half_there, name)[0].booking.devices[0]
    devices = (free, *(device for device in promise.booking.devices if device.gpu not in taken))
    booking = changed(promise.booking, allocation=AllocationId("big_r2_1"), devices=devices)
    theirs = Grant(revision=1, incarnation=world.incarnation, booking=booking, after=(promise.booking.allocation,))
    (closed,) = [i for i in half_there.gone(grants(half_there, name)[0], revision=1) if isinstance(i, Write)]
    mine = next(i for i in half_there.land(closed) if isinstance(i, Write) and isinstance(i.message, Grant))
    address = subjects.ledger(booking.node, booking.allocation)
    writes = half_there.land_all(half_there.observe(address, theirs))
    writes += half_there.land_all(half_there.handle(WriteRefused(mine.operation, world.sequences[address.subject])))

    assert not [w for w in writes if isinstance(w.message, Grant)]
    assert [w.message.booking for w in writes if isinstance(w.message, Revoke)] == [promise.booking]


def test_what_a_promise_was_exchanged_for_is_not_exchanged_again():
    """Each time that something is freed it would be booked again, and never be made."""
    bench = promised(WHOLE, claim(profile="7g.40gb", gpus=3), gpus=6)
    end(bench, waited_for(bench)[0])
    end(bench, waited_for(bench)[0])
    end(bench, third(bench))
    (exchange,) = grants(bench, "big")
    end(bench, third(bench))
    end(bench, third(bench))

    assert grants(bench, "big") == [exchange]


def test_a_promise_that_is_made_after_it_was_waived_does_not_end_what_it_was_exchanged_for(half_there: Bench):
    """The pod would lose both: the one because no pod may be bound to it, the other because that one is ready."""
    promise = grants(half_there, "big")[0]
    tenant = grants(half_there, stays(half_there))[0]
    goes = grants(half_there, third(half_there))[0]
    gone = RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone")
    half_there.land_all(half_there.observe(subjects.request(goes.booking.request), gone))
    todo = [i for i in half_there.gone(goes) if isinstance(i, Write)]
    held = []
    while todo:
        write = todo.pop(0)
        if isinstance(write.message, Revoke):
            held.append(write)
        else:
            todo += [i for i in half_there.land(write) if isinstance(i, Write)]
    assert [write.message.booking for write in held] == [promise.booking]
    exchange = next(g for g in grants(half_there, "big") if g.after == (promise.booking.allocation,))
    # meanwhile the tenant is gone, and the agent has made the promise
    half_there.land_all(half_there.observe(subjects.request(tenant.booking.request), gone))
    half_there.land_all(half_there.gone(tenant))
    half_there.land_all(half_there.ready(promise))
    half_there.land_all(held)
    half_there.land_all(half_there.gone(promise))

    assert exchange in grants(half_there, "big")


def test_a_promise_of_another_allocator_that_is_given_up_costs_the_request_nothing_else():
    """It was promised one by each of two allocators, and one of them is exchanged: one of the three must stand."""
    bench = fleet(WHOLE, a=3, b=2)
    p1 = promise(bench, TWO)
    end(bench, waited_for(bench)[0])
    goes = grants(bench, third(bench))[0]
    gone = RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone")
    bench.land_all(bench.observe(subjects.request(goes.booking.request), gone))
    (closed,) = [i for i in bench.gone(goes) if isinstance(i, Write)]
    e1 = next(i for i in bench.land(closed) if isinstance(i, Write) and isinstance(i.message, Grant))
    assert e1.message.after == (p1.booking.allocation,)
    # it is on its way, and meanwhile what another allocator wrote is read: big was promised two GPUs of node-b
    theirs = [grants(bench, pod)[0] for pod in ("b1", "b2")]
    booking = changed(
        p1.booking,
        allocation=AllocationId("big_r9_1"),
        node=NodeName("node-b"),
        devices=tuple(
            changed(d, gpu=e.booking.devices[0].gpu) for d, e in zip(p1.booking.devices, theirs, strict=True)
        ),
    )
    p2 = changed(p1, booking=booking, after=tuple(each.booking.allocation for each in theirs))
    said = bench.observe(subjects.ledger(booking.node, booking.allocation), p2)
    writes = bench.land_all([e1, *said])
    revoked = {w.message.booking.allocation for w in writes if isinstance(w.message, Revoke)}
    assert revoked == {p1.booking.allocation, p2.booking.allocation}


def test_what_it_left_elsewhere_keeps_no_promise_from_being_exchanged():
    """A slice that failed and cannot be given back may be there for ever, and is in no one's way on node-a."""
    bench = fleet(WHOLE, a=3, b=2)
    end(bench, "b1")
    end(bench, "b2")
    bench.land_all(bench.request(asked("big", TWO)))
    (there,) = grants(bench, "big")
    address = subjects.slice_(there.booking.node, there.booking.allocation)
    stuck = SliceQuarantined(
        allocation=there.booking.allocation, request=there.booking.request, revision=2, message="out of luck"
    )
    bench.land_all(bench.observe(address, failed(there)))
    bench.land_all(bench.observe(address, stuck))
    p1 = promise(bench, TWO)
    end(bench, waited_for(bench)[0])
    writes = end(bench, third(bench))
    for _ in range(60):
        bench.now += 10
        writes += bench.land_all(bench.handle(Ticked()))
    assert [w.message.after for w in writes if isinstance(w.message, Grant)] == [(p1.booking.allocation,)]
