"""Alternatives of a request: the first claims with a free place are granted, and no pod leaves for a second choice."""

import msgspec
from factories.scheduling.allocator import Bench, asked, claim, gpu_report, snapshot, working_allocator

from sluice.contracts.bus import subjects
from sluice.contracts.ids import RequestId
from sluice.contracts.messages import (
    AllocationRequested,
    Amounts,
    Claim,
    Grant,
    Leeway,
    Pending,
    PodGroup,
    QuotaSet,
    Refused,
)
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.explain.status import how_it_stands


def bench_of() -> Bench:
    bench = working_allocator()
    bench.add_node(snapshot("node-a", (gpu_report("node-a", 0),)))
    bench.said.clear()
    return bench


def size(profile: str, *, first: bool = False) -> Claim:
    """One instance. Its key differs by alternative, as that of a subrequest does."""
    return claim(container="gpu" if first else f"gpu/{profile}", profile=profile)


def pod(name: str, first: str, *others: str, **more: object) -> AllocationRequested:
    alternatives = tuple((size(each),) for each in others)
    return msgspec.structs.replace(asked(name, size(first, first=True)), alternatives=alternatives, **more)


def given(writes) -> list[tuple[str, str, str | None]]:
    grants = [write.message.booking for write in writes if isinstance(write.message, Grant)]
    return [(booking.name, device.container, device.profile) for booking in grants for device in booking.devices]


def test_who_waits_is_told_why_the_first_choice_could_not_be_had():
    """And that the others cannot either."""
    bench = bench_of()
    bench.bound("all", claim(profile="7g.40gb"))

    (write,) = bench.land_all(bench.request(pod("p1", "4g.20gb", "3g.20gb", "1g.5gb")))
    standing = how_it_stands(bench.allocator.ctx, RequestId("p1"))

    said = "1 x NVIDIA A100-SXM4-40GB: no free place of that size; none of its 2 alternatives has one either"
    assert isinstance(write.message, Pending)
    assert write.message.message == said
    assert standing is not None
    assert standing.message == f"waits: {said}"


def test_something_freed_serves_an_alternative():
    """Where there is still no room for the first choice."""
    bench = bench_of()
    bench.bound("large", claim(profile="4g.20gb"))
    small = bench.bound("small", claim(profile="3g.20gb"))
    bench.land_all(bench.request(pod("p1", "4g.20gb", "2g.10gb")))

    writes = bench.land_all(bench.gone(small))

    assert given(writes) == [("p1", "gpu/2g.10gb", "2g.10gb")]


def test_no_pod_is_evicted_for_an_alternative_and_none_while_an_alternative_is_free():
    """An eviction costs a pod its work."""
    bench = bench_of()
    victim = msgspec.structs.replace(asked("victim", claim(profile="4g.20gb")), leeway=Leeway(preemptible=True))
    (grant,) = [w.message for w in bench.land_all(bench.request(victim)) if isinstance(w.message, Grant)]
    bench.land_all(bench.ready(grant))

    beside = bench.land_all(bench.request(pod("p1", "4g.20gb", "3g.20gb", priority=9)))
    first = bench.land_all(bench.request(pod("p2", "4g.20gb", "3g.20gb", priority=9)))

    assert given(beside) == [("p1", "gpu/3g.20gb", "3g.20gb")]
    assert given(first) == [("p2", "gpu", "4g.20gb")]
    (evicting,) = [write.message for write in first if isinstance(write.message, Grant)]
    assert evicting.evict


def test_limits_are_judged_for_what_is_chosen():
    """A namespace that may not have the first choice has the second."""
    bench = bench_of()
    limits = QuotaSet(namespace="default", total=Amounts(memory_mib=10_000))
    bench.observe(subjects.quota("default"), limits)

    writes = bench.land_all(bench.request(pod("p1", "4g.20gb", "3g.20gb", "2g.10gb")))
    writes += bench.land_all(bench.request(pod("p2", "4g.20gb", "1g.5gb")))

    assert given(writes) == [("p1", "gpu/2g.10gb", "2g.10gb")]
    (pending,) = [write.message for write in writes if isinstance(write.message, Pending)]
    assert pending.reasons[0].reason is WaitReason.QUOTA_EXCEEDED
    assert pending.message.endswith("; its alternative has none either")


def test_a_place_that_is_freed_serves_who_may_not_have_the_first_choice():
    """It waits for places, not for its namespace's limits alone."""
    bench = bench_of()
    tenant = bench.bound("tenant", claim(profile="7g.40gb"))
    other = msgspec.structs.replace(pod("p1", "4g.20gb", "2g.10gb"), namespace="team")
    bench.observe(subjects.quota("team"), QuotaSet(namespace="team", total=Amounts(memory_mib=10_000)))
    bench.land_all(bench.request(other))

    assert given(bench.land_all(bench.gone(tenant))) == [("p1", "gpu/2g.10gb", "2g.10gb")]


def test_each_member_of_a_group_takes_its_own():
    """One has its first choice, and the others do not wait for a second one of it."""
    bench = bench_of()
    writes = []
    for name in ("p1", "p2", "p3"):
        writes += bench.land_all(bench.request(pod(name, "4g.20gb", "1g.5gb", group=PodGroup(name="g", size=3))))
    assert sorted(given(writes)) == [
        ("p1", "gpu", "4g.20gb"),
        ("p2", "gpu/1g.5gb", "1g.5gb"),
        ("p3", "gpu/1g.5gb", "1g.5gb"),
    ]


def test_an_alternative_beyond_the_operators_settings_is_refused():
    """What is wrong as written is refused at once."""
    bench = bench_of()
    many = (claim(container="gpu/all", profile=None, gpus=99),)
    (write,) = bench.land_all(bench.request(msgspec.structs.replace(asked("p1"), alternatives=(many,))))

    assert isinstance(write.message, Refused)
    assert write.message.refusal.value == "99"


def test_requests_with_other_alternatives_do_not_wait_as_one():
    """Where the first of a shape has no place, those behind it are not tried."""
    bench = bench_of()
    bench.bound("large", claim(profile="4g.20gb"))
    bench.bound("small", claim(profile="2g.10gb"))
    bench.land_all(bench.request(pod("p1", "4g.20gb", "3g.20gb")))

    assert given(bench.land_all(bench.request(pod("p2", "4g.20gb", "1g.5gb")))) == [("p2", "gpu/1g.5gb", "1g.5gb")]
