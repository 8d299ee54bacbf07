"""One request from its ask to its end in the allocator's core, as whole lists of instructions."""

import itertools

import pytest
from factories.scheduling.allocator import FOLDER, INCARNATION, asked, bound_of, claim, kinds, messages, only, ready_of
from factories.words import booking_of, write_of
from msgspec.structs import replace

from sluice.contracts import messages as msg
from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import WriteRefused
from sluice.contracts.ids import AllocationId, GpuUuid, NodeName, OperationId, RequestId
from sluice.contracts.reasons import RefusalReason, WaitReason

NODE = NodeName("node-a")
P1 = RequestId("p1")


def test_a_pod_that_asks_is_granted_a_place_at_once(bench):
    """One request on an empty GPU: exactly one guarded ledger write."""
    device = msg.DeviceGrant(container="main", gpu=GpuUuid("GPU-node-a-0"), profile="1g.5gb", start=6, size=1)
    booking = booking_of("p1_r1_1", NODE, (device,), request=P1)
    grant = msg.Grant(revision=1, incarnation=INCARNATION, booking=booking)
    said = bench.request(asked("p1"))
    head = bench.allocator.ctx.outbox.current(subjects.head(NODE)).sequence
    guarded = {"guard": "sluice.ledger.node-a.>", "request": "p1"}
    assert said == [write_of(subjects.ledger(NODE, booking.allocation), grant, head, "r1-2", **guarded)]


@pytest.mark.parametrize(
    ("profile", "chosen", "expected"),
    [
        ("1g.5gb", "", "compute,utility"),
        ("1g.5gb", "compute,graphics", "compute,graphics"),
        ("1g.5gb+me", "", "compute,utility,video"),
        ("1g.5gb+me", "all", "all"),
    ],
)
def test_a_container_has_of_the_driver_what_it_chose_or_what_its_profile_is_made_for(bench, profile, chosen, expected):
    """The agent sees devices alone, and a +me instance would be bought for nothing."""
    grant = bench.granted("p1", claim(profile=profile, driver_capabilities=chosen))
    (bound,) = messages(bench.ready(grant))
    assert [each.driver_capabilities for each in bound.containers] == [expected]


def test_a_pod_that_ends_gives_its_place_back_in_the_right_order(bench):
    """Revoke, then (after SliceGone) Closed and Released, each once, closing messages with a TTL."""
    grant = bench.bound("p1")
    (revoke,) = bench.withdraw("p1")
    assert revoke == msg.Revoke(revision=2, incarnation=INCARNATION, booking=grant.booking, cause="pod gone")
    closed, released = bench.land_all(bench.gone(grant))
    assert (closed.ttl_s, released.ttl_s) == (3600, 3600)
    assert released.message == msg.Released(request=P1, cause="pod gone")
    allocation = grant.booking.allocation
    assert closed.message == msg.Closed(revision=2, allocation=allocation, request=P1, node=NODE, cause="pod gone")


def test_what_the_settings_forbid_is_refused_not_left_pending(bench):
    """More GPUs than one pod may have: Refused, naming field, value and what is allowed."""
    (refused,) = messages(bench.request(asked("p1", claim(gpus=57))))
    why = refused.refusal
    assert (why.reason, why.field, why.value) == (RefusalReason.TOO_LARGE, "gpus", "57")
    assert why.allowed == "1 to 8 whole GPUs, or 1 to 56 instances or shares on them, over all containers"


def test_a_gpu_that_took_its_slices_along_is_not_tried_again_at_once(bench):
    """Its node may show it as well for a while: it would be granted, and given back, as fast as the bus carries it."""
    grant = bench.granted("p1")
    given_back = bench.words(bench.breaks(grant, "double bit ECC error"))
    assert kinds(given_back) == [msg.Waived, msg.Revoke, msg.Pending]
    assert [count.reason for count in given_back[2].reasons] == [WaitReason.GPU_AVOIDED]
    assert kinds(bench.words(bench.gone(grant))) == [msg.Closed]
    (again,) = only(msg.Grant, bench.passes(bench.allocator.ctx.rules.retry_first_s))
    assert again.booking.devices[0].gpu == grant.booking.devices[0].gpu


def test_what_is_on_its_way_is_decided_before_its_request_is_released(bench):
    """Another allocator bound the pod, and its slice was lost: a place would be granted to a request that is over."""
    (write,) = bench.request(asked("p1"))
    mine = write.message
    allocation = AllocationId("p1_other_1")
    theirs = replace(mine, booking=replace(mine.booking, allocation=allocation))
    closed = msg.Closed(revision=2, allocation=allocation, request=P1, node=NODE, cause="its GPU was lost")
    bench.sequence = iter(range(5000, 6000))
    bench.reads(theirs)
    bench.observe(subjects.binding(P1), bound_of(theirs))

    assert messages(bench.observe(subjects.ledger(NODE, allocation), closed)) == []
    decided = bench.handle(WriteRefused(write.operation, 5002))
    assert messages(decided) == [msg.Released(request=P1, cause="slice lost: its GPU was lost")]


def test_a_rebooted_node_gives_the_pod_its_new_strings(bench):
    """The same grant ready again under a new ticket: Bound with revision 2."""
    (bound,) = messages(bench.ready(bench.bound("p1"), "ticket-2"))
    assert (bound.revision, bound.ticket) == (2, "ticket-2")


def test_the_same_word_twice_changes_nothing(bench):
    """Duplicates of a request, a slice's message and a binding cause no instruction."""
    grant = bench.bound("p1")
    assert bench.request(asked("p1")) == bench.ready(grant) == []


def test_an_allocator_that_reads_late_puts_no_old_strings_over_new_ones(bench):
    """Another allocator bound the pod to what its slice is after a reboot; the older message changes nothing."""
    grant = bench.bound("p1")
    bound = bench.allocator.ctx.facts.bindings[P1]
    for newer in (
        {"revision": 2, "slice_operation": OperationId("other-slice-999")},
        {"revision": 3, "slice_operation": OperationId("agent-2-1")},  # of a later run
        {"revision": 4, "slice_operation": OperationId(""), "slice_sequence": 9_999_999},  # of an older allocator
    ):
        assert bench.observe(subjects.binding(P1), replace(bound, ticket="ticket-2", **newer)) == []
        assert bench.ready(grant) == []


@pytest.mark.parametrize("by", ["another-write-7", "agent-1-1"])
def test_a_pod_is_told_its_new_devices_at_once_where_the_bus_gives_its_numbers_out_again(bench, by):
    """A reboot of the node that the broker is on, too: the pod's containers would wait a minute with the old UUIDs."""
    grant = bench.granted("p1")
    address = subjects.slice_(NODE, grant.booking.allocation)
    bench.state_sequence = itertools.count(1000)
    bench.land_all(bench.observe(address, ready_of(grant), "another-write-6"))
    bench.state_sequence = itertools.count(500)
    (told,) = bench.observe(address, ready_of(grant, "ticket-2"), by)
    assert (told.message.revision, told.message.ticket) == (2, "ticket-2")
    assert (told.message.slice_operation, told.message.slice_sequence) == (by, 500)


def test_a_pod_is_told_what_became_of_the_daemon_it_shares_and_when_that_is_over(bench):
    """A restarted MPS daemon has ended the tenant's processes: unreported, users suspect their own code."""
    grant = bench.bound("p1")
    restarted = ("its MPS daemon died and was started again",)
    (warned,) = bench.words(bench.ready(grant, warnings=restarted))
    (calm,) = bench.words(bench.ready(grant))
    assert (warned.revision, warned.warnings) == (2, restarted)
    assert (calm.revision, calm.warnings) == (3, ())
    assert warned.containers == calm.containers


def test_an_agents_word_that_tells_a_pod_nothing_new_writes_no_binding(bench):
    """Else every message of an agent would be a guarded write, and pods be updated again and again."""
    grant, troubled = bench.granted("p1"), ("a client of uid 0 waits",)
    bench.land_all(bench.ready(grant, warnings=troubled))
    assert bench.ready(grant, warnings=troubled) == []


def test_a_bound_that_lands_when_all_is_over_is_released_again(bench):
    """A first write of before the broker was wiped passes its guard for ever: the pod's binding would never end."""
    grant = bench.bound("p1")
    late = bench.allocator.ctx.facts.bindings[P1]
    bench.withdraw("p1")
    bench.land_all(bench.gone(grant))
    over = msg.RequestWithdrawn(revision=2, source=FOLDER, cause="pod gone", closing=True)
    bench.land_all(bench.observe(subjects.request(P1), over))
    again = messages(bench.observe(subjects.binding(P1), late))
    assert again == [msg.Released(request=P1, cause="its request is gone")]
