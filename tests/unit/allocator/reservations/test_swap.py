"""A promise is exchanged for what is free now together with a part of it, at once and without a moment between."""

import pytest
from factories.scheduling.allocator import Bench, asked, claim, working_allocator
from msgspec.structs import replace as changed

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Write
from sluice.contracts.ids import AllocationId, GpuUuid, NodeName, RequestId
from sluice_allocator.core.config import SchedulerConfig

WHOLE = claim(profile="7g.40gb")
TWO = claim(profile="7g.40gb", gpus=2)
AFTER_S = 300.0
BIG = RequestId("big")
LLM = (msg.NodeExpression(key="app", operator="In", values=("llm",)),)


@pytest.fixture
def half_there() -> Bench:
    """Three GPUs: a1, a2 and a3 have one each; big was promised two of them, and one of those is free by now."""
    bench = promised(WHOLE, TWO, gpus=3)
    end(bench, waited_for(bench)[0])
    return bench


def promised(has: msg.Claim, wants: msg.Claim, gpus: int) -> Bench:
    """On each of some GPUs a pod that has this (a1, a2 and so on), and big, which was promised what it wants."""
    bench = fleet(has, a=gpus)
    promise(bench, wants)
    return bench


def fleet(has: msg.Claim, **nodes: int) -> Bench:
    """Nodes with so many GPUs, and on each of these a pod that has this: a1, a2 and so on are on node-a."""
    bench = working_allocator(SchedulerConfig(promise_after_s=AFTER_S))
    for letter, gpus in nodes.items():
        bench.add_nodes(f"node-{letter}", gpus=gpus)
        for number in range(gpus):
            bench.bound(f"{letter}{number + 1}", has)
    return bench


def promise(bench: Bench, wants: msg.Claim) -> msg.Grant:
    bench.land_all(bench.request(asked("big", wants)))
    bench.passes(AFTER_S)
    (made,) = grants(bench, "big")
    return made


def end(bench: Bench, pod: str) -> list[Write]:
    """A pod ends and its slice is gone; returns what was written when it was."""
    grant = grants(bench, pod)[0]
    bench.land_all(bench.ends(pod))
    return bench.land_all(bench.gone(grant))


def gpus_of(bench: Bench, pod: str) -> set[GpuUuid]:
    return {device.gpu for grant in grants(bench, pod) for device in grant.booking.devices}


def grants(bench: Bench, pod: str) -> list[msg.Grant]:
    """What a pod is granted, in the order of the ledger."""
    world = bench.allocator.ctx.facts
    return [e for a in world.allocations_of[RequestId(pod)] if isinstance(e := world.ledger[a], msg.Grant)]


def waited_for(bench: Bench) -> list[str]:
    (promise,) = grants(bench, "big")
    world = bench.allocator.ctx.facts
    return [world.ledger[a].booking.name for a in promise.after if not isinstance(world.ledger[a], msg.Closed)]


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
    exchange = next(w.message for w in writes if isinstance(w.message, msg.Grant))
    waived = next(w.message for w in writes if isinstance(w.message, msg.Waived))
    revoke = next(
        w.message for w in writes if isinstance(w.message, msg.Revoke) and w.message.booking == promise.booking
    )
    assert (exchange.after, exchange.evict) == ((promise.booking.allocation,), False)
    taken = {device.gpu for device in grants(half_there, tenant)[0].booking.devices}
    assert not taken & {device.gpu for device in exchange.booking.devices}
    assert waived.allocations == (promise.booking.allocation,)
    assert revoke.cause == "another place was free earlier"
    assert next(w.message for w in writes if isinstance(w.message, msg.Pending)).message == (
        "its place on node-a is free, once its earlier reservation there is released"
    )

    after = half_there.land_all(half_there.gone(promise))
    assert told(after, "big") == ["Closed", "WaitOver"]
    (bound,) = [w.message for w in half_there.land_all(half_there.ready(exchange)) if isinstance(w.message, msg.Bound)]
    assert bound.allocation == exchange.booking.allocation
    assert isinstance(grants(half_there, tenant)[0], msg.Grant)


@pytest.mark.parametrize(
    "host",
    [
        msg.HostNeeds(
            apart=(msg.PodTerm(topology_key="kubernetes.io/hostname", selector=LLM, namespaces=("default",)),)
        ),
        msg.HostNeeds(ports=(msg.HostPort(port=8000),)),
    ],
    ids=["one per host", "host port"],
)
def test_what_a_pod_was_promised_does_not_keep_it_from_what_is_free_beside(host: msg.HostNeeds):
    """A pod that wants its host alone would be in its own way there, and wait for a tenant that need not go."""
    bench = fleet(WHOLE, a=3)
    big = changed(asked("big", TWO), host=host, labels={"app": "llm"})
    bench.land_all(bench.request(big))
    bench.passes(AFTER_S)
    end(bench, waited_for(bench)[0])

    assert told(end(bench, third(bench)), "big") == ["Grant", "Waived", "Revoke", "Pending"]


def test_a_promise_that_is_kept_at_that_moment_is_bound_and_the_exchange_is_surplus(half_there: Bench):
    """Its agent has made the slice while another place was booked: the pod starts there and nothing stays booked."""
    promise, tenant = grants(half_there, "big")[0], grants(half_there, stays(half_there))[0]
    unsent = half_there.gone(grants(half_there, third(half_there))[0], revision=1)
    half_there.land_all(half_there.gone(tenant, revision=1))
    half_there.land_all(half_there.ready(promise))
    writes = half_there.land_all(unsent)

    assert [w.message.cause for w in writes if isinstance(w.message, msg.Revoke)] == [
        "surplus: the request is bound elsewhere"
    ]
    bound = half_there.allocator.ctx.facts.bindings[BIG]
    assert isinstance(bound, msg.Bound)
    assert bound.allocation == promise.booking.allocation


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


def test_a_promise_of_another_allocator_that_is_given_up_costs_the_request_nothing_else():
    """It was promised one by each of two allocators, and one of them is exchanged: one of the three must stand."""
    bench = fleet(WHOLE, a=3, b=2)
    p1 = promise(bench, TWO)
    end(bench, waited_for(bench)[0])
    goes = grants(bench, third(bench))[0]
    bench.land_all(bench.ends(goes.booking.request))
    (closed,) = [i for i in bench.gone(goes) if isinstance(i, Write)]
    e1 = next(i for i in bench.land(closed) if isinstance(i, Write) and isinstance(i.message, msg.Grant))
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
    revoked = {w.message.booking.allocation for w in writes if isinstance(w.message, msg.Revoke)}
    assert revoked == {p1.booking.allocation, p2.booking.allocation}
