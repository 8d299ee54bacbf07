"""Pods that are granted together or not: requested, granted, created and released, on nodes of one GPU each."""

from factories.scheduling.allocator import INCARNATION, Bench, asked, claim, whole_gpu, working_allocator
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus.events import Ticked
from sluice_allocator.core.config import SchedulerConfig

WHOLE = claim(profile="7g.40gb")
SMALL = claim(profile="1g.5gb")


def member(request: str, *claims, size: int = 2, group: str = "train", priority: int = 0, **changes):
    plain = asked(request, *(claims or (SMALL,)), priority=priority)
    return replace(plain, group=msg.PodGroup(name=group, size=size), **changes)


def fleet(gpus: int, **rules) -> Bench:
    """An allocator with so many nodes of one empty A100-40GB each."""
    bench = working_allocator(SchedulerConfig(**rules))
    bench.add_nodes(*(f"node-{number}" for number in range(gpus)))
    bench.said.clear()
    return bench


def grants(said: list[msg.AnyMessage | None]) -> dict[str, msg.Grant]:
    return {each.booking.name: each for each in said if isinstance(each, msg.Grant)}


def bound(said: list[msg.AnyMessage | None]) -> list[str]:
    return [each.request for each in said if isinstance(each, msg.Bound)]


def waits(said: list[msg.AnyMessage | None]) -> dict[str, msg.Pending]:
    return {each.request: each for each in said if isinstance(each, msg.Pending)}


def tick(bench: Bench, seconds: float, *, times: int = 1) -> list[msg.AnyMessage | None]:
    said: list[msg.AnyMessage | None] = []
    for _ in range(times):
        bench.now += seconds
        said += bench.words(bench.handle(Ticked()))
    return said


def grant_of(node: str, request: msg.AllocationRequested, **changes: bool) -> msg.Grant:
    """What another allocator gives a pod: all of the first GPU of a node."""
    booking = whole_gpu(f"{request.name}_elsewhere_1", node=node, request=request.name)
    booking = replace(booking, owner=request.owner, namespace=request.namespace, source=request.source)
    return msg.Grant(revision=1, incarnation=INCARNATION, booking=booking, **changes)
