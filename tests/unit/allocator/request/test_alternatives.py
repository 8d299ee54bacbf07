"""Alternatives, and requests that are refused or edited."""

import msgspec
from factories.scheduling.allocator import Bench, asked, claim, working_allocator
from factories.scheduling.gangs import everything, fleet, member
from factories.scheduling.preemption import WHOLE, high, low, run, said, tick
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import RequestId
from sluice.contracts.messages import AllocationRequested, Grant, Pending, Refused, WaitOver
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.explain.status import how_it_stands


def bench_of() -> Bench:
    bench = working_allocator()
    bench.add_nodes("node-a")
    bench.said.clear()
    return bench


def size(profile: str, *, first: bool = False) -> msg.Claim:
    """One instance. Its key differs by alternative, as that of a subrequest does."""
    return claim(container="gpu" if first else f"gpu/{profile}", profile=profile)


def pod(name: str, first: str, *others: str, **more: object) -> msg.AllocationRequested:
    alternatives = tuple((size(each),) for each in others)
    return msgspec.structs.replace(asked(name, size(first, first=True)), alternatives=alternatives, **more)


def given(writes) -> list[tuple[str, str, str | None]]:
    grants = [write.message.booking for write in writes if isinstance(write.message, msg.Grant)]
    return [(booking.name, device.container, device.profile) for booking in grants for device in booking.devices]


def test_who_waits_is_told_why_the_first_choice_could_not_be_had():
    bench = bench_of()
    bench.bound("all", claim(profile="7g.40gb"))

    (write,) = bench.land_all(bench.request(pod("p1", "4g.20gb", "3g.20gb", "1g.5gb")))
    standing = how_it_stands(bench.allocator.ctx, RequestId("p1"))

    said = "1 x NVIDIA A100-SXM4-40GB: no free place of that size; none of its 2 alternatives has one either"
    assert isinstance(write.message, msg.Pending)
    assert write.message.message == said
    assert standing.message == f"waits: {said}"


def test_something_freed_serves_an_alternative():
    bench = bench_of()
    bench.bound("large", claim(profile="4g.20gb"))
    small = bench.bound("small", claim(profile="3g.20gb"))
    bench.land_all(bench.request(pod("p1", "4g.20gb", "2g.10gb")))

    writes = bench.land_all(bench.gone(small))

    assert given(writes) == [("p1", "gpu/2g.10gb", "2g.10gb")]


def test_no_pod_is_evicted_for_an_alternative_and_none_while_an_alternative_is_free():
    bench = bench_of()
    victim = msgspec.structs.replace(asked("victim", claim(profile="4g.20gb")), leeway=msg.Leeway(preemptible=True))
    (grant,) = [w.message for w in bench.land_all(bench.request(victim)) if isinstance(w.message, msg.Grant)]
    bench.land_all(bench.ready(grant))

    beside = bench.land_all(bench.request(pod("p1", "4g.20gb", "3g.20gb", priority=9)))
    first = bench.land_all(bench.request(pod("p2", "4g.20gb", "3g.20gb", priority=9)))

    assert given(beside) == [("p1", "gpu/3g.20gb", "3g.20gb")]
    assert given(first) == [("p2", "gpu", "4g.20gb")]
    (evicting,) = [write.message for write in first if isinstance(write.message, msg.Grant)]
    assert evicting.evict


def test_limits_are_judged_for_what_is_chosen():
    bench = bench_of()
    limits = msg.QuotaSet(namespace="default", total=msg.Amounts(memory_mib=10_000))
    bench.observe(subjects.quota("default"), limits)

    writes = bench.land_all(bench.request(pod("p1", "4g.20gb", "3g.20gb", "2g.10gb")))
    writes += bench.land_all(bench.request(pod("p2", "4g.20gb", "1g.5gb")))

    assert given(writes) == [("p1", "gpu/2g.10gb", "2g.10gb")]
    (pending,) = [write.message for write in writes if isinstance(write.message, msg.Pending)]
    assert pending.reasons[0].reason is WaitReason.QUOTA_EXCEEDED
    assert pending.message.endswith("; its alternative has none either")


def test_a_place_that_is_freed_serves_who_may_not_have_the_first_choice():
    """It waits for places, not for its namespace's limits alone."""
    bench = bench_of()
    tenant = bench.bound("tenant", claim(profile="7g.40gb"))
    other = msgspec.structs.replace(pod("p1", "4g.20gb", "2g.10gb"), namespace="team")
    bench.observe(subjects.quota("team"), msg.QuotaSet(namespace="team", total=msg.Amounts(memory_mib=10_000)))
    bench.land_all(bench.request(other))

    assert given(bench.land_all(bench.gone(tenant))) == [("p1", "gpu/2g.10gb", "2g.10gb")]


def test_each_member_of_a_group_takes_its_own():
    """One has its first choice, and the others do not wait for a second one of it."""
    bench = bench_of()
    writes = []
    for name in ("p1", "p2", "p3"):
        writes += bench.land_all(bench.request(pod(name, "4g.20gb", "1g.5gb", group=msg.PodGroup(name="g", size=3))))
    assert sorted(given(writes)) == [
        ("p1", "gpu", "4g.20gb"),
        ("p2", "gpu/1g.5gb", "1g.5gb"),
        ("p3", "gpu/1g.5gb", "1g.5gb"),
    ]


def test_an_alternative_beyond_the_operators_settings_is_refused():
    bench = bench_of()
    many = (claim(container="gpu/all", profile=None, gpus=99),)
    (write,) = bench.land_all(bench.request(msgspec.structs.replace(asked("p1"), alternatives=(many,))))

    assert isinstance(write.message, msg.Refused)
    assert write.message.refusal.value == "99"


def test_requests_with_other_alternatives_do_not_wait_as_one():
    """Where the first of a shape has no place, those behind it are not tried."""
    bench = bench_of()
    bench.bound("large", claim(profile="4g.20gb"))
    bench.bound("small", claim(profile="2g.10gb"))
    bench.land_all(bench.request(pod("p1", "4g.20gb", "3g.20gb")))

    assert given(bench.land_all(bench.request(pod("p2", "4g.20gb", "1g.5gb")))) == [("p2", "gpu/1g.5gb", "1g.5gb")]


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
