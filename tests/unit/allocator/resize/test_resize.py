"""Shares that are made larger or smaller: booked as one order, and no share admitted too early."""

import pytest
from factories.scheduling.allocator import INCARNATION, asked, gpu_report, messages, only, working_allocator
from factories.scheduling.resize import (
    GPU_MIB,
    NODE,
    adjusted,
    answers,
    change,
    fractional,
    free_mib,
    mps,
    said,
    shares_of,
    with_gpus,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Write
from sluice.contracts.ids import AllocationId, RequestId
from sluice.contracts.resize import max_sizes
from sluice_allocator.core.events import AdjustAsked, AnswerAdjust, LeaseChanged
from sluice_allocator.core.quotas.quota import usage
from sluice_allocator.core.resize.pending import ASKED_MAX, Adjusted, AdjustReason, FieldChange
from sluice_allocator.core.resize.resize import adjust


def test_a_change_is_one_order_and_is_answered_when_the_ledger_has_it(bench):
    """A caller that reads "done" before that may read wrong."""
    before = bench.bound("p1", fractional(20, 4000))

    changes = {"memory_mib": 8000, "quota_limit_permille": 900, "quota_request_permille": 500}
    (write,) = bench.handle(AdjustAsked(3, change(**changes)))
    (device,) = before.booking.devices
    after = replace(before.booking, devices=(replace(device, share=replace(device.share, **changes)),))
    counts = max_sizes(before.booking.devices, after.devices)
    assert write.message == msg.Grant(revision=2, incarnation=INCARNATION, booking=after, counts=counts)
    assert write.subject == subjects.ledger(NODE, after.allocation).subject

    (answer,) = only(AnswerAdjust, bench.land(write))
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
    sizes = [(device.container, device.share.memory_mib) for device in grant.booking.devices]
    assert sizes == [("a", 5000), ("a", 5000), ("b", 1000)]


@pytest.mark.parametrize("shrinking", [False, True], ids=["small by now", "an older agent"])
def test_what_a_slice_counts_that_ails_is_what_its_agent_says_is_used(bench, shrinking):
    """A neighbour has the rest by then: booked as before it would be booked twice, and no share could be changed."""
    bench.bound("p1", mps(30000))
    grant = adjusted(bench, memory_mib=10000)
    said(bench, grant)
    address = subjects.slice_(NODE, grant.booking.allocation)
    about = {"allocation": grant.booking.allocation, "request": RequestId("p1"), "revision": 2}
    more = {} if shrinking else {"shrinking": False}  # an older agent does not say it
    bench.settle(bench.observe(address, msg.SliceDegraded(**about, message="double bit ECC error", **more)))
    assert free_mib(bench) == GPU_MIB - (30000 if shrinking else 10000)
    (revoke,) = bench.withdraw("p1")
    assert shares_of(revoke) == [30000 if shrinking else 10000]


def test_one_change_of_a_share_at_a_time(bench):
    """The second would be decided on a size that is not in the ledger yet."""
    bench.bound("p1", mps(10000))
    first = bench.handle(AdjustAsked(1, change(memory_mib=20000)))
    bench.said.clear()
    bench.handle(AdjustAsked(2, change(memory_mib=30000)))
    (busy,) = answers(bench)
    assert busy.reason is AdjustReason.NOT_NOW
    bench.settle(first)
    assert free_mib(bench) == GPU_MIB - 20000


def test_a_revoke_that_waits_for_its_turn_says_the_size_that_its_slice_has_by_now(bench):
    """The ledger would book the larger size again, over a tenant that came beside the smaller one meanwhile."""
    bench.bound("p1", mps(30000))
    smaller = adjusted(bench, memory_mib=5000)
    (sent,) = bench.request(asked("p2", mps(1000)))  # its order is on its way: the next one under this guard waits
    assert bench.ends("p1") == bench.ready(smaller) == bench.request(asked("p3", mps(30000))) == []

    (revoke,) = [write for write in bench.land(sent) if isinstance(write, Write)]
    assert revoke.message == msg.Revoke(revision=3, incarnation=INCARNATION, booking=smaller.booking, cause="pod gone")
    (grant,) = [write for write in bench.land(revoke) if isinstance(write, Write)]
    assert grant.message == msg.Grant(revision=1, incarnation=INCARNATION, booking=grant.message.booking)
    assert (grant.message.booking.name, shares_of(grant.message)) == ("p3", [30000])
    assert free_mib(bench) == GPU_MIB - 5000 - 1000 - 30000


def test_a_share_still_comes_after_who_had_its_place(bench):
    """By the ledger two would have that place at once, until the agent's message that one is gone has landed."""
    before = bench.bound("p1", mps(4000))
    waits = replace(before, after=(AllocationId("p0_other_1"),), evict=True)
    bench.settle(bench.reads(waits))
    grant = adjusted(bench, memory_mib=9000)
    assert (grant.after, grant.evict) == (waits.after, True)


def test_a_process_that_works_no_longer_takes_back_what_it_has_not_sent(bench):
    """The caller is sent to the other one; and what was booked for it is free again."""
    bench.bound("p1", mps(10000))
    bench.asks(asked("p2", mps(1000)))
    sent = bench.request(asked("p3", mps(1000)))  # its order is on its way: the next one under this guard waits
    assert len(messages(sent)) == 1
    bench.said.clear()
    assert bench.handle(AdjustAsked(1, change(memory_mib=20000))) == []
    bench.handle(LeaseChanged(held=False))
    (answer,) = answers(bench)
    assert answer.reason is AdjustReason.NOT_NOW
    assert free_mib(bench) == GPU_MIB - 10000 - 1000 - 1000


def test_so_many_at_once_and_no_more(empty):
    """A flood of questions would fill the memory of the active allocator."""
    bench = with_gpus(empty, *(gpu_report("node-a", index, mig=False) for index in range(8)))
    for number in range(ASKED_MAX + 1):
        bench.bound(f"p{number}", mps(100))
    bench.said.clear()
    for number in range(ASKED_MAX + 1):
        bench.handle(AdjustAsked(number, change(f"p{number}", memory_mib=200)))
    (last,) = answers(bench)
    assert last.reason is AdjustReason.NOT_NOW


def test_an_edit_of_the_pod_changes_no_share_that_it_has(bench):
    """A new annotation would undo what was adjusted, or revoke a running slice."""
    bench.bound("p1", mps(4000))
    grant = adjusted(bench, memory_mib=9000)
    said(bench, grant)
    assert bench.asks(asked("p1", mps(1000), revision=2)) == []
    assert free_mib(bench) == GPU_MIB - 9000


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_a_home_counts_the_largest_that_may_be_used(data):
    """Whatever is asked, answered and said in whatever order: a home counts what is ordered or may still be used."""
    bench = with_gpus(working_allocator(), gpu_report("node-a", 0, mig=False))
    orders: dict[str, msg.Grant] = {}
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
            if data.draw(st.booleans()):  # the message about what is there comes in between, once more
                bench.ready(orders[name])
                is_written = any(isinstance(each, Write) for each in out)
                counts[name] = counts[name] if is_written else sum(shares_of(orders[name]))
            bench.settle(out)
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
