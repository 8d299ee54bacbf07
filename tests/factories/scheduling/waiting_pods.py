"""Situations in which a pod waits for its turn, not for a place: each ends with the pod's wait reason."""

import msgspec
from factories.scheduling.allocator import Bench, asked, claim, working_allocator

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Ticked, Write
from sluice.contracts.ids import RequestId
from sluice.contracts.messages import AllocationRequested, Amounts, Leeway, Pending, PodGroup, QuotaSet
from sluice_allocator.core.config import SchedulerConfig

SMALL, HALF, WHOLE = claim(profile="1g.5gb"), claim(profile="3g.20gb"), claim(profile="7g.40gb")
LONG_S = 3600.0
REFRESHED_S = 10.0
"""The same reason with a changed message is published at most every five seconds."""


def over_its_quota() -> Pending:
    """Its namespace has all that it may have."""
    bench = _of_one_gpu()
    quota = QuotaSet(namespace="default", total=Amounts(memory_mib=25000), request=Amounts())
    bench.settle(bench.observe(subjects.quota("default"), quota))
    _runs(bench, asked("first", HALF))
    return _waits(bench, asked("second", HALF))


def of_a_group_that_is_not_complete() -> Pending:
    return _waits(_of_one_gpu(), _member("worker-0", 3))


def of_a_group_without_room() -> Pending:
    """Two pods that need a GPU each, and there is one."""
    bench = _of_one_gpu()
    _waits(bench, _member("worker-0", 2, WHOLE))
    _waits(bench, _member("worker-1", 2, WHOLE))
    bench.now += REFRESHED_S
    return _told(bench.settle(bench.handle(Ticked())), "worker-1")


def whose_place_is_being_freed() -> Pending:
    """A less important pod is evicted for it."""
    bench = _of_one_gpu()
    _runs(bench, msgspec.structs.replace(asked("batch", WHOLE), leeway=Leeway(preemptible=True)))
    return _waits(bench, asked("service", WHOLE, priority=100))


def behind_a_promise_of_the_place() -> Pending:
    """A large pod has waited for an hour; what is freed meanwhile is kept for it."""
    bench = _of_one_gpu()
    _runs(bench, asked("half", HALF))
    _waits(bench, asked("large", WHOLE))
    bench.now += LONG_S
    bench.settle(bench.handle(Ticked()))
    return _waits(bench, asked("late", SMALL))


def outside_of_a_full_queue() -> Pending:
    bench = _of_one_gpu(waiting_max=2)
    _runs(bench, asked("first", WHOLE))
    _waits(bench, asked("second", WHOLE))
    _waits(bench, asked("third", WHOLE))
    return _waits(bench, asked("fourth", WHOLE))


def _of_one_gpu(**rules: int) -> Bench:
    bench = working_allocator(SchedulerConfig(**rules))
    bench.add_nodes("gpu-1")
    return bench


def _member(name: str, size: int, *claims: object) -> AllocationRequested:
    return msgspec.structs.replace(asked(name, *claims), group=PodGroup(name="trainer-42", size=size))


def _runs(bench: Bench, request: AllocationRequested) -> None:
    (write,) = bench.settle(bench.request(request))
    bench.settle(bench.ready(write.message))


def _waits(bench: Bench, request: AllocationRequested) -> Pending:
    return _told(bench.settle(bench.request(request)), request.name)


def _told(writes: list[Write], name: str) -> Pending:
    said = [write.message for write in writes]
    told = [each for each in said if isinstance(each, Pending) and each.request == RequestId(name)]
    assert told, f"{name} is not told to wait: {said}"
    return told[-1]
