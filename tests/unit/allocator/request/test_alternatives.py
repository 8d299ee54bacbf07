"""Alternatives, and requests that are refused or edited."""

from factories.scheduling.allocator import Bench, asked, claim, only
from factories.scheduling.gangs import fleet, member
from factories.scheduling.preemption import WHOLE, high, low, promise_for, tick
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.ids import RequestId
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.explain.status import how_it_stands


def size(profile: str, *, first: bool = False) -> msg.Claim:
    """One instance. Its key differs by alternative, as that of a subrequest does."""
    return claim(container="gpu" if first else f"gpu/{profile}", profile=profile)


def pod(name: str, first: str, *others: str, **more: object) -> msg.AllocationRequested:
    alternatives = tuple((size(each),) for each in others)
    return replace(asked(name, size(first, first=True)), alternatives=alternatives, **more)


def given(said: list) -> list[tuple[str, str, str | None]]:
    bookings = [each.booking for each in only(msg.Grant, said)]
    return [(booking.name, device.container, device.profile) for booking in bookings for device in booking.devices]


def test_who_waits_is_told_why_the_first_choice_could_not_be_had(bench):
    bench.bound("all", claim(profile="7g.40gb"))
    (pending,) = bench.asks(pod("p1", "4g.20gb", "3g.20gb", "1g.5gb"))
    said = "1 x NVIDIA A100-SXM4-40GB: no free place of that size; none of its 2 alternatives has one either"
    assert pending.message == said
    assert how_it_stands(bench.allocator.ctx, RequestId("p1")).message == f"waits: {said}"


def test_something_freed_serves_an_alternative(bench):
    bench.bound("large", claim(profile="4g.20gb"))
    small = bench.bound("small", claim(profile="3g.20gb"))
    bench.asks(pod("p1", "4g.20gb", "2g.10gb"))
    assert given(bench.words(bench.gone(small))) == [("p1", "gpu/2g.10gb", "2g.10gb")]


def test_no_pod_is_evicted_for_an_alternative_and_none_while_an_alternative_is_free(bench):
    bench.run(low("victim", claim(profile="4g.20gb")))
    beside = bench.asks(pod("p1", "4g.20gb", "3g.20gb", priority=9))
    first = bench.asks(pod("p2", "4g.20gb", "3g.20gb", priority=9))
    assert given(beside) == [("p1", "gpu/3g.20gb", "3g.20gb")]
    assert given(first) == [("p2", "gpu", "4g.20gb")]
    assert [each.evict for each in only(msg.Grant, first)] == [True]


def test_limits_are_judged_for_what_is_chosen(bench):
    bench.limit(memory_mib=10_000)
    said = bench.asks(pod("p1", "4g.20gb", "3g.20gb", "2g.10gb"), pod("p2", "4g.20gb", "1g.5gb"))
    assert given(said) == [("p1", "gpu/2g.10gb", "2g.10gb")]
    (pending,) = only(msg.Pending, said)
    assert pending.reasons[0].reason is WaitReason.QUOTA_EXCEEDED
    assert pending.message.endswith("; its alternative has none either")


def test_a_place_that_is_freed_serves_who_may_not_have_the_first_choice(bench):
    """It waits for places, not for its namespace's limits alone."""
    tenant = bench.bound("tenant", claim(profile="7g.40gb"))
    bench.limit("team", memory_mib=10_000)
    bench.asks(pod("p1", "4g.20gb", "2g.10gb", namespace="team"))
    assert given(bench.words(bench.gone(tenant))) == [("p1", "gpu/2g.10gb", "2g.10gb")]


def test_each_member_of_a_group_takes_its_own(bench):
    """One has its first choice, and the others do not wait for a second one of it."""
    job = msg.PodGroup(name="g", size=3)
    said = bench.asks(*(pod(name, "4g.20gb", "1g.5gb", group=job) for name in ("p1", "p2", "p3")))
    first, *others = sorted(given(said))
    assert first == ("p1", "gpu", "4g.20gb")
    assert others == [("p2", "gpu/1g.5gb", "1g.5gb"), ("p3", "gpu/1g.5gb", "1g.5gb")]


def test_an_alternative_beyond_the_operators_settings_is_refused(bench):
    many = (claim(container="gpu/all", profile=None, gpus=99),)
    (refused,) = bench.asks(replace(asked("p1"), alternatives=(many,)))
    assert refused.refusal.value == "99"


def test_requests_with_other_alternatives_do_not_wait_as_one(bench):
    """Where the first of a shape has no place, those behind it are not tried."""
    bench.bound("large", claim(profile="4g.20gb"))
    bench.bound("small", claim(profile="2g.10gb"))
    bench.asks(pod("p1", "4g.20gb", "3g.20gb"))
    assert given(bench.asks(pod("p2", "4g.20gb", "1g.5gb"))) == [("p2", "gpu/1g.5gb", "1g.5gb")]


IMPOSSIBLE = claim(gpus=57)
"""More than the allocator's setting allows one pod."""


def mended(bench: Bench, request: msg.AllocationRequested) -> list:
    """It asks for what no pod can have, is refused, and asks for something else; what is published."""
    assert only(msg.Refused, bench.asks(replace(request, claims=(IMPOSSIBLE,))))
    return bench.asks(replace(request, revision=2))


def reason(words: list) -> WaitReason | None:
    """The wait reason published last; None when that is over, or there was none."""
    told = only((msg.Pending, msg.WaitOver), words)
    return told[-1].reasons[0].reason if told and isinstance(told[-1], msg.Pending) else None


def test_a_pod_that_waits_for_an_eviction_is_told_so(bench: Bench):
    """It would show the refusal of before, and nothing else, for as long as the other one takes to go."""
    bench.run(low("batch", WHOLE))
    assert reason(mended(bench, high("pod", WHOLE))) is WaitReason.PLACE_BEING_FREED


def test_a_pod_that_waits_for_its_job_is_told_so():
    """The same; and it would read in turn that it waits and that it does not, once its job is looked at again."""
    bench = fleet(2)
    assert reason(mended(bench, member("pod", WHOLE))) is WaitReason.GROUP_INCOMPLETE
    assert not only(msg.WaitOver, tick(bench, 20))


def test_a_pod_that_is_granted_after_all_may_go_for_others(bench: Bench):
    """It said so: a more important one would wait until its slice is made and bound."""
    (grant,) = only(msg.Grant, mended(bench, low("pod", WHOLE)))
    assert promise_for(bench, high("service", WHOLE)).after == (grant.booking.allocation,)
