"""What namespaces may have: counted from the first moment, reported in numbers, and in no other namespace's way."""

from functools import partial

import pytest
from factories.scheduling.allocator import asked, claim, gpu_report, kinds, only, snapshot, working_allocator
from factories.scheduling.quotas import (
    HALF,
    HALF_MIB,
    SMALL,
    SMALL_MIB,
    WHOLE,
    WHOLE_MIB,
    asks,
    bound,
    end,
    granted,
    grants,
    limit,
    used,
    why,
)

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.ids import RequestId
from sluice.contracts.quotas.usage import Usage
from sluice.contracts.reasons import WaitReason
from sluice_allocator.core.explain.status import RequestState, how_it_stands
from sluice_allocator.core.quotas.quota import Exceeded, forbids, keeps_guarantee
from sluice_allocator.core.serve import offers


@pytest.mark.parametrize(
    ("total", "fit"), [({"gpus": 2}, 2), ({"memory_mib": 3 * SMALL_MIB}, 3), ({"compute_slices": 4}, 4), ({}, 7)]
)
def test_each_dimension_limits_and_one_that_is_not_set_does_not(bench, total, fit):
    """tensor-fusion §1.5 (B9): an unset dimension beside a set one is a cap of zero there."""
    limit(bench, **total)
    assert len(grants(bench.asks(*(asks(f"p{n}", SMALL) for n in range(7))))) == fit


@pytest.mark.parametrize("dimension", ["gpus", "memory_mib", "compute_slices"])
@pytest.mark.parametrize("of_one", [False, True])
def test_zero_blocks_wherever_it_is_said(bench, dimension, of_one):
    """tensor-fusion §1.5 (B9): there a zero means no limit for one pod, and no room for all."""
    if of_one:
        limit(bench, pod=msg.Amounts(**{dimension: 0}))
    else:
        limit(bench, **{dimension: 0})
    pending = why(bench.asks(asks("p1", SMALL)))
    assert pending.message.startswith("namespace lab may have no ")
    assert pending.message.endswith(": its limit for one pod is 0" if of_one else ": its quota is 0")


def test_a_pod_over_the_cap_of_one_pod_waits_and_hears_what_would_fit(bench):
    limit(bench, pod=msg.Amounts(memory_mib=30000), memory_mib=35000)
    bound(bench, "p1", HALF)
    assert why(bench.asks(asks("p2", WHOLE))).message == (
        "one pod of namespace lab may have 30000 MiB of memory; this one asks for 40320, "
        "and 14904 are left of its namespace's quota"
    )
    assert grants(limit(bench, memory_mib=100000)) == []  # the quota has room now, the GPU has not
    assert how_it_stands(bench.allocator.ctx, RequestId("p2")).state is RequestState.QUEUED


def test_other_namespaces_are_not_held_up(bench, searches):
    """A request over its quota would stand before equals of other namespaces that could run, and cost a search each."""
    limit(bench, gpus=1)
    granted(bench, "p1", SMALL)
    bench.asks(*(asks(f"mine-{number}", SMALL) for number in range(5)))
    searches.clear()
    other = granted(bench, "theirs", SMALL, namespace="shop")
    assert len(searches) == 1
    searches.clear()
    end(bench, other)
    assert searches == []  # what was freed is offered to no pod that could not have it


@pytest.mark.parametrize(
    ("shape", "counts"),
    [
        (claim(profile=None, sm_percentage=40), Usage(1, HALF_MIB, 3000)),
        (claim(profile=None, memory_mib=6000), Usage(1, 9984, 1000)),
        (claim(profile=None, modes=("mps",), memory_mib=1000, uid=7), Usage(1, 1000, 174)),
        (claim(profile=None, modes=("fractional",), sm_partition=1, uid=7), Usage(1, 403, 70)),
        (claim(profile=None, modes=("fractional",), shares_percent=30, uid=7), Usage(1, 12096, 2100)),
        (claim(profile="1g.5gb+me"), Usage(1, SMALL_MIB, 1000)),
        (claim(profile=None), Usage(1, WHOLE_MIB, 7000)),
    ],
)
def test_every_kind_of_ask_counts_what_its_place_takes(bench, shape, counts):
    """tensor-fusion §1.5 and B8: percents bypass the quota there, and small ones are cut to nothing."""
    granted(bench, "p1", shape)
    assert used(bench) == counts


def test_a_raised_quota_serves_those_who_wait_for_it_in_their_turn(bench):
    """Priority first, then who asked first; nothing else has to happen."""
    limit(bench, gpus=0)
    bench.asks(asks("p1", SMALL), asks("p2", SMALL), asks("p3", SMALL, priority=5))
    assert grants(limit(bench, gpus=2)) == ["p3", "p1"]
    assert grants(bench.settle(bench.observe(subjects.quota("lab"), msg.QuotaUnset(namespace="lab")))) == ["p2"]


@pytest.mark.parametrize("lifted", [False, True])
def test_who_found_only_a_place_that_takes_too_much_is_served_when_the_limit_is_raised(empty, lifted):
    """It is not set aside, for another place may take less; it would not be looked at again for long."""
    empty.add_node(snapshot("node-a", (gpu_report("node-a", 0, mig=False),), modes=("exclusive", "fractional")))
    empty.add_node(snapshot("node-b", (gpu_report("node-b", 0, model="a30-24gb"),), modes=("exclusive", "fractional")))
    empty.asks(*(asked(f"full{number}", claim(profile="1g.6gb")) for number in range(4)))
    limit(empty, compute_slices=3)
    half = claim(profile=None, modes=("fractional",), sm_partition=50, memory_mib=9000)
    empty.asks(asks("p1", half), asks("p2", half))
    assert how_it_stands(empty.allocator.ctx, RequestId("p1")).steps[0].reasons[0].reason is WaitReason.QUOTA_EXCEEDED
    if lifted:
        said = empty.settle(empty.observe(subjects.quota("lab"), msg.QuotaUnset(namespace="lab")))
    else:
        said = limit(empty, compute_slices=4)
    assert grants(said)[:1] == ["p1"]


def test_a_lowered_quota_takes_nothing_away(bench):
    """Bound or not: what was granted while it was allowed stays, and nothing new comes."""
    limit(bench, gpus=3)
    first, second = bound(bench, "p1", SMALL), granted(bench, "p2", SMALL)
    assert limit(bench, gpus=1) == []
    assert kinds(bench.settle(bench.ready(second))) == [msg.Bound]
    assert grants(bench.asks(asks("p3", SMALL))) == []
    assert grants(end(bench, first)) == []
    assert grants(end(bench, second)) == ["p3"]


def test_many_sizes_that_wait_for_one_quota_cost_one_event_a_bounded_number_of_tries(bench, searches):
    """A namespace with very many different waiting pods would stop the allocator whenever it gives something back."""
    limit(bench, gpus=1)
    first = bound(bench, "p1", WHOLE)
    tries = bench.allocator.ctx.rules.new_tries
    bench.asks(*(asks(f"w{n}", claim(profile="7g.40gb", sm_count=n + 1)) for n in range(3 * tries)))
    bench.withdraw("p1")
    said = bench.gone(first)
    assert bench.allocator.unfinished
    searches.clear()
    assert grants(bench.settle(said)) == ["w0"]
    assert len(searches) < tries


def test_growing_is_checked_against_what_others_have_and_shrinking_never(bench):
    """An adjustment would count its own share twice, or could not shrink where a limit was lowered."""
    ctx = bench.allocator.ctx
    small = granted(bench, "p1", claim(profile=None, modes=("mps",), memory_mib=1000, uid=7))
    granted(bench, "p2", claim(profile=None, modes=("mps",), memory_mib=5000, uid=7))
    before = ctx.cluster.usage_of(small.booking.devices)
    limit(bench, memory_mib=8000)
    assert forbids(ctx, "lab", before, Usage(1, 3000, 175)) is None
    assert forbids(ctx, "lab", before, Usage(1, 3001, 175)) == Exceeded(
        "lab", "memory_mib", of_one=False, limit=8000, used=5000, asked=3001, most=3000
    )
    limit(bench, memory_mib=4000)
    assert forbids(ctx, "lab", before, Usage(1, 500, 175)) is None


def test_a_guarantee_holds_in_each_dimension_that_an_eviction_takes_from(bench):
    ctx = bench.allocator.ctx
    bound(bench, "p1", HALF)
    bound(bench, "p2", SMALL)
    sure = msg.QuotaSet(namespace="lab", guaranteed=msg.Amounts(gpus=1, memory_mib=HALF_MIB))
    bench.observe(subjects.quota("lab"), sure)
    assert keeps_guarantee(ctx, "lab", Usage(1, SMALL_MIB, 1000))
    assert not keeps_guarantee(ctx, "lab", Usage(1, HALF_MIB, 3000))
    assert keeps_guarantee(ctx, "shop", Usage(9, 9, 9))


def test_a_pod_over_its_quota_gets_the_place_of_one_of_its_own_namespace_that_is_less_important(bench):
    """Where fleet and quota are full, its own namespace can make room in both at once."""
    limit(bench, gpus=1)
    granted(bench, "theirs", claim(profile="4g.20gb"), claim(profile="2g.10gb"), namespace="shop")
    spare = bound(bench, "spare", SMALL, priority=-1, leeway=msg.Leeway(preemptible=True))
    (grant,) = only(msg.Grant, bench.asks(asks("urgent", SMALL, priority=5)))
    assert (grant.after, grant.evict) == ((spare.booking.allocation,), True)


def test_explain_names_the_quota_in_a_step(bench):
    """A person would see a fleet with room, and a pod that waits."""
    limit(bench, compute_slices=2)
    bench.asks(asks("p1", HALF))
    stands = how_it_stands(bench.allocator.ctx, RequestId("p1"))
    why = "waits: namespace lab may have 2 compute slices and has 0; this one asks for 3, and 2 are left"
    assert stands.message == why
    assert [(step.filter, step.reasons[0].reason) for step in stands.steps] == [("turn", WaitReason.QUOTA_EXCEEDED)]


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Counts searches by namespace; they find what they find."""
    seen: list[str] = []

    def counted(find, fleet, asking, *rest):
        seen.append(asking.namespace)
        return find(fleet, asking, *rest)

    for name in ("find_free", "find_place_on"):
        monkeypatch.setattr(offers, name, partial(counted, getattr(offers, name)))
    return seen


@pytest.mark.parametrize("shape", [HALF, claim(profile=None, modes=("mps",), memory_mib=1000, uid=7)])
def test_what_is_booked_on_a_gpu_that_is_not_shown_any_more_counts_as_before(bench, shape):
    """A node that drops out of the inventory would make room in the quota while its pods run on."""
    grant = granted(bench, "p1", shape)
    before = used(bench)
    bench.pull(snapshot("node-a", (), generation=2))
    assert used(bench) == before
    bench.pull(snapshot("node-a", (gpu_report("node-a", 0),), generation=3))
    assert used(bench) == bench.allocator.ctx.cluster.usage_of(grant.booking.devices) == before
    end(bench, grant)
    assert used(bench) == Usage()


def test_what_is_booked_where_nothing_was_ever_shown_counts_by_its_name(empty):
    """An allocator that starts before its inventory would find every quota unused."""
    other = working_allocator()
    other.add_nodes("node-a")
    grant = granted(other, "p1", HALF)
    empty.reads(grant)
    assert used(empty) == Usage(1, 20 * 1024, 3000)
    empty.add_nodes("node-a")
    assert used(empty) == Usage(1, HALF_MIB, 3000)
