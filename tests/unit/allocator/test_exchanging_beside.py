"""What else a request has, or had, when its promise is exchanged."""

from factories.allocator import FOLDER, Bench, asked, claim, gpu_report, snapshot
from msgspec.structs import replace as changed

from sluice.contracts import subjects
from sluice.contracts.exchange import Ticked, Write
from sluice.contracts.ids import AllocationId, NodeName, RequestId, RunId
from sluice.contracts.messages import Grant, RequestWithdrawn, Revoke, SliceFailed, SliceQuarantined
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.events import LeaseChanged
from sluice_allocator.core.rules import Rules

WHOLE = claim(profile="7g.40gb")
TWO = claim(profile="7g.40gb", gpus=2)
AFTER_S = 300.0


def start(**nodes: int) -> Bench:
    """Nodes with so many GPUs, each with one pod: a1, a2, ..."""
    bench = Bench(Allocator(RunId("r1"), Rules(promise_after_s=AFTER_S)))
    bench.read_all()
    bench.handle(LeaseChanged(held=True))
    for letter, gpus in nodes.items():
        node = f"node-{letter}"
        bench.add_node(snapshot(node, tuple(gpu_report(node, index) for index in range(gpus))))
        for number in range(gpus):
            bench.bound(f"{letter}{number + 1}", WHOLE)
    return bench


def entries(bench: Bench, name: str) -> list:
    """What the ledger has of a pod."""
    world = bench.allocator.desk.world
    return [world.ledger[a] for a in world.allocations_of.get(RequestId(name), ())]


def gpus(grant: Grant) -> set:
    """The GPUs of a grant."""
    return {device.gpu for device in grant.booking.devices}


def withdraw(bench: Bench, name: str) -> None:
    """A pod has gone; its slice is there yet."""
    gone = RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone")
    bench.land_all(bench.observe(subjects.request(RequestId(name)), gone))


def end(bench: Bench, name: str) -> list[Write]:
    """A pod has gone, and its slice."""
    grant = entries(bench, name)[0]
    withdraw(bench, name)
    return bench.land_all(bench.gone(grant))


def promise(bench: Bench) -> Grant:
    """Big is promised two GPUs of node-a, of which one is free by now."""
    bench.land_all(bench.request(asked("big", TWO)))
    bench.now += AFTER_S
    bench.land_all(bench.handle(Ticked()))
    (grant,) = [each for each in entries(bench, "big") if isinstance(each, Grant)]
    assert grant.booking.node == "node-a"
    first = next(n for n in ("a1", "a2", "a3") if entries(bench, n)[0].booking.allocation in grant.after)
    end(bench, first)
    return grant


def beside(bench: Bench, grant: Grant) -> str:
    """One on node-a that big was not promised."""
    mine = [n for n in ("a1", "a2", "a3") if isinstance(entries(bench, n)[0], Grant)]
    return next(n for n in mine if not gpus(entries(bench, n)[0]) & gpus(grant))


def test_a_promise_of_another_allocator_that_is_given_up_costs_the_request_nothing_else():
    """It was promised one by each of two allocators, and one of them is exchanged: one of the three must stand."""
    bench = start(a=3, b=2)
    p1 = promise(bench)
    name = beside(bench, p1)
    goes = entries(bench, name)[0]
    withdraw(bench, name)
    (closed,) = [i for i in bench.gone(goes) if isinstance(i, Write)]
    e1 = next(i for i in bench.land(closed) if isinstance(i, Write) and isinstance(i.message, Grant))
    assert e1.message.after == (p1.booking.allocation,)
    # it is on its way, and meanwhile what another allocator wrote is read: big was promised two GPUs of node-b
    q = [entries(bench, n)[0] for n in ("b1", "b2")]
    booking = changed(
        p1.booking,
        allocation=AllocationId("big_r9_1"),
        node=NodeName("node-b"),
        devices=tuple(changed(d, gpu=e.booking.devices[0].gpu) for d, e in zip(p1.booking.devices, q, strict=True)),
    )
    p2 = changed(p1, booking=booking, after=tuple(each.booking.allocation for each in q))
    said = bench.observe(subjects.ledger(booking.node, booking.allocation), p2)
    writes = bench.land_all([e1, *said])
    revoked = {w.message.booking.allocation for w in writes if isinstance(w.message, Revoke)}
    assert revoked == {p1.booking.allocation, p2.booking.allocation}, e1.message.booking.allocation


def test_what_it_left_elsewhere_keeps_no_promise_from_being_exchanged():
    """A slice that failed and cannot be given back may be there for ever, and is in nobody's way on node-a."""
    bench = start(a=3, b=2)
    end(bench, "b1")
    end(bench, "b2")
    bench.land_all(bench.request(asked("big", TWO)))
    (there,) = [each for each in entries(bench, "big") if isinstance(each, Grant)]
    address = subjects.slice_(there.booking.node, there.booking.allocation)
    said = {"allocation": there.booking.allocation, "request": there.booking.request, "message": "out of luck"}
    bench.land_all(bench.observe(address, SliceFailed(revision=1, error="Unknown", **said)))
    bench.land_all(bench.observe(address, SliceQuarantined(revision=2, **said)))
    p1 = promise(bench)
    writes = end(bench, beside(bench, p1))
    for _ in range(60):
        bench.now += 10
        writes += bench.land_all(bench.handle(Ticked()))
    assert [w.message.after for w in writes if isinstance(w.message, Grant)] == [(p1.booking.allocation,)]
