"""Fractional shares of a node that enforces time: which tenants a home's token scheduler has, and when."""

from types import SimpleNamespace

import pytest
from factories.gpus.shared_devices import PLACES, WHOLE, live_with
from msgspec.structs import replace

from sluice_node_agent.core.events import QuotaTenant
from sluice_node_agent.core.instructions import SetQuotas
from sluice_node_agent.shell.quota.metrics import quota_samples
from sluice_node_agent.shell.quota.server import TenantUsage


@pytest.fixture
def timed(node):
    node.time_quota = True
    return node


def _timed_share(node, allocation, place, request=300, limit=1000, **more):
    booking = node.share(allocation, place, sm_partition=50, **more)
    devices = tuple(
        replace(each, share=replace(each.share, quota_request_permille=request, quota_limit_permille=limit))
        for each in booking.devices
    )
    return replace(booking, devices=devices)


def _told(node):
    """What every token scheduler was told last: allocation -> (request, limit)."""
    orders = node.mps.quotas.values()
    return {t.name: (t.request_permille, t.limit_permille) for order in orders for t in order.tenants}


@PLACES
def test_a_fractional_share_is_told_to_the_token_scheduler_of_its_home(timed, place):
    """A share of the time that nothing enforces, or whose socket its container does not find."""
    booking = _timed_share(timed, "a1", place)
    live_with(timed, booking)
    (order,) = timed.mps.quotas.values()
    (tenant,) = order.tenants
    width = order.tenants[0].width_percent
    assert tenant == QuotaTenant("a1/main", tenant.socket, "pod-1", 0, 300, 1000, width, 1000)
    assert width >= 50
    (told,) = timed.word("a1").containers
    assert told.quota_socket == f"/mps/{order.home}/quota/{tenant.socket}"
    assert timed.agent.snapshot().time_quota


def test_no_time_is_enforced_where_the_library_is_not(node):
    live_with(node, _timed_share(node, "a1", WHOLE))
    assert node.mps.quotas == {}
    assert node.word("a1").containers[0].quota_socket == ""
    assert not node.agent.snapshot().time_quota


def test_tenants_come_and_go(timed):
    """A share that came later has no token scheduler, or one that left still takes part of the time."""
    first, second = _timed_share(timed, "a1", WHOLE), _timed_share(timed, "a2", WHOLE, 700, owner="pod-2")
    live_with(timed, first, second)
    assert _told(timed) == {"a1/main": (300, 1000), "a2/main": (700, 1000)}
    timed.order(timed.revoke(first))
    timed.work()
    assert _told(timed) == {"a2/main": (700, 1000)}


def test_what_a_scheduler_refused_is_tried_again(timed):
    """A socket that could not be made once is never made."""
    timed.mps.refusals = [SetQuotas]
    live_with(timed, _timed_share(timed, "a1", WHOLE))
    assert _told(timed) == {}
    timed.tick(60)
    timed.work()
    assert _told(timed) == {"a1/main": (300, 1000)}


def test_a_process_without_a_hello_is_reported(timed):
    """A program that is linked statically takes all of the time, silently."""
    live_with(timed, _timed_share(timed, "a1", WHOLE))
    timed.tick(60)
    timed.work()
    (daemon,) = timed.mps.living()
    daemon.clients = {500: "pod-1", 501: "pod-1"}
    timed.mps.greeted = (501,)
    timed.tick(60)
    timed.work()
    assert timed.word("a1").warnings == ()  # it may just have begun
    timed.tick(60)
    timed.work()
    (warning,) = timed.word("a1").warnings
    assert warning.startswith("QuotaNotEnforced: process 500 on GPU-"), warning
    timed.mps.greeted = (500, 501)
    timed.tick(60)
    timed.work()
    assert timed.word("a1").warnings == ()


def test_what_was_counted_is_shown_of_slices_that_are_there_and_of_no_others(timed):
    """No metric shows what waits for the GPU; or metrics of every past pod fill the memory of a Prometheus."""
    live_with(timed, _timed_share(timed, "a1", WHOLE))
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
