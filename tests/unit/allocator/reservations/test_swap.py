"""A promise is exchanged for what is free now together with a part of it, at once and without a moment between."""

import pytest
from factories.scheduling.allocator import Bench, asked, claim, kinds, only, working_allocator
from msgspec.structs import replace as changed

from sluice.contracts import messages as msg
from sluice.contracts.bus.events import Write
from sluice.contracts.ids import AllocationId, GpuUuid, NodeName, RequestId
from sluice_allocator.core.config import SchedulerConfig

WHOLE = claim(profile="7g.40gb")
TWO = claim(profile="7g.40gb", gpus=2)
AFTER_S = 300.0
LLM = (msg.NodeExpression(key="app", operator="In", values=("llm",)),)


@pytest.fixture
def half_there() -> Bench:
    """Three GPUs: a1, a2 and a3 have one each; big was promised two of them, and one of those is free by now."""
    bench = fleet(a=3)
    promise(bench, asked("big", TWO))
    end(bench, waited_for(bench)[0])
    return bench


def fleet(**nodes: int) -> Bench:
    """Nodes with so many GPUs, and on each of these a pod: a1, a2 and so on are on node-a."""
    bench = working_allocator(SchedulerConfig(promise_after_s=AFTER_S))
    for letter, gpus in nodes.items():
        bench.add_nodes(f"node-{letter}", gpus=gpus)
        for number in range(gpus):
            bench.bound(f"{letter}{number + 1}", WHOLE)
    return bench


def promise(bench: Bench, big: msg.AllocationRequested) -> msg.Grant:
    bench.asks(big)
    bench.passes(AFTER_S)
    (made,) = grants(bench, "big")
    return made


def end(bench: Bench, pod: str) -> list[Write]:
    """A pod ends and its slice is gone; returns what was written when it was."""
    grant = grants(bench, pod)[0]
    bench.withdraw(pod)
    return bench.settle(bench.gone(grant))


def gpus_of(bench: Bench, pod: str) -> set[GpuUuid]:
    return {device.gpu for grant in grants(bench, pod) for device in grant.booking.devices}


def grants(bench: Bench, pod: str) -> list[msg.Grant]:
    """What a pod is granted, in the order of the ledger."""
    world = bench.allocator.ctx.facts
    return only(msg.Grant, (world.ledger[each] for each in world.allocations_of[RequestId(pod)]))


def waited_for(bench: Bench) -> list[str]:
    (promise,) = grants(bench, "big")
    world = bench.allocator.ctx.facts
    return [world.ledger[a].booking.name for a in promise.after if not isinstance(world.ledger[a], msg.Closed)]


def third(bench: Bench) -> str:
    kept = gpus_of(bench, "big")
    return next(pod for pod in ("a1", "a2", "a3", "a4", "a5", "a6") if gpus_of(bench, pod) - kept)


def told(writes: list[Write], pod: str) -> list:
    return [write.message for write in writes if pod in write.subject]


EXCHANGED = [msg.Grant, msg.Waived, msg.Revoke, msg.Pending]


def test_a_promise_is_exchanged_for_the_free_gpu_beside_what_it_has(half_there: Bench):
    """Else the pod waits for a tenant that may live for days, although as many GPUs as it needs are free."""
    (promise,) = grants(half_there, "big")
    (tenant,) = waited_for(half_there)
    said = told(end(half_there, third(half_there)), "big")
    assert kinds(said) == EXCHANGED
    exchange, waived, revoke, pending = said
    assert (exchange.after, exchange.evict) == ((promise.booking.allocation,), False)
    assert not gpus_of(half_there, tenant) & {device.gpu for device in exchange.booking.devices}
    assert waived.allocations == (promise.booking.allocation,)
    assert (revoke.booking, revoke.cause) == (promise.booking, "another place was free earlier")
    assert pending.message == "its place on node-a is free, once its earlier reservation there is released"

    after = half_there.settle(half_there.gone(promise))
    assert kinds(told(after, "big")) == [msg.Closed, msg.WaitOver]
    (bound,) = only(msg.Bound, half_there.settle(half_there.ready(exchange)))
    assert bound.allocation == exchange.booking.allocation
    assert grants(half_there, tenant)


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
    bench = fleet(a=3)
    promise(bench, changed(asked("big", TWO), host=host, labels={"app": "llm"}))
    end(bench, waited_for(bench)[0])
    assert kinds(told(end(bench, third(bench)), "big")) == EXCHANGED


def test_a_promise_that_is_kept_at_that_moment_is_bound_and_the_exchange_is_surplus(half_there: Bench):
    """Its agent has made the slice while another place was booked: the pod starts there and nothing stays booked."""
    promise, tenant = grants(half_there, "big")[0], grants(half_there, waited_for(half_there)[0])[0]
    unsent = half_there.gone(grants(half_there, third(half_there))[0], revision=1)
    half_there.land_all(half_there.gone(tenant, revision=1))
    half_there.land_all(half_there.ready(promise))
    causes = [each.cause for each in only(msg.Revoke, half_there.land_all(unsent))]
    assert causes == ["surplus: the request is bound elsewhere"]
    bound = half_there.allocator.ctx.facts.bindings[RequestId("big")]
    assert (type(bound), bound.allocation) == (msg.Bound, promise.booking.allocation)


def test_what_a_promise_was_exchanged_for_is_not_exchanged_again():
    """Each time that something is freed it would be booked again, and never be made."""
    bench = fleet(a=6)
    promise(bench, asked("big", claim(profile="7g.40gb", gpus=3)))
    end(bench, waited_for(bench)[0])
    end(bench, waited_for(bench)[0])
    end(bench, third(bench))
    (exchange,) = grants(bench, "big")
    end(bench, third(bench))
    end(bench, third(bench))
    assert grants(bench, "big") == [exchange]


def test_a_promise_of_another_allocator_that_is_given_up_costs_the_request_nothing_else():
    """It was promised one by each of two allocators, and one of them is exchanged: one of the three must stand."""
    bench = fleet(a=3, b=2)
    p1 = promise(bench, asked("big", TWO))
    end(bench, waited_for(bench)[0])
    goes = grants(bench, third(bench))[0]
    bench.withdraw(goes.booking.name)
    (closed,) = [i for i in bench.gone(goes) if isinstance(i, Write)]
    e1 = next(i for i in bench.land(closed) if isinstance(i, Write) and isinstance(i.message, msg.Grant))
    assert e1.message.after == (p1.booking.allocation,)
    # it is on its way, and meanwhile what another allocator wrote is read: big was promised two GPUs of node-b
    theirs = [grants(bench, pod)[0] for pod in ("b1", "b2")]
    gpus = [each.booking.devices[0].gpu for each in theirs]
    devices = tuple(changed(device, gpu=gpu) for device, gpu in zip(p1.booking.devices, gpus, strict=True))
    booking = changed(p1.booking, allocation=AllocationId("big_r9_1"), node=NodeName("node-b"), devices=devices)
    p2 = changed(p1, booking=booking, after=tuple(each.booking.allocation for each in theirs))
    writes = bench.land_all([e1, *bench.reads(p2)])
    revoked = {each.booking.allocation for each in only(msg.Revoke, writes)}
    assert revoked == {p1.booking.allocation, p2.booking.allocation}
