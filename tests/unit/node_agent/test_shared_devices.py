"""Homes of shares: made with the first tenant, kept for all, gone with the last, whatever happens in between."""

import pytest
from factories.crashes import killed_twice
from factories.gpus.shared_devices import ON_MIG, PLACES, WHOLE, is_clean, live_with
from msgspec.structs import replace

from sluice.contracts.messages import SliceDegraded, SliceFailed, SliceGone, SliceQuarantined, SliceReady
from sluice_node_agent.core.events import (
    ComputeInstanceCreated,
    GpuInstanceCreated,
    GpuTroubled,
    InstanceVerified,
    JournalSaved,
    MpsStarted,
    QuarantineReleased,
    TicketMade,
    TicketRefused,
)
from sluice_node_agent.core.instructions import (
    ListHolders,
    RemoveTicket,
    SaveJournal,
    SetMpsLimits,
    StartMps,
    StopMps,
    TerminateMpsClients,
)
from sluice_node_agent.core.journal_records import DeviceRecord, SliceRecord
from sluice_node_agent.core.state.devices import never_read
from sluice_node_agent.simulated.backend import SimulatedBackend


def test_a_share_gets_instance_daemon_and_limits_before_its_ticket(node):
    """A container would start beside a server that serves no client, or that lets it take everything."""
    node.live()
    node.own_done.clear()
    booking = node.share("a1", ON_MIG, memory_mib=4000, sm_partition=20, uid=7)
    node.order(node.grant(booking))
    node.work()
    steps = [type(step).__name__ for step in node.own_done if type(step).__name__ != "SaveJournal"]
    assert steps == [
        "CreateGpuInstance", "CreateComputeInstance", "VerifyInstance", "StartMps", "MakeTicket",
    ]  # fmt: skip
    start = next(step for step in node.own_done if isinstance(step, StartMps))
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
    steps = 0
    while True:
        node = make_node()
        node.live()
        first, second = node.share("a1", place), node.share("a2", place, owner="pod-2", memory_mib=2000)
        node.order(node.grant(first))
        node.order(node.grant(second))
        ended = node.work(own_max=steps)
        if not ended and executed:
            node.carry_out(node.waiting.popleft())
        node.live()
        assert node.work()
        words = [node.word("a1"), node.word("a2")]
        assert all(isinstance(word, SliceReady) for word in words), (steps, words)
        (daemon,) = node.mps.living()
        assert node.mps.started == 1, steps
        assert daemon.limits.memory_mib == 2000, steps
        assert {word.containers[0].visible_devices for word in words} == {daemon.order.device}, steps
        assert sorted(node.tickets.names()) == sorted(word.ticket for word in words), steps
        for booking in (first, second):
            node.order(node.revoke(booking))
        assert node.work()
        is_clean(node)
        if ended:
            break
        steps += 1
    assert steps >= 12


@PLACES
def test_making_a_share_survives_a_second_crash_at_every_step(make_node, place):
    """What the second life found for a home, the third one knows for its own."""
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
    steps = 0
    while True:
        node = make_node()
        booking = node.share("a1", place)
        live_with(node, booking)
        node.order(node.revoke(booking))
        ended = node.work(own_max=steps)
        if not ended and executed:
            node.carry_out(node.waiting.popleft())
        if isinstance(node.word("a1"), SliceGone):
            is_clean(node)
        node.live()
        assert node.work()
        assert isinstance(node.word("a1"), SliceGone), steps
        is_clean(node)
        if ended:
            break
        steps += 1
    assert steps >= 8


@PLACES
def test_a_tenant_that_comes_while_the_home_is_going_gets_a_new_one(make_node, place):
    """It would join a daemon that is just being stopped."""
    steps = 0
    while True:
        node = make_node()
        booking = node.share("a1", place)
        live_with(node, booking)
        node.order(node.revoke(booking))
        ended = node.work(own_max=steps)
        node.order(node.grant(node.share("a2", place, owner="pod-2")))
        assert node.work()
        assert isinstance(node.word("a1"), SliceGone), steps
        ready = node.word("a2")
        assert isinstance(ready, SliceReady), (steps, ready)
        (daemon,) = node.mps.living()
        assert ready.containers[0].mps_pipe_directory == f"/mps/{daemon.order.home}/pipe"
        if ended:
            break
        steps += 1


def test_another_user_or_namespace_cannot_join(node):
    """A fault of one tenant would end a stranger's work; its processes would wait for ever for the server."""
    live_with(node, node.share("a1", ON_MIG, uid=1, namespace="red"))
    node.order(node.grant(node.share("a2", ON_MIG, uid=2, namespace="red")))
    node.order(node.grant(node.share("a3", ON_MIG, uid=1, namespace="blue")))
    node.work()
    for allocation in ("a2", "a3"):
        word = node.word(allocation)
        assert isinstance(word, SliceFailed)
        assert "red/1" in word.message
    assert isinstance(node.word("a1"), SliceReady)
    assert len(node.mps.living()) == 1


def test_the_server_lets_its_largest_tenant_through_and_no_more(node):
    """A larger share would be cut to a smaller one's, or a smaller one could take what a larger one left behind."""
    small, large = node.share("a1", ON_MIG, memory_mib=1000), node.share("a2", ON_MIG, memory_mib=5000, owner="pod-2")
    live_with(node, small)
    (daemon,) = node.mps.living()
    assert daemon.limits.memory_mib == 1000
    node.own_done.clear()
    node.order(node.grant(large))
    node.work()
    steps = [type(step).__name__ for step in node.own_done]
    assert steps.index("SetMpsLimits") < steps.index("MakeTicket")
    assert daemon.limits.memory_mib == 5000
    assert node.word("a1").containers[0].pinned_memory_limit == "0=1000M"
    node.order(node.revoke(large))
    node.work()
    assert daemon.limits.memory_mib == 1000


def test_a_server_that_takes_no_larger_limits_fails_the_larger_share_only(node):
    """The larger share would wait for ever; the smaller one has nothing to do with it."""
    live_with(node, node.share("a1", ON_MIG, memory_mib=1000))
    node.mps.refusals = [SetMpsLimits] * 100
    node.order(node.grant(node.share("a2", ON_MIG, memory_mib=5000, owner="pod-2")))
    for _ in range(40):
        node.tick(5.0)
    word = node.word("a2")
    assert isinstance(word, SliceFailed)
    assert "limits" in word.message
    assert isinstance(node.word("a1"), SliceReady)


def test_limits_stay_while_nobody_knows_how_large_the_gpu_is(node, monkeypatch):
    """Its tenants would get the SMs of a whole GPU of no size, and others than they were granted."""
    live_with(node, node.share("a1", ON_MIG, memory_mib=4000, sm_partition=20))
    (daemon,) = node.mps.living()
    limits = daemon.limits
    with node.hardware.changing() as hardware:
        hardware.faults.gpu_lost = 0
    read = SimulatedBackend.read
    with monkeypatch.context() as patched:
        patched.setattr(
            SimulatedBackend,
            "read",
            lambda gpus: tuple(never_read(g.uuid, g.index, "slow", fixed=False) if g.lost else g for g in read(gpus)),
        )
        node.own_done.clear()
        node.live()
        node.tick(60.0)
    assert not any(isinstance(step, (SetMpsLimits, StartMps)) for step in node.own_done)
    with node.hardware.changing() as hardware:
        hardware.faults.gpu_lost = -1
    node.tick(60.0)
    assert (daemon.limits, node.mps.living()) == (limits, [daemon])
    assert isinstance(node.word("a1"), SliceReady)


@PLACES
def test_a_daemon_that_cannot_be_started_leaves_nothing_behind(node, place):
    """The instance would stay, in exclusive mode or without owner, and its request would wait for ever."""
    node.live()
    node.mps.refusals = [StartMps]
    node.order(node.grant(node.share("a1", place)))
    node.work()
    word = node.word("a1")
    assert isinstance(word, SliceFailed)
    assert "refused by the test" in word.message
    node.order(node.revoke(node.share("a1", place)))
    node.work()
    assert isinstance(node.word("a1"), SliceGone)
    is_clean(node)


def test_a_client_of_another_user_that_waits_is_reported(node):
    """A pod hangs at its first CUDA call, for no visible reason."""
    live_with(node, node.share("a1", ON_MIG, uid=7))
    node.mps.living()[0].waiting = (1001,)
    node.tick(6.0)
    (warning,) = node.word("a1").warnings
    assert "user 1001" in warning
    assert "user 7" in warning


def test_processes_of_a_leaving_tenant_are_let_go_by_the_server_and_those_of_others_stay(node):
    """Killing a client that the server is busy with would hang everybody on it."""
    first, second = node.share("a1", ON_MIG, owner="pod-1"), node.share("a2", ON_MIG, owner="pod-2")
    live_with(node, first, second)
    (daemon,) = node.mps.living()
    for pid, owner in ((501, "pod-1"), (502, "pod-2")):
        daemon.clients[pid] = owner
        node.mps.enter(pid, daemon.order.device, owner)
    node.order(node.revoke(first))
    node.work()
    assert not isinstance(node.word("a1"), SliceGone)
    for _ in range(3):
        node.tick(1.0)
    terminated = [step.pids for step in node.own_done if isinstance(step, TerminateMpsClients)]
    assert terminated == [(501,)]
    assert isinstance(node.word("a1"), SliceGone)
    assert list(daemon.clients) == [502]


def test_two_shares_of_one_pod_on_a_whole_gpu_are_both_given_back(node):
    """What was found of the second would count for the first, which is asked about again and again, for ever."""
    booking = node.share("a1", WHOLE)
    (main,) = booking.devices
    booking = replace(booking, devices=(main, replace(main, container="sidecar")))
    live_with(node, booking)
    (daemon,) = node.mps.living()
    gpu, ticket, token = daemon.order.gpu, node.word("a1").ticket, node.agent._in_flight._token
    made = DeviceRecord(step="made", uuid=str(gpu))
    left = SliceRecord(
        booking=booking,
        revision=2,
        phase="unmaking",
        devices=(made, made),
        boot_id=node.backend.boot_id(),
        ticket=ticket,
        cause="pod gone",
    )
    node.own_done.clear()
    node.order(node.revoke(booking))
    assert node.work(own_max=50)
    assert node.own_done[:7] == [
        SaveJournal(token + 1, left),
        RemoveTicket(token + 2, ticket),
        SaveJournal(token + 3, left := replace(left, ticket="")),
        ListHolders(token + 4, gpu, str(gpu)),
        SaveJournal(token + 5, left := replace(left, devices=(made, DeviceRecord()))),
        ListHolders(token + 6, gpu, str(gpu)),
        SaveJournal(token + 7, left := replace(left, devices=(DeviceRecord(), DeviceRecord()))),
    ]
    assert isinstance(node.word("a1"), SliceGone)
    is_clean(node)


@PLACES
@pytest.mark.parametrize("began", ["made", "left"])
def test_a_share_does_not_wait_for_ever_for_a_home_that_cannot_be_taken_down(node, place, began):
    """Its pod would wait for it, although there is room for it elsewhere."""
    if began == "left":
        live_with(node, node.share("a0", place, owner="pod-0"))
        node.mps.refusals = [StopMps] * 50
        node.order(node.revoke(node.share("a0", place, owner="pod-0")))
        node.work()
    else:
        node.live()
        node.mps.refusals = [StartMps, *[StopMps] * 50]
    node.order(node.grant(node.share("a1", place)))
    for _ in range(10):
        node.tick(60.0)
    assert isinstance(node.word("a1"), (SliceFailed, SliceQuarantined)), node.word("a1")
    node.mps.refusals = []
    node.order(node.revoke(node.share("a1", place)))
    for _ in range(3):
        node.tick(60.0)
    assert isinstance(node.word("a1"), SliceGone)
    is_clean(node)


def test_an_operator_has_a_quarantined_slice_tried_again_at_once(node):
    """An operator who removed the cause would wait for the backoff."""
    booking = node.booking("a1", (0, "1g.5gb", 6, 1))
    live_with(node, booking)
    node.mps.enter(900, node.word("a1").devices[0].uuid, "")
    node.order(node.revoke(booking))
    node.work()
    for _ in range(20):
        node.tick(1.0)
    assert isinstance(node.word("a1"), SliceQuarantined)
    assert node.word("a1").holders == ("python 900",)
    node.handle(QuarantineReleased("a1"))
    node.work()
    assert isinstance(node.word("a1"), SliceQuarantined)  # it is still there
    node.handle(QuarantineReleased("a1", ignore_holders=True))
    node.work()
    assert isinstance(node.word("a1"), SliceQuarantined)  # and the device itself is still in use
    node.mps.leave(900)
    node.handle(QuarantineReleased("a1"))
    node.work()
    assert isinstance(node.word("a1"), SliceGone)


def a_held_gpu(node):
    """A whole GPU that its tenant gave back, and that somebody else's process keeps in quarantine."""
    booking = node.booking("a1", WHOLE)
    live_with(node, booking)
    node.mps.enter(900, node.gpus[2], "")
    node.order(node.revoke(booking))
    node.work()
    for _ in range(20):
        node.tick(1.0)
    assert isinstance(node.word("a1"), SliceQuarantined)


def test_what_an_operator_says_during_an_attempt_is_not_lost(node):
    """The answer says that it is retried; but the attempt in flight knows nothing of the confirmation."""
    a_held_gpu(node)
    node.handle(QuarantineReleased("a1"))
    assert any(isinstance(each, ListHolders) for each in node.waiting), "it is being tried"
    node.handle(QuarantineReleased("a1", ignore_holders=True))
    node.work()
    assert isinstance(node.word("a1"), SliceGone)


def test_warm_instances_in_the_way_of_a_home_are_waited_for(make_node):
    """The agent would turn in a circle for ever, or the home would fail although its place is free."""
    node = make_node(keep_warm_s=60.0)
    node.live()
    booking = node.booking("a0", (0, "1g.5gb", 6, 1))
    node.order(node.grant(booking))
    node.work()
    node.order(node.revoke(booking))
    node.work()
    node.order(node.grant(node.share("a1", ON_MIG)))
    node.work()
    assert isinstance(node.word("a1"), SliceReady)
    assert node.instances(0) == [("3g.20gb", 4, 4)]


@PLACES
def test_after_a_reboot_a_home_stays_as_long_as_a_ticket_lets_containers_in(node, place, monkeypatch):
    """A container started with it would find no daemon, and compute beside the GPU's next tenant."""
    booking = node.share("a1", place)
    live_with(node, booking)
    (home,) = node.mps.homes
    node.stop()
    node.hardware.reboot()
    node.mps.reboot()
    carry_out, is_full = node.carry_out, [True]

    def refuse(instruction):
        if isinstance(instruction, RemoveTicket) and is_full[0]:
            return TicketRefused(instruction.token, "no space left on device")
        return carry_out(instruction)

    monkeypatch.setattr(node, "carry_out", refuse)
    node.live()
    for _ in range(3):
        node.tick(30.0)
    assert list(node.mps.homes) == [home]
    assert node.tickets.names() != ()
    is_full[0] = False
    for _ in range(3):
        node.tick(30.0)
    assert home not in node.mps.homes
    assert isinstance(node.word("a1"), SliceReady)


@PLACES
@pytest.mark.parametrize("damage", ["removed", "flipped"])
def test_a_lost_journal_disturbs_no_home(node, place, damage):
    """Running tenants would lose their daemon because a disk did."""
    first, second = node.share("a1", place), node.share("a2", place, owner="pod-2")
    live_with(node, first, second)
    before = [node.word("a1"), node.word("a2")]
    (daemon,) = node.mps.living()
    node.stop()
    path = node.tmp_path / "agent" / "journal"
    if damage == "removed":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    node.words.clear()
    node.live()
    node.work()
    assert node.mps.living() == [daemon]
    assert node.mps.started == 1
    after = [node.word("a1"), node.word("a2")]
    assert [word.ticket for word in after] == [word.ticket for word in before]
    assert [word.containers for word in after] == [word.containers for word in before]
    for booking in (first, second):
        node.order(node.revoke(booking))
    node.work()
    is_clean(node)


def test_a_pod_that_lost_one_of_its_shares_keeps_the_other(node):
    """The daemon of the share that is there would be stopped under the pod's running process."""
    two = (node.share("a1", ON_MIG), node.share("a1", WHOLE))
    booking = replace(two[0], devices=(*two[0].devices, *two[1].devices))
    live_with(node, booking)
    on_mig, whole = sorted(node.mps.living(), key=lambda daemon: daemon.order.device, reverse=True)
    whole.clients[501] = "pod-1"
    node.mps.enter(501, whole.order.device, "pod-1")
    node.mps.die(on_mig)
    with node.hardware.changing() as hardware:
        hardware.gpus[0].instances.clear()
    node.mps.refusals = [StartMps] * 3
    for _ in range(6):
        node.tick(6.0)
    assert isinstance(node.word("a1"), SliceDegraded)
    assert whole in node.mps.living()
    node.mps.refusals = []
    for _ in range(12):
        node.tick(10.0)
    assert isinstance(node.word("a1"), SliceReady)
    assert whole in node.mps.living()
    assert node.word("a1").containers[0].visible_devices.endswith(whole.order.device)


def test_a_revoke_right_after_the_journal_was_lost_waits_for_the_tenants_processes(node):
    """The daemon would be stopped under a process that still computes, and its place be called free."""
    first = node.share("a1", ON_MIG, owner="pod-1")
    live_with(node, first)
    (daemon,) = node.mps.living()
    daemon.clients[501] = "pod-1"
    node.mps.enter(501, daemon.order.device, "pod-1")
    node.stop()
    (node.tmp_path / "agent" / "journal").unlink()
    node.start()
    node.work()
    node.open()
    node.order(node.revoke(first))
    while not node.work(own_max=1):
        assert node.mps.homes or not daemon.clients
        assert not (isinstance(node.word("a1"), SliceGone) and daemon.clients)
    for _ in range(5):
        node.tick(1.0)
    assert any(isinstance(step, TerminateMpsClients) for step in node.own_done)
    assert isinstance(node.word("a1"), SliceGone)
    is_clean(node)


@PLACES
def test_a_revoke_found_after_a_reboot_ends_what_is_left_of_its_home(node, place):
    """The agent would fail at each start, on a home that has no device any more."""
    booking = node.share("a1", place)
    live_with(node, booking)
    node.stop()
    node.hardware.reboot()
    node.mps.reboot()
    (node.tmp_path / "agent" / "journal").unlink()
    node.put("sluice.ledger.n1_example.a1", node.revoke(booking))
    node.words.clear()
    node.live()
    node.work()
    assert isinstance(node.word("a1"), SliceGone)
    is_clean(node)


def test_an_error_that_the_driver_tells_of_is_seen_at_once(node):
    """A broken GPU would take new slices until the next reading."""
    node.live()
    with node.hardware.changing() as hardware:
        hardware.faults.gpu_lost = 0
    node.handle(GpuTroubled(node.gpus[0]))
    node.work()
    assert not node.agent.snapshot().gpus[0].healthy


def test_every_result_may_come_twice(node):
    """A duplicate would be taken for the result of another step."""
    live_with(node, node.share("a1", ON_MIG))
    for duplicate in (
        JournalSaved(1),
        GpuInstanceCreated(2, 3),
        ComputeInstanceCreated(3, "MIG-x"),
        InstanceVerified(4),
        MpsStarted(5, 1, 1),
        TicketMade(6),
    ):
        assert node.handle(duplicate) == []


def test_a_lost_slice_that_cannot_be_cleared_away_is_degraded_and_not_given_up(node):
    """The allocator would revoke a bound slice that its pod still wants."""
    live_with(node, node.share("a1", ON_MIG))
    with node.hardware.changing() as hardware:
        hardware.gpus[0].instances.clear()
    node.mps.refusals = [StartMps, *[StopMps] * 10]
    for _ in range(25):
        node.tick(4.0)
        assert not isinstance(node.word("a1"), (SliceQuarantined, SliceFailed)), node.word("a1")
