"""Pods that may be evicted, pods that preempt them, and the messages about both."""

import msgspec
from factories.scheduling.allocator import Bench, all_said, asked, claim, messages, only

from sluice.contracts.bus import subjects
from sluice.contracts.ids import RequestId
from sluice.contracts.messages import EvictionBlocked, EvictionDone, EvictionOrdered, EvictionOver, Grant, Leeway
from sluice_allocator.core.events import LeaseChanged

WHOLE = claim(profile="7g.40gb")
HALF = claim(profile="3g.20gb")
PREEMPTIBLE = Leeway(preemptible=True)


def low(name: str, *claims, priority: int = 0, **more):
    return msgspec.structs.replace(asked(name, *claims, priority=priority), leeway=PREEMPTIBLE, **more)


def high(name: str, *claims, priority: int = 10, **more):
    return msgspec.structs.replace(asked(name, *claims, priority=priority), **more)


def evicted(bench: Bench, name: str) -> list:
    """The pod-watcher has evicted a pod; what is said."""
    return bench.words(bench.observe(subjects.evicted(RequestId(name)), EvictionDone(request=RequestId(name))))


def blocked(bench: Bench, name: str, why: str = "the budget allows none") -> list:
    """The pod-watcher may not evict a pod; what is said."""
    word = EvictionBlocked(request=RequestId(name), why=why)
    return bench.words(bench.observe(subjects.evicted(RequestId(name)), word))


def tick(bench: Bench, seconds: float) -> list:
    """Time passes, second by second; what is said."""
    return messages(bench.passes(seconds, step=1.0))


def evictions(bench: Bench) -> dict[str, str]:
    last = {order.request: order for order in only((EvictionOrdered, EvictionOver), bench.said)}
    return {request: order.cause for request, order in last.items() if isinstance(order, EvictionOrdered)}


def promise_for(bench: Bench, message) -> Grant:
    """The grant that reserves an occupied place for a new request."""
    (promise,) = only(Grant, bench.asks(message))
    assert promise.evict
    return promise


def start(bench: Bench, nodes: int = 1, gpus: int = 1) -> Bench:
    """The same fleet of A100-40GB for every bench that is made by hand."""
    bench.read_all(all_said())
    bench.handle(LeaseChanged(held=True))
    bench.add_nodes(*(f"node-{chr(ord('a') + number)}" for number in range(nodes)), gpus=gpus)
    bench.said.clear()
    return bench
