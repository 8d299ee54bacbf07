"""A pod that was refused, and edited since: the reason that it shows now."""

from factories.scheduling.allocator import Bench, claim
from factories.scheduling.gangs import everything, fleet, member
from factories.scheduling.preemption import WHOLE, high, low, run, said, tick
from msgspec.structs import replace

from sluice.contracts.messages import AllocationRequested, Grant, Pending, Refused, WaitOver
from sluice.contracts.reasons import WaitReason

IMPOSSIBLE = claim(gpus=57)
"""More than the allocator's setting allows one pod."""


def mended(bench: Bench, request: AllocationRequested) -> list:
    """It asks for what no pod can have, is refused, and asks for something else; what is published."""
    assert Refused in [type(each) for each in everything(bench, bench.request(replace(request, claims=(IMPOSSIBLE,))))]
    return everything(bench, bench.request(replace(request, revision=2)))


def reason(words: list) -> WaitReason | None:
    """What it was told last of why it waits; None when that is over, or it was told nothing."""
    told = [each for each in words if isinstance(each, Pending | WaitOver)]
    return told[-1].reasons[0].reason if told and isinstance(told[-1], Pending) else None


def test_a_pod_that_waits_for_an_eviction_is_told_so(bench: Bench):
    """It would show the refusal of before, and nothing else, for as long as the other one takes to go."""
    run(bench, low("batch", WHOLE))
    assert reason(mended(bench, high("pod", WHOLE))) is WaitReason.PLACE_BEING_FREED


def test_a_pod_that_waits_for_its_job_is_told_so():
    """The same; and it would be told in turn that it waits and that it does not, once its job is looked at again."""
    bench = fleet(2)
    words = mended(bench, member("pod", WHOLE))
    assert reason(words) is WaitReason.GROUP_INCOMPLETE
    assert WaitOver not in [type(each) for each in said(tick(bench, 20))]


def test_a_pod_that_is_granted_after_all_may_go_for_others(bench: Bench):
    """It said so: a more important one would wait until its slice is made and bound."""
    (grant,) = (each for each in mended(bench, low("pod", WHOLE)) if isinstance(each, Grant))
    (promise, *_) = said(bench.land_all(bench.request(high("service", WHOLE))))
    assert isinstance(promise, Grant)
    assert promise.after == (grant.booking.allocation,)
