"""Shares that are made larger or smaller: booked as one order, and no share admitted too early."""

import pytest
from factories.scheduling.allocator import (
    FOLDER,
    INCARNATION,
    Bench,
    all_said,
    asked,
    gpu_report,
    snapshot,
    working_allocator,
)
from factories.scheduling.resize import (
    GPU_MIB,
    MODES,
    NODE,
    adjusted,
    answer_of,
    answers,
    change,
    everything,
    fractional,
    free_mib,
    mps,
    names,
    refused,
    said,
    shares_of,
    with_gpus,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import ReadingCaughtUp, ReadingStarted, Stream, Write, WriteRefused
from sluice.contracts.ids import AllocationId, RequestId, RunId
from sluice.contracts.messages import (
    Bound,
    Grant,
    Held,
    Leeway,
    Pending,
    RequestWithdrawn,
    Revoke,
    SliceDegraded,
    SliceReport,
)
from sluice.contracts.resize import max_sizes
from sluice_allocator.core.allocator import Allocator
from sluice_allocator.core.config import SchedulerConfig
from sluice_allocator.core.events import AdjustAsked, AnswerAdjust, LeaseChanged
from sluice_allocator.core.quotas.quota import usage
from sluice_allocator.core.resize.pending import ASKED_MAX, Adjusted, AdjustReason, FieldChange
from sluice_allocator.core.resize.resize import adjust


@pytest.fixture
def bench(empty: Bench) -> Bench:
    """An allocator with node-a open: one A100-40GB without MIG, which may be shared."""
    return with_gpus(empty, gpu_report("node-a", 0, mig=False))


def test_a_change_is_one_order_and_is_answered_when_the_ledger_has_it(bench):
    """A caller that reads "done" before that may read wrong."""
    before = bench.bound("p1", fractional(20, 4000))

    (write,) = bench.handle(
        AdjustAsked(3, change(memory_mib=8000, quota_limit_permille=900, quota_request_permille=500))
    )

    share = replace(
        before.booking.devices[0].share, memory_mib=8000, quota_request_permille=500, quota_limit_permille=900
    )
    after = replace(before.booking, devices=(replace(before.booking.devices[0], share=share),))
    counts = max_sizes(before.booking.devices, after.devices)
    assert write.message == Grant(revision=2, incarnation=INCARNATION, booking=after, counts=counts)
    assert write.subject == subjects.ledger(NODE, after.allocation).subject

    said_then = bench.land(write)

    (answer,) = [each for each in said_then if isinstance(each, AnswerAdjust)]
    assert (answer.number, answer.outcome.revision, answer.outcome.booking) == (3, 2, after)
    assert answer.outcome.fields == (
        FieldChange("memory_mib", 4000, 8000, "next process start"),
        FieldChange("sm_partition", 20, 20, "unchanged"),
        FieldChange("quota_request_permille", 1000, 500, "now"),
        FieldChange("quota_limit_permille", 1000, 900, "now"),
    )


def test_a_dry_run_says_the_same_and_leaves_no_trace(bench):
    """tensor-fusion: a dry run that differs from the real thing, or books, is worth nothing."""
    bench.bound("p1", fractional(20, 4000))
    ctx = bench.allocator.ctx
    before = (free_mib(bench), usage(ctx, "default"), dict(ctx.undecided))
    outcome = adjust(ctx, change(memory_mib=9000, sm_partition=50))
    assert isinstance(outcome, Adjusted)
    assert before == (free_mib(bench), usage(ctx, "default"), dict(ctx.undecided))
    grant = adjusted(bench, memory_mib=9000, sm_partition=50)
    assert grant.booking == outcome.booking


def test_every_device_of_the_container_gets_the_same_and_no_other_container_does(empty):
    """A change of one container would change its neighbour's share, or only one of its GPUs."""
    bench = with_gpus(empty, *(gpu_report("node-a", index, mig=False) for index in range(2)))
    bench.bound("p1", fractional(20, 4000, container="a", gpus=2), fractional(10, 1000, container="b"))
    grant = adjusted(bench, container="a", memory_mib=5000)
    assert [(device.container, device.share.memory_mib) for device in grant.booking.devices] == [
        ("a", 5000),
        ("a", 5000),
        ("b", 1000),
    ]


def test_a_revoke_meanwhile_keeps_all_that_may_be_used_until_it_is_gone(bench):
    """The pod ends while its share is being made smaller: its place would count less than its processes use."""
    bench.bound("p1", mps(30000))
    grant = adjusted(bench, memory_mib=10000)
    withdrawn = RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone")
    (revoke,) = everything(bench, bench.observe(subjects.request(RequestId("p1")), withdrawn))
    assert isinstance(revoke.message, Revoke)
    assert (revoke.message.revision, revoke.message.booking.devices) == (3, grant.counts)
    said(bench, grant)  # a late word of the change
    assert free_mib(bench) == GPU_MIB - 30000
    assert bench.allocator.ctx.cluster.booking(grant.booking.allocation) is not None


@pytest.mark.parametrize("shrinking", [False, True], ids=["small by now", "an older agent"])
def test_what_a_slice_counts_that_ails_is_what_its_agent_says_is_used(bench, shrinking):
    """A neighbour has the rest by then: booked as before it would be booked twice, and no share could be changed."""
    bench.bound("p1", mps(30000))
    grant = adjusted(bench, memory_mib=10000)
    said(bench, grant)
    address = subjects.slice_(NODE, grant.booking.allocation)
    about = {"allocation": grant.booking.allocation, "request": RequestId("p1"), "revision": 2}
    more = {"shrinking": shrinking} if not shrinking else {}
    everything(bench, bench.observe(address, SliceDegraded(**about, message="double bit ECC error", **more)))
    assert free_mib(bench) == GPU_MIB - (30000 if shrinking else 10000)
    withdrawn = RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone")
    (revoke,) = everything(bench, bench.observe(subjects.request(RequestId("p1")), withdrawn))
    assert shares_of(revoke.message) == [30000 if shrinking else 10000]


def test_an_orphan_that_is_being_made_smaller_keeps_all_that_may_be_used_until_it_is_gone(bench):
    """The bus forgets its request and its pod goes meanwhile: its processes may linger, and no one asks for it."""
    bench.bound("p1", mps(30000))
    grant = adjusted(bench, memory_mib=10000)
    node, address = bench.allocator.ctx.facts.news[NODE], subjects.slice_(NODE, grant.booking.allocation)
    inventory = bench.allocator.ctx.facts.inventories[NODE]
    bench.handle(ReadingStarted(Stream.STATE, INCARNATION))
    bench.observe(subjects.node(NODE), node)
    bench.observe(subjects.inventory(NODE), inventory)
    bench.observe(address, answer_of(grant, shrinking=True))
    everything(bench, bench.handle(ReadingCaughtUp(Stream.STATE)))
    written = everything(bench, bench.observe(*all_said()))
    for _ in range(2):
        bench.now += 30.0
        written += everything(bench, bench.tick())
    (revoke,) = [write.message for write in written]
    assert isinstance(revoke, Revoke)
    assert (revoke.revision, revoke.booking.devices) == (3, grant.counts)
    assert free_mib(bench) == GPU_MIB - 30000


def test_who_comes_second_to_the_ledger_decides_anew(bench):
    """Two allocators change one share at once: the later order would be written on a size that is not true any more."""
    first = bench.bound("p1", mps(10000))
    bench.said.clear()
    (write,) = bench.handle(AdjustAsked(1, change(memory_mib=20000)))
    other = replace(
        first,
        revision=2,
        booking=replace(
            first.booking,
            devices=tuple(replace(d, share=replace(d.share, memory_mib=35000)) for d in first.booking.devices),
        ),
    )
    address = subjects.ledger(NODE, first.booking.allocation)
    bench.observe(address, other)
    bench.handle(WriteRefused(write.operation, bench.allocator.ctx.facts.sequences[address.subject]))
    (later,) = [each for each in bench.said if isinstance(each, Write) and each.operation != write.operation]
    assert isinstance(later.message, Grant)
    assert later.message.revision == 3
    assert [device.share.memory_mib for device in later.message.counts] == [35000]
    everything(bench, [later])
    (answer,) = answers(bench)
    assert isinstance(answer, Adjusted)
    assert answer.revision == 3


def test_what_another_allocator_has_made_larger_counts_before_the_own_change_is_answered(bench):
    """Another share would meanwhile be booked beside its old size: both together are more than the device has."""
    first = bench.bound("p1", mps(10000))
    (write,) = bench.handle(AdjustAsked(1, change(memory_mib=5000)))
    devices = tuple(replace(d, share=replace(d.share, memory_mib=35000)) for d in first.booking.devices)
    other = replace(first, revision=2, booking=replace(first.booking, devices=devices))
    address = subjects.ledger(NODE, first.booking.allocation)
    bench.observe(address, other)
    assert free_mib(bench) == GPU_MIB - 35000
    waits = bench.request(asked("p2", mps(GPU_MIB - 10000)))
    assert [type(each.message) for each in waits] == [Pending]
    refused_ = bench.handle(WriteRefused(write.operation, bench.allocator.ctx.facts.sequences[address.subject]))
    assert names(refused_) == ["p1"]
    assert free_mib(bench) == GPU_MIB - 35000


def test_one_change_of_a_share_at_a_time(bench):
    """The second would be decided on a size that is not in the ledger yet."""
    bench.bound("p1", mps(10000))
    first = bench.handle(AdjustAsked(1, change(memory_mib=20000)))
    bench.said.clear()
    bench.handle(AdjustAsked(2, change(memory_mib=30000)))
    (busy,) = answers(bench)
    assert busy.reason is AdjustReason.NOT_NOW
    everything(bench, first)
    assert free_mib(bench) == GPU_MIB - 20000


def test_a_revoke_that_waits_for_its_turn_says_the_size_that_its_slice_has_by_now(bench):
    """The ledger would book the larger size again, over somebody who was let in beside the smaller one meanwhile."""
    bench.bound("p1", mps(30000))
    smaller = adjusted(bench, memory_mib=5000)
    (sent,) = bench.request(asked("p2", mps(1000)))  # its order is on its way: the next one under this guard waits
    withdrawn = RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone")
    assert bench.observe(subjects.request(RequestId("p1")), withdrawn) == []
    address = subjects.slice_(NODE, smaller.booking.allocation)
    assert bench.observe(address, answer_of(smaller)) == []
    assert bench.request(asked("p3", mps(30000))) == []

    (revoke,) = [write for write in bench.land(sent) if isinstance(write, Write)]
    assert revoke.message == Revoke(revision=3, incarnation=INCARNATION, booking=smaller.booking, cause="pod gone")
    (grant,) = [write for write in bench.land(revoke) if isinstance(write, Write)]
    assert grant.message == Grant(revision=1, incarnation=INCARNATION, booking=grant.message.booking)
    assert (names([grant]), shares_of(grant.message)) == (["p3"], [30000])
    assert free_mib(bench) == GPU_MIB - 5000 - 1000 - 30000


def test_a_revoke_that_says_the_larger_size_lets_nobody_in_beside_it(bench):
    """Its slice is smaller by the time it lands, and the ledger books what it says: no share may count on less."""
    bench.bound("p1", mps(30000))
    smaller = adjusted(bench, memory_mib=5000)
    withdrawn = RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone")
    (revoke,) = bench.observe(subjects.request(RequestId("p1")), withdrawn)
    assert shares_of(revoke.message) == [30000]
    address = subjects.slice_(NODE, smaller.booking.allocation)
    assert bench.observe(address, answer_of(smaller)) == []
    assert bench.request(asked("p2", mps(30000))) == []  # there would be room beside what is used by now

    (waits,) = [write for write in bench.land(revoke) if isinstance(write, Write)]
    assert isinstance(waits.message, Pending)
    assert waits.message.request == "p2"
    assert free_mib(bench) == GPU_MIB - 30000


def test_a_share_still_comes_after_who_had_its_place(bench):
    """By the ledger two would have that place at once, until the agent's word that one is gone has landed."""
    before = bench.bound("p1", mps(4000))
    waits = replace(before, after=(AllocationId("p0_other_1"),), evict=True)
    everything(bench, bench.observe(subjects.ledger(NODE, before.booking.allocation), waits))

    grant = adjusted(bench, memory_mib=9000)

    assert (grant.after, grant.evict) == (waits.after, True)


def test_what_somebody_was_let_into_is_not_taken_back(bench):
    """Two allocators: only the other one has heard that the share is smaller, and let somebody in beside it."""
    bench.bound("p1", mps(30000))
    smaller = adjusted(bench, memory_mib=5000)
    device = replace(smaller.booking.devices[0], share=replace(smaller.booking.devices[0].share, memory_mib=35000))
    other = replace(
        smaller.booking, allocation=AllocationId("p2_other_1"), request=RequestId("p2"), name="p2", devices=(device,)
    )
    everything(
        bench,
        bench.observe(subjects.ledger(NODE, other.allocation), replace(smaller, booking=other, revision=1, counts=())),
    )
    assert free_mib(bench) == GPU_MIB - 30000 - 35000

    again = refused(bench, memory_mib=30000)

    assert again.reason is AdjustReason.CAPACITY_EXCEEDED
    assert again.most == (("memory_mib", 5000),)
    assert shares_of(adjusted(bench, memory_mib=4000)) == [4000]


def test_a_process_that_works_no_longer_takes_back_what_it_has_not_sent(bench):
    """The caller is sent to the other one; and what was booked for it is free again."""
    bench.bound("p1", mps(10000))
    everything(bench, bench.request(asked("p2", mps(1000))))
    sent = bench.request(asked("p3", mps(1000)))  # its order is on its way: the next one under this guard waits
    assert len([each for each in sent if isinstance(each, Write)]) == 1
    bench.said.clear()
    assert bench.handle(AdjustAsked(1, change(memory_mib=20000))) == []
    bench.handle(LeaseChanged(held=False))
    (answer,) = answers(bench)
    assert answer.reason is AdjustReason.NOT_NOW
    assert free_mib(bench) == GPU_MIB - 10000 - 1000 - 1000


def test_a_change_that_came_to_nothing_leaves_its_pod_to_be_evicted(bench):
    """It was booked again, and no pod of higher priority would get its place until something was said of it again."""
    preemptible = replace(asked("p1", mps(10000)), leeway=Leeway(preemptible=True))
    (granted,) = everything(bench, bench.request(preemptible))
    everything(bench, bench.ready(granted.message))
    sent = bench.request(asked("p2", mps(1000)))  # its order is on its way: the next one under this guard waits
    bench.said.clear()
    assert bench.handle(AdjustAsked(1, change(memory_mib=20000))) == []
    device = granted.message.booking.devices[0]
    larger_device = replace(device, share=replace(device.share, memory_mib=25000))
    other = replace(granted.message.booking, allocation=AllocationId("p3_r9_1"), request=RequestId("p3"))
    other = replace(other, name="p3", devices=(larger_device,))
    grant = Grant(revision=1, incarnation=INCARNATION, booking=other)
    bench.observe(subjects.request(RequestId("p3")), asked("p3", mps(25000)))
    bench.observe(subjects.ledger(NODE, other.allocation), grant)
    (answer,) = answers(bench)
    assert answer.reason is AdjustReason.CAPACITY_EXCEEDED
    everything(bench, sent)

    (write,) = everything(bench, bench.request(asked("p4", mps(10000), priority=10)))[:1]
    assert isinstance(write.message, Grant)
    assert (write.message.after, write.message.evict) == ((granted.message.booking.allocation,), True)


def test_so_many_at_once_and_no_more(empty):
    """A flood of questions would fill the memory of the active allocator."""
    gpus = tuple(gpu_report("node-a", index, mig=False) for index in range(8))
    bench = with_gpus(empty, *gpus)
    for number in range(ASKED_MAX + 1):
        bench.bound(f"p{number}", mps(100))
    bench.said.clear()
    for number in range(ASKED_MAX + 1):
        bench.handle(AdjustAsked(number, change(f"p{number}", memory_mib=200)))
    (last,) = answers(bench)
    assert last.reason is AdjustReason.NOT_NOW


def test_the_new_size_survives_a_wiped_broker_and_nothing_corrects_it_back(empty):
    """The pod asked for 30,000 and was made smaller: after the wipe it would have 30,000 again, or be put out."""
    device = larger_device = None
    bench = with_gpus(empty, gpu_report("node-a", 0, mig=False))
    first = bench.bound("p1", mps(30000))
    device = first.booking.devices[0]
    smaller = replace(first.booking, devices=(replace(device, share=replace(device.share, memory_mib=10000)),))
    larger_device = first.booking.devices
    wiped = Bench(Allocator(RunId("r9"), SchedulerConfig()))
    wiped.read_all()
    wiped.handle(LeaseChanged(held=True))
    request = replace(asked("p1", mps(30000)), held=Held(node=NODE, allocation=smaller.allocation))
    wiped.observe(subjects.request(RequestId("p1")), request)
    report = SliceReport(booking=smaller, revision=2, state="ready", revoked=False, counts=larger_device)
    writes = wiped.add_node(snapshot("node-a", (gpu_report("node-a", 0, mig=False),), modes=MODES, slices=(report,)))
    adopted = next(write.message for write in writes if isinstance(write.message, Grant))
    assert (adopted.revision, adopted.booking, adopted.counts, adopted.adopted) == (2, smaller, larger_device, True)
    assert free_mib(wiped) == GPU_MIB - 30000
    followed = said(wiped, adopted, shrinking=True) + said(wiped, adopted)
    assert [type(write.message) for write in followed] == [Bound]
    assert free_mib(wiped) == GPU_MIB - 10000
    assert wiped.allocator.ctx.facts.ledger[smaller.allocation] == adopted

    revoked = replace(report, revoked=True)
    other = Bench(Allocator(RunId("r10"), SchedulerConfig()))
    other.read_all()
    other.handle(LeaseChanged(held=True))
    writes = other.add_node(snapshot("node-a", (gpu_report("node-a", 0, mig=False),), modes=MODES, slices=(revoked,)))
    entry = next(write.message for write in writes if isinstance(write.message, Revoke))
    assert entry.booking.devices == larger_device


def test_an_edit_of_the_pod_changes_no_share_that_it_has(bench):
    """A new annotation would undo what was adjusted, or revoke a running slice."""
    bench.bound("p1", mps(4000))
    grant = adjusted(bench, memory_mib=9000)
    said(bench, grant)
    edited = replace(asked("p1", mps(1000)), revision=2)
    assert everything(bench, bench.observe(subjects.request(RequestId("p1")), edited)) == []
    assert free_mib(bench) == GPU_MIB - 9000


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_a_home_counts_the_largest_that_may_be_used(data):
    """Whatever is asked, answered and said in whatever order: a home counts what is ordered or may still be used."""
    bench = with_gpus(working_allocator(), gpu_report("node-a", 0, mig=False))
    orders: dict[str, Grant] = {}
    counts: dict[str, int] = {}
    for name in ("p0", "p1", "p2"):
        orders[name] = bench.bound(name, mps(data.draw(st.integers(1000, 13000))))
        counts[name] = sum(shares_of(orders[name]))
    for _ in range(data.draw(st.integers(1, 12))):
        name = data.draw(st.sampled_from(sorted(orders)))
        if data.draw(st.booleans()):
            wanted = data.draw(st.integers(1, GPU_MIB))
            bench.said.clear()
            out = bench.handle(AdjustAsked(1, change(name, memory_mib=wanted)))
            if data.draw(st.booleans()):  # the word about what is there comes in between, once more
                bench.observe(subjects.slice_(NODE, orders[name].booking.allocation), answer_of(orders[name]))
                is_written = any(isinstance(each, Write) for each in out)
                counts[name] = counts[name] if is_written else sum(shares_of(orders[name]))
            everything(bench, out)
            (outcome,) = answers(bench)
            fits = wanted <= GPU_MIB - sum(counts.values()) + counts[name]
            if isinstance(outcome, Adjusted):
                orders[name] = bench.allocator.ctx.facts.ledger[outcome.booking.allocation]
                assert shares_of(orders[name]) == [wanted]
                counts[name] = max(counts[name], wanted)
                assert fits
            elif outcome.reason is AdjustReason.CAPACITY_EXCEEDED:
                assert not fits
                assert dict(outcome.most)["memory_mib"] == GPU_MIB - sum(counts.values()) + counts[name]
            else:
                assert outcome.reason is AdjustReason.UNCHANGED
        else:
            is_small = counts[name] == sum(shares_of(orders[name]))
            shrinking = not is_small and data.draw(st.booleans())  # what is done stays done
            said(bench, orders[name], shrinking=shrinking)
            if not shrinking:
                counts[name] = sum(shares_of(orders[name]))
        assert free_mib(bench) == GPU_MIB - sum(counts.values()) >= 0
        assert usage(bench.allocator.ctx, "default").memory_mib == sum(counts.values())
