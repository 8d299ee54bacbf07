"""A slice is given back when no process of its pod is left, whatever that holds, and its device is empty."""

import pytest

from sluice.contracts.messages import SliceGone, SliceQuarantined, SliceReady
from sluice_node_agent.core.events import PodProcess, QuarantineReleased
from sluice_node_agent.core.instructions import (
    DestroyComputeInstance,
    DestroyGpuInstance,
    ListTenants,
    SaveJournal,
    StopMps,
    TerminateMpsClients,
)

INSTANCE, WHOLE, HOME = (0, "3g.20gb", 4, 4), (2, None, 0, 1), (2, None, 0, 1)
LEFT = (PodProcess(41, "python"), PodProcess(42, "tee", in_kernel=True))


@pytest.fixture
def node(make_node):
    node = make_node()
    node.has_pods = True
    node.live()
    return node


def _ready(node, *bookings):
    for booking in bookings:
        node.order(node.grant(booking))
    node.work()
    assert all(isinstance(node.word(booking.allocation), SliceReady) for booking in bookings)
    node.own_done.clear()


def _bookings(node):
    return [node.booking("a1", INSTANCE), node.booking("a1", WHOLE), node.share("a1", HOME)]


def _steps(node):
    return [type(step) for step in node.own_done if not isinstance(step, SaveJournal)]


@pytest.mark.parametrize("mode", [0, 1, 2], ids=["instance", "whole GPU", "share"])
def test_a_device_is_kept_while_a_process_of_its_pod_lives_that_holds_nothing(node, mode):
    """It may open its device yet, when somebody else has it."""
    booking = _bookings(node)[mode]
    _ready(node, booking)
    node.pods["pod-1"] = LEFT[:1]
    node.order(node.revoke(booking))
    node.work()
    for _ in range(100):
        node.tick(0.25)
    assert not {DestroyComputeInstance, DestroyGpuInstance, StopMps} & set(_steps(node))
    assert node.word("a1").message == "processes of its pod still run: python 41"
    assert node.word("a1").holders == ("python 41",)
    assert isinstance(node.word("a1"), SliceQuarantined)

    node.pods.clear()
    node.tick(node.config.look_for_tenants_s)
    assert isinstance(node.word("a1"), SliceGone), "it is given back with the next look"
    assert node.instances() == []


def test_where_processes_cannot_be_looked_for_nothing_is_given_back_and_it_is_said(node):
    """An empty list proves nothing where processes are invisible."""
    booking = node.booking("a1", INSTANCE)
    _ready(node, booking)
    node.unseen = "only its own; set hostPID: true in the agent's pod"
    node.order(node.revoke(booking))
    node.work()
    for _ in range(40):
        node.tick()
    assert isinstance(node.word("a1"), SliceQuarantined)
    assert "set hostPID: true" in node.word("a1").message
    assert DestroyComputeInstance not in _steps(node)


def test_an_agent_that_sees_no_processes_of_pods_warns_when_it_starts(make_node):
    """Before the first slice is kept for it."""
    node = make_node()
    node.has_pods, node.unseen = True, "only its own"
    node.live()
    assert any("only its own" in warning for warning in node.agent.snapshot().warnings)


def test_who_serves_no_pods_of_a_kubelet_looks_at_devices_alone(make_node):
    """A manifest in a folder has no cgroup to look into; to wait for one would be for ever."""
    node = make_node()
    node.live()
    booking = node.booking("a1", INSTANCE)
    _ready(node, booking)
    node.pods["pod-1"] = LEFT
    node.order(node.revoke(booking))
    node.work()
    assert ListTenants not in _steps(node)
    assert isinstance(node.word("a1"), SliceGone)


def test_the_surplus_slice_of_a_running_pod_goes_while_it_runs(node):
    """Its processes are there for the slice that it is bound to."""
    kept, surplus = node.booking("a1", INSTANCE), node.booking("a2", (1, "2g.10gb", 4, 2))
    _ready(node, kept, surplus)
    node.pods["pod-1"] = LEFT
    node.order(node.revoke(surplus))
    node.work()
    assert isinstance(node.word("a2"), SliceGone)
    node.order(node.revoke(kept))
    node.work()
    node.tick()
    assert not isinstance(node.word("a1"), SliceGone)


def test_a_person_who_vouches_for_what_is_left_is_believed(node):
    """A process that the kernel never lets go of must not keep a GPU for ever."""
    booking = node.booking("a1", INSTANCE)
    _ready(node, booking)
    node.pods["pod-1"] = LEFT
    node.order(node.revoke(booking))
    node.work()
    for _ in range(40):
        node.tick()
    assert "tee 42 (waits in the kernel" in node.word("a1").message
    node.handle(QuarantineReleased(booking.allocation, ignore_holders=True))
    node.work()
    assert isinstance(node.word("a1"), SliceGone)


def test_what_waits_is_not_said_again_and_again(node):
    """A pod that starts a process every second would be a write on the bus every second, for as long as it lives."""
    booking = node.booking("a1", INSTANCE)
    _ready(node, booking)
    node.order(node.revoke(booking))
    said = []
    for number in range(240):
        node.pods["pod-1"] = (PodProcess(100 + number, "sh"),)
        node.tick(0.5)
        said.append(node.word("a1"))
    assert len(dict.fromkeys(map(str, said))) <= 6


def test_a_client_of_a_shared_device_is_let_go_while_its_process_lives_on(node):
    """It computes beside the others no more, while its pod takes its time to end."""
    booking = node.share("a1", HOME)
    _ready(node, booking)
    (daemon,) = node.mps.living()
    daemon.clients[41] = "pod-1"
    node.mps.enter(41, daemon.order.device, "pod-1")
    node.pods["pod-1"] = LEFT[:1]
    node.order(node.revoke(booking))
    node.work()
    for _ in range(4):
        node.tick()
    assert TerminateMpsClients in _steps(node)
    assert 41 not in daemon.clients
    assert StopMps not in _steps(node)
    node.pods.clear()
    node.tick()
    assert isinstance(node.word("a1"), SliceGone)
