"""How large a share may be made, and what cannot be changed at all: said beforehand, in numbers."""

import pytest
from factories.scheduling.allocator import asked, begun_anew, claim, gpu_report, kinds, only, snapshot, unread
from factories.scheduling.resize import (
    GPU_MIB,
    MODES,
    NODE,
    adjusted,
    change,
    fractional,
    mps,
    refused,
    said,
    shares_of,
    with_gpus,
)
from msgspec.structs import replace

from sluice.contracts.bus import subjects
from sluice.contracts.ids import RequestId
from sluice.contracts.messages import Grant, NodeClosed, NodeOpened, NodeRemoved, PlacementReport
from sluice.contracts.quotas.usage import Usage
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import LeaseChanged
from sluice_allocator.core.explain.status import how_it_stands
from sluice_allocator.core.quotas.quota import usage
from sluice_allocator.core.resize.pending import Adjusted, AdjustReason, AdjustRefused
from sluice_allocator.core.resize.resize import adjust


def test_too_large_for_its_home_says_the_most_that_fits(bench):
    """A person would try one size after the other; and a size that is said to fit would be refused."""
    bench.bound("p1", fractional(20, 4000))
    bench.bound("p2", fractional(30, 6000))
    wrong = refused(bench, memory_mib=40000, sm_partition=90)
    assert wrong.reason is AdjustReason.CAPACITY_EXCEEDED
    assert dict(wrong.most) == {"memory_mib": GPU_MIB - 6000, "sm_partition": 70}
    assert "GpuInsufficientMemory" in wrong.message
    for name, most in wrong.most:
        assert isinstance(adjust(bench.allocator.ctx, change(**{name: most})), Adjusted)
        assert isinstance(adjust(bench.allocator.ctx, change(**{name: most + 1})), AdjustRefused)


def test_time_counts_where_it_is_enforced(empty):
    """Tenants that take turns would be sure of more than the whole window together."""
    bench = with_gpus(empty, gpu_report("node-a", 0, mig=False), time_quota=True)
    quota = {"quota_request_permille": 400, "quota_limit_permille": 1000}
    bench.bound("p1", fractional(100, 1000, **quota))
    bench.bound("p2", fractional(100, 1000, **quota))
    wrong = refused(bench, quota_request_permille=700)
    assert (wrong.reason, dict(wrong.most)) == (AdjustReason.CAPACITY_EXCEEDED, {"quota_request_permille": 600})


def test_on_an_instance_the_home_is_the_instance(empty):
    """A share of a 3g would be let grow into its neighbours' instances."""
    bench = with_gpus(empty, gpu_report("node-a", 0))
    grant = bench.bound("p1", mps(4000))
    profile = next(p for p in gpu_report("node-a", 0).profiles if p.name == grant.booking.devices[0].profile)
    wrong = refused(bench, memory_mib=GPU_MIB)
    assert dict(wrong.most) == {"memory_mib": profile.memory_mib}


def test_scale_up_then_quota(bench):
    """tensor-fusion, "scale up then quota": a share that grows is held to its namespace's limit, to the last MiB."""
    bench.bound("p1", mps(4000))
    bench.bound("p2", mps(6000))
    bench.settle(bench.limit(memory_mib=12000))
    wrong = refused(bench, memory_mib=9000)
    assert (wrong.reason, dict(wrong.most)) == (AdjustReason.QUOTA_EXCEEDED, {"memory_mib": 6000})
    assert "namespace default may have 12000 MiB of memory" in wrong.message
    adjusted(bench, memory_mib=6000)
    assert usage(bench.allocator.ctx, "default").memory_mib == 12000
    assert only(Grant, bench.asks(asked("p3", mps(1)))) == []


def test_a_share_that_still_counts_as_before_does_not_grow_beyond_a_limit_that_was_lowered(bench):
    """Its namespace comes to have what it may when its processes have ended, and would have more for good."""
    bench.bound("p1", mps(30_000))
    smaller = adjusted(bench, memory_mib=10_000)
    bench.bound("p2", mps(10_000))
    bench.settle(bench.limit(memory_mib=25_000))
    wrong = refused(bench, memory_mib=20_000)
    assert (wrong.reason, dict(wrong.most)) == (AdjustReason.QUOTA_EXCEEDED, {"memory_mib": 15_000})
    grant = adjusted(bench, memory_mib=15_000)
    assert (grant.revision, grant.counts) == (smaller.revision + 1, smaller.counts)
    said(bench, grant)
    assert usage(bench.allocator.ctx, "default").memory_mib == 25_000


def test_percents_of_compute_come_and_go_whole(bench):
    """tensor-fusion B6: a change between percents takes the whole new compute off again, each time."""
    bench.bound("p1", fractional(20, 4000))
    ctx = bench.allocator.ctx
    first = usage(ctx, "default")
    assert first == Usage(1, 4000, 1400)  # a fifth of 7 compute slices
    for percent, counts in ((50, 3500), (10, 700), (80, 5600), (20, 1400)):
        said(bench, adjusted(bench, sm_partition=percent))
        assert usage(ctx, "default") == Usage(1, 4000, counts)
        (home,) = ctx.cluster.gpus["GPU-node-a-0"].homes.values()
        assert home.home.free_width_percent == 100 - percent
    assert usage(ctx, "default") == first


def test_no_tenant_joins_others_on_a_gpu_that_its_agent_could_not_read_yet(empty):
    """On a device without a size there is room for any share: the SMs of two pods are promised a third one's too."""
    known = gpu_report("node-a", 0, model="a30-24gb")
    bench = with_gpus(empty, known)
    wide = replace(fractional(10, 2400), profile="1g.6gb")
    bench.bound("p1", wide)
    bench.bound("p2", replace(fractional(5, 1200), profile="1g.6gb"))
    before = usage(bench.allocator.ctx, "default")

    bench.add_node(snapshot("node-a", (unread(known),), modes=MODES, generation=2))
    why = refused(bench, sm_partition=25)
    assert (why.reason, why.most) == (AdjustReason.CAPACITY_EXCEEDED, (("sm_partition", 17),))
    assert usage(bench.allocator.ctx, "default") == before

    bench.add_node(snapshot("node-a", (), modes=MODES, generation=3))
    bench.add_node(snapshot("node-a", (unread(known),), modes=MODES, generation=4))
    assert refused(bench, sm_partition=25).reason is AdjustReason.CAPACITY_EXCEEDED
    assert usage(bench.allocator.ctx, "default") == before


@pytest.mark.parametrize("mig", [True, False])
def test_a_share_on_a_gpu_of_which_only_the_name_is_known_does_not_grow(empty, mig):
    """As when an allocator starts after an agent that found its GPU lost."""
    known = gpu_report("node-a", 0, model="a30-24gb", mig=mig)
    bench = with_gpus(empty, known)
    bench.bound("p1", replace(fractional(10, 2400), profile="1g.6gb" if mig else None))
    bench.add_node(snapshot("node-a", (unread(known),), modes=MODES, generation=2))
    next_one = begun_anew(bench, SchedulerConfig())
    next_one.handle(LeaseChanged(held=True))

    why = refused(next_one, sm_partition=11)
    assert why.reason is AdjustReason.NOT_NOW
    assert "not read by its node" in why.message


@pytest.mark.parametrize("mig", [True, False])
def test_in_a_home_that_is_out_of_use_a_share_does_not_grow(empty, mig):
    """A process may be there that journal and ledger have forgotten: what it uses is not counted."""
    known = gpu_report("node-a", 0, model="a30-24gb", mig=mig)
    bench = with_gpus(empty, known)
    bench.bound("p1", replace(fractional(10, 2400), profile="1g.6gb" if mig else None))
    (device,) = next(iter(bench.allocator.ctx.facts.ledger.values())).booking.devices
    out = replace(known, quarantined=(PlacementReport(start=device.start, size=device.size),))
    bench.add_node(snapshot("node-a", (out,), modes=MODES, generation=2))

    why = refused(bench, memory_mib=2500)
    assert why.reason is AdjustReason.NOT_NOW
    assert "is unavailable" in why.message
    assert shares_of(adjusted(bench, memory_mib=2000)) == [2000]


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({}, "", "no field is named"),
        ({"memory_mib": 0}, "memory_mib", "from 1 to"),
        ({"memory_mib": -5}, "memory_mib", "from 1 to"),
        ({"memory_mib": 2**62}, "memory_mib", "from 1 to"),
        ({"sm_partition": 101}, "sm_partition", "from 1 to 100"),
        ({"quota_limit_permille": 1001}, "quota_limit_permille", "from 1 to 1000"),
        ({"quota_limit_permille": 500}, "quota_limit_permille", "cannot exceed the quota limit of"),
    ],
)
def test_a_value_that_means_nothing_is_named(bench, values, field, words):
    """A person would look for the mistake in the wrong place; or a share of nothing would be booked."""
    bench.bound("p1", fractional())
    wrong = refused(bench, **values)
    assert (wrong.reason, wrong.field) == (AdjustReason.INVALID_VALUE, field)
    assert words in wrong.message


def test_a_share_of_memory_has_nothing_else(bench):
    """An mps share would be given a bound of SMs that was not counted."""
    bench.bound("p1", mps())
    wrong = refused(bench, sm_partition=50)
    assert (wrong.reason, wrong.field) == (AdjustReason.INVALID_VALUE, "sm_partition")


def test_devices_of_ones_own_have_no_size_to_change(empty):
    """A MIG instance cannot be resized under a running process."""
    bench = with_gpus(empty, gpu_report("node-a", 0))
    bench.bound("p1", claim(profile="3g.20gb"))
    assert refused(bench, memory_mib=100).reason is AdjustReason.NOT_A_SHARE


def test_which_container_is_meant_must_be_clear(empty):
    bench = with_gpus(empty, *(gpu_report("node-a", index, mig=False) for index in range(2)))
    bench.bound("p1", mps(container="a"), mps(container="b"), claim(container="c", profile=None))
    for container, reason, words in (
        ("", AdjustReason.INVALID_VALUE, "a, b"),
        ("c", AdjustReason.NOT_A_SHARE, "'c'"),
        ("d", AdjustReason.INVALID_VALUE, "'d'"),
    ):
        wrong = refused(bench, container=container, memory_mib=5000)
        assert wrong.reason is reason
        assert words in wrong.message


def test_who_has_no_slice_is_told_so(bench):
    """An order for a slice that is not there, or is being taken away, would bring it back."""
    assert refused(bench, "unknown", memory_mib=5).reason is AdjustReason.NOT_FOUND
    bench.granted("p1", mps())  # not made yet
    assert refused(bench, memory_mib=5000).reason is AdjustReason.NOT_BOUND
    bench.bound("p2", mps())
    bench.settle(bench.ends("p2"))
    assert refused(bench, "p2", memory_mib=5000).reason is AdjustReason.NOT_BOUND


def test_what_is_so_already_says_whether_it_is_carried_out(bench):
    """Asking again is how an operator finds out that it is done."""
    bench.bound("p1", mps(4000))
    as_it_is = AdjustRefused(AdjustReason.UNCHANGED, "container 'main' already has exactly that")
    assert refused(bench, memory_mib=4000) == as_it_is
    grant = adjusted(bench, memory_mib=9000)
    assert refused(bench, memory_mib=9000).under_way
    standing = how_it_stands(bench.allocator.ctx, RequestId("p1"))
    assert standing.message.endswith("its shares are being changed by its node agent")
    said(bench, grant)
    assert not refused(bench, memory_mib=9000).under_way
    assert how_it_stands(bench.allocator.ctx, RequestId("p1")).message == "is bound on node-a"


@pytest.mark.parametrize("memory_mib", [9000, 1000], ids=["larger", "smaller"])
def test_on_a_node_that_was_removed_nothing_is_changed(bench, memory_mib):
    """A change would be reported as booked that no agent carries out; and it would land on a closed node."""
    bench.bound("p1", mps(4000))
    news = bench.allocator.ctx.facts.news[NODE]
    removed = NodeRemoved(node=NODE, cause="its Node object was deleted")
    (closing,) = bench.observe(subjects.node(NODE), removed)
    assert isinstance(closing.message, NodeClosed)

    def is_refused() -> str:
        wrong = refused(bench, memory_mib=memory_mib)
        assert wrong.reason is AdjustReason.NOT_NOW
        return wrong.message

    sentence = "node-a was removed: its Node object was deleted; retry when its node agent has reported"
    assert is_refused() == sentence  # its head is being closed
    assert bench.observe(subjects.node(NODE), news) == []
    assert "is not open" in is_refused()  # its agent has published, and the head's end may still land
    assert bench.observe(subjects.node(NODE), removed) == []
    assert bench.settle([closing]) == [closing]
    assert is_refused() == sentence

    seen = snapshot("node-a", (gpu_report("node-a", 0, mig=False),), modes=MODES)
    assert kinds(bench.add_node(seen)) == [NodeOpened]
    assert shares_of(adjusted(bench, memory_mib=memory_mib)) == [memory_mib]
