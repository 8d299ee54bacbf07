"""Failures between two steps of creating or destroying: nothing stays behind, and no process is forgotten."""

import msgspec
import pytest
from factories.gpus.shared_devices import ON_MIG, live_with

from sluice.contracts.bus.events import ReadLast, Ticked, Write
from sluice.contracts.messages import SliceFailed, SliceGone, SliceReady
from sluice_node_agent.core.events import GpuTroubled, QuarantineReleased, TicketRefused
from sluice_node_agent.core.instructions import (
    CreateComputeInstance,
    DestroyGpuInstance,
    MakeTicket,
    StartMps,
    StopMps,
    VerifyInstance,
    WatchMps,
)

OTHER_MIG = (1, "3g.20gb", 4, 4)


def step(node):
    if isinstance(node.waiting[0], (Write, ReadLast)):
        node.answer(node.waiting.popleft())
    else:
        node.handle(node.carry_out(node.waiting.popleft()))


def until(node, want):
    """Carry out all before the first that is wanted; returns that, which is not carried out."""
    for _ in range(2000):
        for n, each in enumerate(node.waiting):
            if want(each):
                del node.waiting[n]
                return each
        assert node.waiting
        step(node)
    raise AssertionError


def test_a_ticket_never_names_a_device_that_is_gone(node):
    """A share joined early, its home was made again while the slice waited for another device."""
    node.live()
    two = (node.share("a1", ON_MIG), node.share("a1", OTHER_MIG))
    booking = msgspec.structs.replace(two[0], devices=(*two[0].devices, *two[1].devices))
    node.order(node.grant(booking))
    held = until(node, lambda i: isinstance(i, StartMps) and i.gpu == node.gpus[1])
    while node.waiting:
        step(node)
    first = next(d for d in node.mps.living())
    node.mps.die(first)
    with node.hardware.changing() as hardware:
        hardware.gpus[0].instances.clear()
    node.handle(GpuTroubled(node.gpus[0]))
    for _ in range(5):
        node.tick(5.0)
    node.own_done.clear()
    node.handle(node.carry_out(held))
    node.work()
    there = {i.uuid for gpu in node.hardware.read().gpus for i in gpu.instances}
    made = [i for i in node.own_done if isinstance(i, MakeTicket)]
    assert isinstance(node.word("a1"), SliceReady)
    for each in made:
        assert set(each.containers[0].visible_devices.split(",")) <= there


def test_a_revoked_share_waits_for_its_processes_although_a_surplus_one_is_being_made(node):
    """Both would be destroyed, and the next tenant share a GPU with an unknown process."""
    first, neighbour = node.share("a1", ON_MIG), node.share("b1", ON_MIG, owner="pod-2")
    live_with(node, first, neighbour)
    (daemon,) = node.mps.living()
    daemon.clients[501] = "pod-1"
    node.mps.enter(501, daemon.order.device, "pod-1")
    second = node.share("a2", ON_MIG)
    node.order(node.grant(second))
    ticket = until(node, lambda i: isinstance(i, MakeTicket))
    node.order(node.revoke(first))
    node.work()
    node.handle(TicketRefused(ticket.token, "no space left on device"))
    node.work()
    assert isinstance(node.word("a2"), SliceFailed)
    node.order(node.revoke(second))
    for _ in range(3):
        node.tick(5.0)
    both = isinstance(node.word("a1"), SliceGone) and isinstance(node.word("a2"), SliceGone)
    assert not (both and 501 in daemon.clients)


def test_what_an_operator_vouched_for_once_does_not_hold_for_a_slice_that_lives_on(node):
    """Its GPU would be given to the next one under its process, long after somebody looked there once."""
    booking = node.booking("a1", (0, "3g.20gb", 4, 4), (2, None, 0, 8))
    live_with(node, booking)
    node.mps.enter(501, node.gpus[2], "pod-1")
    with node.hardware.changing() as hardware:
        hardware.gpus[0].instances[0].uuid = ""
    node.refused = [CreateComputeInstance] + [DestroyGpuInstance] * 5
    for _ in range(12):
        node.tick(5.0)
        if not node.refused:
            break
    assert not node.refused
    node.handle(QuarantineReleased(booking.allocation, ignore_holders=True))
    node.work()
    for _ in range(20):
        node.tick(5.0)
    assert isinstance(node.word("a1"), SliceReady)
    node.order(node.revoke(booking))
    node.work()
    assert not isinstance(node.word("a1"), SliceGone)


@pytest.mark.parametrize("is_share", [False, True])
def test_what_loses_its_compute_instance_while_it_is_made_leaves_nothing(node, is_share):
    """Somebody destroys it before it is read back, and the GPU instance would stay for ever."""
    node.live()
    booking = node.share("a1", ON_MIG) if is_share else node.booking("a1", ON_MIG)
    node.order(node.grant(booking))
    verify = until(node, lambda i: isinstance(i, VerifyInstance))
    with node.hardware.changing() as hardware:
        hardware.gpus[0].instances[0].uuid = ""
    node.handle(node.carry_out(verify))
    node.work()
    assert isinstance(node.word("a1"), SliceFailed)
    node.order(node.revoke(booking))
    for _ in range(5):
        node.tick(10.0)
    assert isinstance(node.word("a1"), SliceGone)
    assert node.instances(0) == []


def test_a_daemon_whose_device_vanished_is_stopped_although_its_home_is_given_back_while_it_is_made_again(node):
    """The daemon was announced; a home that gets another instance forgets that."""
    booking = node.share("a1", ON_MIG)
    live_with(node, booking)
    # it does not answer any more, then its instance vanishes: the daemon is given up, and its process is there still
    node.mps.refusals = [WatchMps] * 5 + [StartMps] * 8
    for _ in range(5):
        node.tick(5.5)
    with node.hardware.changing() as hardware:
        hardware.gpus[0].instances.clear()
    node.refused = []
    for _ in range(400):
        if any(isinstance(i, CreateComputeInstance) for i in node.waiting):
            break
        if node.waiting:
            step(node)
        else:
            node.now += 1.0
            node.handle(Ticked())
    else:
        raise AssertionError
    node.order(node.revoke(booking))
    for _ in range(5):
        node.tick(10.0)
    assert isinstance(node.word("a1"), SliceGone)
    assert node.mps.homes == {}


def test_a_useless_home_that_could_not_be_cleared_away_is_tried_again(node):
    """A reboot and a lost journal: one refusal, and the directory of its home stays until the next life."""
    booking = node.share("a1", ON_MIG)
    live_with(node, booking)
    node.lose_journal()
    node.hardware.reboot()
    node.mps.reboot()
    node.mps.refusals = [StopMps]
    node.live()
    node.order(node.revoke(booking))
    for _ in range(30):
        node.tick(10.0)
    assert isinstance(node.word("a1"), SliceGone)
    assert node.mps.homes == {}


@pytest.mark.parametrize("profile", ["1g.5gb+me", "1g.5gb"])
def test_an_instance_that_somebody_made_in_the_place_of_ours_is_left_alone(node, profile):
    """Its user would lose it. One that looks like ours cannot be told apart, and is unused."""
    node.live()
    booking = node.booking("a1", (0, "1g.5gb", 0, 1))
    node.order(node.grant(booking))
    verify = until(node, lambda i: isinstance(i, VerifyInstance))
    with node.hardware.changing() as hardware:
        i = hardware.gpus[0].instances[0]
        i.profile, i.uuid = profile, ""  # ours was removed, and another one made by hand: the id is used again
    node.handle(node.carry_out(verify))
    node.work()
    assert isinstance(node.word("a1"), SliceFailed)
    node.order(node.revoke(booking))
    for _ in range(5):
        node.tick(10.0)
    assert len(node.instances(0)) == (1 if profile.endswith("me") else 0)
