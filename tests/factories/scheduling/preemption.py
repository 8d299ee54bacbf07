"""Pods that may be evicted, pods that preempt them, and the messages about both."""

import msgspec
from factories.scheduling.allocator import Bench, all_said, asked, claim

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Write
from sluice.contracts.ids import RequestId
from sluice.contracts.messages import EvictionOrdered, EvictionOver, Grant, Leeway
from sluice_allocator.core.events import LeaseChanged

WHOLE = claim(profile="7g.40gb")
HALF = claim(profile="3g.20gb")
PREEMPTIBLE = Leeway(preemptible=True)


def low(name: str, *claims, priority: int = 0, **more):
    return msgspec.structs.replace(asked(name, *claims, priority=priority), leeway=PREEMPTIBLE, **more)


def high(name: str, *claims, priority: int = 10, **more):
    return msgspec.structs.replace(asked(name, *claims, priority=priority), **more)


def run(bench: Bench, message) -> Grant:
    """A pod that is requested, granted, and has its slice."""
    writes = bench.land_all(bench.request(message))
    (grant,) = [write.message for write in writes if isinstance(write.message, Grant)]
    bench.land_all(bench.ready(grant))
    return grant


def said(writes: list[Write]) -> list:
    return [write.message for write in writes]


def withdraw(bench: Bench, name: str) -> list[Write]:
    return bench.land_all(bench.ends(name))


def ends(bench: Bench, grant: Grant) -> list[Write]:
    """The pod of a grant is gone, and its agent has unmade the slice."""
    return withdraw(bench, grant.booking.name) + bench.land_all(bench.gone(grant))


def outcome(bench: Bench, name: str, message) -> list[Write]:
    """The pod-watcher reports the outcome of an eviction."""
    return bench.land_all(bench.observe(subjects.evicted(RequestId(name)), message))


def tick(bench: Bench, seconds: float) -> list[Write]:
    return bench.passes(seconds, step=1.0)


def evictions(bench: Bench) -> dict[str, str]:
    last = {write.request: write.message for write in bench.said if isinstance(write, Write) and is_order(write)}
    return {request: order.cause for request, order in last.items() if isinstance(order, EvictionOrdered)}


def is_order(write: Write) -> bool:
    return isinstance(write.message, (EvictionOrdered, EvictionOver))


def promise_for(bench: Bench, message) -> Grant:
    """The grant that reserves an occupied place for a new request."""
    writes = bench.land_all(bench.request(message))
    (promise,) = [write.message for write in writes if isinstance(write.message, Grant)]
    assert promise.evict
    return promise


def start(bench: Bench, nodes: int = 1, gpus: int = 1) -> Bench:
    """The same fleet of A100-40GB for every bench that is made by hand."""
    bench.read_all(all_said())
    bench.handle(LeaseChanged(held=True))
    bench.add_nodes(*(f"node-{chr(ord('a') + number)}" for number in range(nodes)), gpus=gpus)
    bench.said.clear()
    return bench
