"""Homes of shares: made with the first tenant, kept for all, gone with the last, whatever happens in between."""

import pytest
from factories.crashes import deaths, killed_twice
from factories.gpus.shared_devices import ON_MIG, PLACES, WHOLE, is_clean

from sluice.contracts.messages import SliceFailed, SliceGone, SliceQuarantined, SliceReady
from sluice_node_agent.core import events as ev
from sluice_node_agent.core import instructions as do


def test_a_share_gets_instance_daemon_and_limits_before_its_ticket(node):
    """A container would start beside a server that serves no client, or that lets it take everything."""
    node.own_done.clear()
    node.serve(node.share("a1", ON_MIG, memory_mib=4000, sm_partition=20, uid=7))
    making = [do.CreateGpuInstance, do.CreateComputeInstance, do.VerifyInstance]
    assert node.steps() == [*making, do.StartMps, do.MakeTicket]
    start = next(step for step in node.own_done if isinstance(step, do.StartMps))
    ready = node.word("a1")
    assert (start.device, start.uid, start.namespace) == (ready.devices[0].uuid, 7, "default")
    # 20 % of 98 SMs are 20 SMs, and 48 % of the 42 of a 3g.20gb
    assert (start.limits.active_thread_percentage, start.limits.memory_mib) == (48, 4000)
    told = ready.containers[0]
    assert told.visible_devices == start.device
    assert (told.memory_mib, told.pinned_memory_limit, told.active_thread_percentage) == (4000, "0=4000M", 48)
    assert told.mps_pipe_directory == f"/mps/{start.home}/pipe"
    assert told.mps_log_directory == f"/mps/{start.home}/log"


@PLACES
@pytest.mark.parametrize("executed", [False, True], ids=["before", "after"])
def test_making_two_shares_survives_a_crash_at_every_step(make_node, executed, place):
    """Two daemons for one device, an instance without owner, or a tenant without daemon after a crash."""
    for death in deaths(executed=executed, least=12):
        node = make_node()
        first, second = node.share("a1", place), node.share("a2", place, owner="pod-2", memory_mib=2000)
        node.order(node.grant(first))
        node.order(node.grant(second))
        death.strikes(node)
        node.live()
        assert node.work()
        words = [node.word("a1"), node.word("a2")]
        assert all(isinstance(word, SliceReady) for word in words), (death.steps, words)
        (daemon,) = node.mps.living()
        assert node.mps.started == 1, death.steps
        assert daemon.limits.memory_mib == 2000, death.steps
        assert {word.containers[0].visible_devices for word in words} == {daemon.order.device}, death.steps
        assert sorted(node.tickets.names()) == sorted(word.ticket for word in words), death.steps
        for booking in (first, second):
            node.order(node.revoke(booking))
        assert node.work()
        is_clean(node)


@PLACES
def test_making_a_share_survives_a_second_crash_at_every_step(make_node, place):
    """What the second run found for a home, the third one knows for its own."""
    tried = 0
    for node, when in killed_twice(make_node, lambda node: node.order(node.grant(node.share("a1", place)))):
        assert isinstance(node.word("a1"), SliceReady), when
        assert len(node.mps.living()) == 1, when
        node.order(node.revoke(node.share("a1", place)))
        assert node.work()
        is_clean(node)
        tried += 1
    assert tried >= 40


@PLACES
@pytest.mark.parametrize("executed", [False, True], ids=["before", "after"])
def test_unmaking_the_last_share_survives_a_crash_at_every_step(make_node, executed, place):
    """A daemon without tenant, or an orphaned instance, stays behind."""
    for death in deaths(executed=executed, least=8):
        node = make_node()
        node.order(node.revoke(node.ready(node.share("a1", place))))
        death.strikes(node)
        if isinstance(node.word("a1"), SliceGone):
            is_clean(node)
        node.live()
        assert node.work()
        assert isinstance(node.word("a1"), SliceGone), death.steps
        is_clean(node)


def test_another_user_or_namespace_cannot_join(node):
    """A fault of one tenant would end a stranger's work; its processes would wait for ever for the server."""
    node.ready(node.share("a1", ON_MIG, uid=1, namespace="red"))
    node.serve(node.share("a2", ON_MIG, uid=2, namespace="red"), node.share("a3", ON_MIG, uid=1, namespace="blue"))
    for allocation in ("a2", "a3"):
        assert "red/1" in node.says(allocation, SliceFailed).message
    assert isinstance(node.word("a1"), SliceReady)
    assert len(node.mps.living()) == 1


def test_the_server_lets_its_largest_tenant_through_and_no_more(node):
    """A larger share would be cut to a smaller one's, or a smaller one could take what a larger one left behind."""
    small, large = node.share("a1", ON_MIG, memory_mib=1000), node.share("a2", ON_MIG, memory_mib=5000, owner="pod-2")
    node.ready(small)
    (daemon,) = node.mps.living()
    assert daemon.limits.memory_mib == 1000
    node.own_done.clear()
    node.serve(large)
    assert node.steps().index(do.SetMpsLimits) < node.steps().index(do.MakeTicket)
    assert daemon.limits.memory_mib == 5000
    assert node.word("a1").containers[0].pinned_memory_limit == "0=1000M"
    node.take_back(large)
    assert daemon.limits.memory_mib == 1000


def test_a_server_that_takes_no_larger_limits_fails_the_larger_share_only(node):
    node.ready(node.share("a1", ON_MIG, memory_mib=1000))
    node.mps.refusals = [do.SetMpsLimits] * 100
    node.order(node.grant(node.share("a2", ON_MIG, memory_mib=5000, owner="pod-2")))
    node.tick(5.0, times=40)
    assert "limits" in node.says("a2", SliceFailed).message
    assert isinstance(node.word("a1"), SliceReady)


@PLACES
def test_a_daemon_that_cannot_be_started_leaves_nothing_behind(node, place):
    """The instance would stay, in exclusive mode or without owner, and its request would wait for ever."""
    node.mps.refusals = [do.StartMps]
    node.serve(node.share("a1", place))
    assert "refused by the test" in node.says("a1", SliceFailed).message
    node.gone(node.share("a1", place))
    is_clean(node)


def test_a_client_of_another_user_that_waits_is_reported(node):
    """A pod hangs at its first CUDA call, for no visible reason."""
    node.ready(node.share("a1", ON_MIG, uid=7))
    node.mps.living()[0].waiting = (1001,)
    node.tick(6.0)
    (warning,) = node.word("a1").warnings
    assert "user 1001" in warning
    assert "user 7" in warning


def test_an_operator_has_a_quarantined_slice_tried_again_at_once(node):
    booking = node.ready(node.booking("a1", (0, "1g.5gb", 6, 1)))
    node.mps.enter(900, node.word("a1").devices[0].uuid, "")
    node.take_back(booking)
    node.tick(1.0, times=20)
    assert node.says("a1", SliceQuarantined).holders == ("python 900",)
    node.happens(ev.QuarantineReleased("a1"))
    assert isinstance(node.word("a1"), SliceQuarantined)  # it is still there
    node.happens(ev.QuarantineReleased("a1", ignore_holders=True))
    assert isinstance(node.word("a1"), SliceQuarantined)  # and the device itself is still in use
    node.mps.leave(900)
    node.happens(ev.QuarantineReleased("a1"))
    assert isinstance(node.word("a1"), SliceGone)


def test_what_an_operator_says_during_an_attempt_is_not_lost(node):
    """The answer says that it is retried; but the attempt in flight knows nothing of the confirmation."""
    booking = node.ready(node.booking("a1", WHOLE))
    node.mps.enter(900, node.gpus[2], "")
    node.take_back(booking)
    node.tick(1.0, times=20)
    assert isinstance(node.word("a1"), SliceQuarantined)
    node.handle(ev.QuarantineReleased("a1"))
    assert any(isinstance(each, do.ListHolders) for each in node.waiting), "it is being tried"
    node.happens(ev.QuarantineReleased("a1", ignore_holders=True))
    assert isinstance(node.word("a1"), SliceGone)


def test_warm_instances_in_the_way_of_a_home_are_waited_for(make_node):
    """The agent would turn in a circle for ever, or the home would fail although its place is free."""
    node = make_node(keep_warm_s=60.0)
    node.take_back(node.serve(node.booking("a0", (0, "1g.5gb", 6, 1))))
    node.ready(node.share("a1", ON_MIG))
    assert node.instances(0) == [("3g.20gb", 4, 4)]


@PLACES
def test_after_a_reboot_a_home_stays_as_long_as_a_ticket_lets_containers_in(node, place):
    """A container started with it would find no daemon, and compute beside the GPU's next tenant."""
    node.ready(node.share("a1", place))
    (home,) = node.mps.homes
    node.reboot()
    node.refused = [do.RemoveTicket] * 100
    node.live()
    node.tick(30.0, times=3)
    assert list(node.mps.homes) == [home]
    assert node.tickets.names() != ()
    node.refused = []
    node.tick(30.0, times=3)
    assert home not in node.mps.homes
    assert isinstance(node.word("a1"), SliceReady)


@PLACES
def test_a_revoke_found_after_a_reboot_ends_what_is_left_of_its_home(node, place):
    """The agent would fail at each start, on a home that has no device any more."""
    booking = node.ready(node.share("a1", place))
    node.reboot()
    node.remove_journal()
    node.put("sluice.ledger.n1_example.a1", node.revoke(booking))
    node.words.clear()
    node.live()
    assert isinstance(node.word("a1"), SliceGone)
    is_clean(node)


def test_an_error_that_the_driver_tells_of_is_seen_at_once(node):
    """A broken GPU would take new slices until the next reading."""
    node.fault(gpu_lost=0)
    node.happens(ev.GpuTroubled(node.gpus[0]))
    assert not node.agent.snapshot().gpus[0].healthy


def test_every_result_may_come_twice(node):
    node.ready(node.share("a1", ON_MIG))
    created = (ev.GpuInstanceCreated(2, 3), ev.ComputeInstanceCreated(3, "MIG-x"), ev.InstanceVerified(4))
    for duplicate in (ev.JournalSaved(1), *created, ev.MpsStarted(5, 1, 1), ev.TicketMade(6)):
        assert node.handle(duplicate) == []


def test_a_lost_slice_that_cannot_be_cleared_away_is_degraded_and_not_given_up(node):
    """The allocator would revoke a bound slice that its pod still wants."""
    node.ready(node.share("a1", ON_MIG))
    node.lose_instances()
    node.mps.refusals = [do.StartMps, *[do.StopMps] * 10]
    for _ in range(25):
        node.tick(4.0)
        assert not isinstance(node.word("a1"), (SliceQuarantined, SliceFailed)), node.word("a1")
