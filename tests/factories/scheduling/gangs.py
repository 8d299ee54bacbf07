"""Pods that are granted together or not: requested, granted, created and released, on nodes of one GPU each."""

import msgspec
from factories.scheduling.allocator import Bench, asked, claim, whole_gpu, working_allocator

from sluice.contracts import messages as msg
from sluice.contracts.bus.events import Ticked, Write
from sluice_allocator.core.config import SchedulerConfig

WHOLE = claim(profile="7g.40gb")
SMALL = claim(profile="1g.5gb")


def member(request: str, *claims, size: int = 2, group: str = "train", priority: int = 0, **changes):
    plain = asked(request, *(claims or (SMALL,)), priority=priority)
    return msgspec.structs.replace(plain, group=msg.PodGroup(name=group, size=size), **changes)


def fleet(gpus: int, **rules) -> Bench:
    """An allocator with so many nodes of one empty A100-40GB each."""
    bench = working_allocator(SchedulerConfig(**rules))
    bench.add_nodes(*(f"node-{number}" for number in range(gpus)))
    bench.said.clear()
    return bench


def messages(writes: list[Write]) -> list[msg.AnyMessage | None]:
    return [write.message for write in writes]


def everything(bench: Bench, first: list) -> list[msg.AnyMessage | None]:
    """What follows from these instructions, all landing at once, until nothing more does."""
    return bench.words(first)


def ask(bench: Bench, *members: msg.AllocationRequested) -> list[msg.AnyMessage | None]:
    return [message for each in members for message in everything(bench, bench.request(each))]


def grants(said: list[msg.AnyMessage | None]) -> dict[str, msg.Grant]:
    return {each.booking.name: each for each in said if isinstance(each, msg.Grant)}


def bound(said: list[msg.AnyMessage | None]) -> list[str]:
    return [each.request for each in said if isinstance(each, msg.Bound)]


def waits(said: list[msg.AnyMessage | None]) -> dict[str, msg.Pending]:
    return {each.request: each for each in said if isinstance(each, msg.Pending)}


def ready(bench: Bench, grant: msg.Grant) -> list[msg.AnyMessage | None]:
    return everything(bench, bench.ready(grant))


def tick(bench: Bench, seconds: float, *, times: int = 1) -> list[msg.AnyMessage | None]:
    said: list[msg.AnyMessage | None] = []
    for _ in range(times):
        bench.now += seconds
        said += everything(bench, bench.handle(Ticked()))
    return said


def gone(bench: Bench, grant: msg.Grant) -> list[msg.AnyMessage | None]:
    return everything(bench, bench.gone(grant))


def grant_of(name: str, node: str, request: msg.AllocationRequested) -> msg.Grant:
    booking = whole_gpu(f"{name}_elsewhere_1", node=node, request=name)
    pod = {"owner": request.owner, "namespace": request.namespace, "source": request.source}
    return msg.Grant(revision=1, incarnation="1000", booking=msgspec.structs.replace(booking, **pod))
