"""Tenants of a token scheduler: their names, what they used, what they say."""

import struct
from types import SimpleNamespace

import pytest
from factories.gpus.shared_devices import WHOLE
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sluice_node_agent.core.instructions import SetQuotas
from sluice_node_agent.core.quota import wire
from sluice_node_agent.core.quota.tenants import TenantUsage, UsedTime
from sluice_node_agent.core.quota.wire import Ask, GiveBack, Grant, Hello, Quota, Refused, Stop, WireError
from sluice_node_agent.shell.quota.metrics import quota_samples


@pytest.fixture
def timed(make_node):
    return make_node(time_quota=True)


def _timed_share(node, allocation, place, request=300, limit=1000, **more):
    booking = node.share(allocation, place, sm_partition=50, **more)
    devices = tuple(
        replace(each, share=replace(each.share, quota_request_permille=request, quota_limit_permille=limit))
        for each in booking.devices
    )
    return replace(booking, devices=devices)


def _told(node):
    """The last order to every token scheduler: allocation -> (request, limit)."""
    orders = node.mps.quotas.values()
    return {t.name: (t.request_permille, t.limit_permille) for order in orders for t in order.tenants}


def test_no_time_is_enforced_where_the_library_is_not(node):
    node.ready(_timed_share(node, "a1", WHOLE))
    assert node.mps.quotas == {}
    assert node.word("a1").containers[0].quota_socket == ""
    assert not node.agent.snapshot().time_quota


def test_what_a_scheduler_refused_is_tried_again(timed):
    """A socket that could not be made once is never made."""
    timed.mps.refusals = [SetQuotas]
    timed.ready(_timed_share(timed, "a1", WHOLE))
    assert _told(timed) == {}
    timed.tick(60)
    assert _told(timed) == {"a1/main": (300, 1000)}


def test_a_process_without_a_hello_is_reported(timed):
    """A program that is linked statically takes all of the time, silently."""
    timed.ready(_timed_share(timed, "a1", WHOLE))
    timed.tick(60)
    (daemon,) = timed.mps.living()
    daemon.clients = {500: "pod-1", 501: "pod-1"}
    timed.mps.greeted = (501,)
    timed.tick(60)
    assert timed.word("a1").warnings == ()  # it may just have begun
    timed.tick(60)
    (warning,) = timed.word("a1").warnings
    assert warning.startswith("QuotaNotEnforced: process 500 on GPU-"), warning
    timed.mps.greeted = (500, 501)
    timed.tick(60)
    assert timed.word("a1").warnings == ()


def test_what_was_counted_is_shown_of_slices_that_are_there_and_of_no_others(timed):
    """No metric shows what waits for the GPU; or metrics of every past pod fill the memory of a Prometheus."""
    timed.ready(_timed_share(timed, "a1", WHOLE))
    counted = TenantUsage(
        granted_us=5_000_000, used_us=4_000_000, waited_us=3_000_000, overrun_us=500_000,
        tokens=1, late=2, stalls=3, hellos=4, fail_opens=6, connections=5, greeted_pids=(7, 8),
    )  # fmt: skip
    homes = SimpleNamespace(usage=lambda: {"a1/main": counted, "gone/main": counted})
    shown = {sample.metric.name: (sample.value, sample.labels) for sample in quota_samples(timed.agent, homes)}
    booking = timed.agent.snapshot().slices[0].booking
    of = (booking.namespace, booking.name, "main")
    assert shown == {
        "sluice_quota_granted_seconds_total": (5, of),
        "sluice_quota_used_seconds_total": (4, of),
        "sluice_quota_waited_seconds_total": (3, of),
        "sluice_quota_overrun_seconds_total": (0.5, of),
        "sluice_quota_stalls_total": (3, of),
        "sluice_quota_fail_opens_total": (6, of),
        "sluice_quota_processes": (2, of),
    }
    assert len(list(quota_samples(timed.agent, homes))) == len(shown)


WINDOW = 50
STRETCHES = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), max_size=12)


def _played(stretches):
    used, held, now = UsedTime(WINDOW), set(), 0
    for gap, length in stretches:
        used.add(now + gap, now + gap + length)
        held |= set(range(now + gap, now + gap + length))
        now += gap + length
    return used, held, now


def _most(held, end):
    return len([each for each in held if end - WINDOW <= each < end])


@settings(max_examples=150, derandomize=True, deadline=None)
@given(STRETCHES, st.integers(0, 30), st.integers(1, WINDOW), st.integers(1, 20))
def test_a_token_is_as_long_as_the_limit_allows_and_no_longer(stretches, later, allowed, most):
    """A limit is exceeded in some window, or a tenant gets less than its limit."""
    used, held, now = _played(stretches)
    now += later
    assert used.used_us(now) == _most(held, now)
    room = used.room_us(now, allowed, most)

    def keeps(length):
        then = held | set(range(now, now + length))
        return all(_most(then, end) <= allowed for end in range(now, now + length + 1))

    assert room == max((length for length in range(most + 1) if keeps(length)), default=0)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(STRETCHES, st.integers(5, WINDOW), st.integers(1, 5))
def test_who_waits_for_its_limit_is_woken_when_there_is_room(stretches, allowed, least):
    """A tenant that has used its limit sleeps on, or wakes for nothing."""
    used, _, now = _played(stretches)
    at = used.room_at_us(now, allowed, least)
    assert now <= at <= now + WINDOW
    assert used.room_us(at, allowed, least) >= least


def test_many_short_stretches_take_no_memory_and_never_count_less():
    """A client that asks and gives back without end fills the agent's memory, or gets past its limit."""
    used, now = UsedTime(100_000), 0
    for _ in range(5_000):
        used.add(now, now + 5)
        now += 15
    assert len(used._intervals) <= 256
    assert used.used_us(now) >= now // 3 - 5


UUID = bytes(range(16))


def _packet(kind, body=b"", *, magic=0x54514C53, version=1, sequence=5, size=64):
    return (struct.pack("<IHHQ", magic, version, kind, sequence) + body).ljust(size, b"\0")


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (_packet(1, struct.pack("<III16s", 42, 1, 0x010203, UUID)), Hello(42, True, 0x010203, UUID)),
        (_packet(1, struct.pack("<III16sI", 42, 1, 0x010203, UUID, 3)), Hello(42, True, 0x010203, UUID, 3)),
        (_packet(2, struct.pack("<QQ", 3_000, 8)), Ask(5, 3_000, 8)),
        (_packet(3, struct.pack("<QQ", 8, 9_999)), GiveBack(8, 9_999)),
    ],
)
def test_what_a_client_says_is_understood(sent, message):
    assert wire.read(sent) == message


@pytest.mark.parametrize(
    ("message", "kind", "body"),
    [
        (Quota(1, 2, 3, 4, 5, 6, 7), 17, struct.pack("<QQIIQQQ", 1, 2, 3, 4, 5, 6, 7)),
        (Quota(1, 2, 3, 4, 5, 6, 7, is_news=True), 19, struct.pack("<QQIIQQQ", 1, 2, 3, 4, 5, 6, 7)),
        (Grant(7, 10_000, 3), 18, struct.pack("<QQQ", 7, 10_000, 3)),
        (Stop(7), 20, struct.pack("<Q", 7)),
        (Refused(2), 21, struct.pack("<I", 2)),
    ],
)
def test_what_the_scheduler_says_has_its_place(message, kind, body):
    assert wire.written(message, 5) == _packet(kind, body)


@pytest.mark.parametrize(
    ("sent", "why", "reason"),
    [
        (_packet(2, size=63), "a packet of 63 bytes", 0),
        (_packet(2, size=65), "a packet of 65 bytes", 0),
        (b"", "a packet of 0 bytes", 0),
        (_packet(2, magic=1), "magic is 0x00000001", 0),
        (_packet(2, version=2), "version is 2", 1),
        (_packet(18), "kind is 18", 0),
        (_packet(2, b"\0" * 16 + b"x"), "something after its 16 bytes", 0),
        (_packet(1, struct.pack("<III16s", 42, 2, 1, UUID)), "flags are 0x2", 0),
    ],
)
def test_what_is_no_message_is_refused_in_words(sent, why, reason):
    """What a broken or newer client sends is taken for something else."""
    with pytest.raises(WireError, match=why) as caught:
        wire.read(sent)
    assert caught.value.reason == reason
