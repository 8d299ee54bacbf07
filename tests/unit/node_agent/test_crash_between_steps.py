"""A crash between two steps, or a step that is half done."""

import msgspec
import pytest
from factories.crashes import deaths, killed_twice
from factories.gpus.shared_devices import ON_MIG

from sluice.contracts.messages import SliceFailed, SliceGone, SliceReady
from sluice_node_agent.core import instructions as do
from sluice_node_agent.core.events import GpuTroubled, QuarantineReleased

BOTH = ((0, "3g.20gb", 4, 4), (1, "1g.5gb", 6, 1))


def _finish(node):
    """A new run after the crash, that is opened and ends what was begun."""
    node.live()
    assert node.work()
    return node.word("a1")


@pytest.mark.parametrize("executed", [False, True], ids=["before", "after"])
def test_making_survives_a_crash_at_every_step(make_node, executed):
    """A user's slice is made exactly once, wherever the agent dies (an instruction out may or may not be done)."""
    for death in deaths(executed=executed, least=15):
        node = make_node()
        node.order(node.grant(node.booking("a1", *BOTH)))
        death.strikes(node)
        word = _finish(node)
        assert isinstance(word, SliceReady), death.steps
        assert (node.instances(0), node.instances(1)) == ([("3g.20gb", 4, 4)], [("1g.5gb", 6, 1)]), death.steps
        assert [d.uuid for d in word.devices] == [node.hardware.read().gpus[n].instances[0].uuid for n in (0, 1)]
        assert node.tickets.names() == (word.ticket,), death.steps


def test_making_survives_a_second_crash_at_every_step(make_node):
    """The third run knows what the second one found on the GPU: else an instance is orphaned for good."""
    tried = 0
    for node, when in killed_twice(make_node, lambda node: node.order(node.grant(node.booking("a1", *BOTH)))):
        assert isinstance(node.word("a1"), SliceReady), when
        assert (node.instances(0), node.instances(1)) == ([("3g.20gb", 4, 4)], [("1g.5gb", 6, 1)]), when
        tried += 1
    assert tried >= 60


@pytest.mark.parametrize("executed", [False, True], ids=["before", "after"])
def test_unmaking_survives_a_crash_at_every_step(make_node, executed):
    """What a pod gave back is given back wherever the agent dies, and only then called gone."""
    for death in deaths(executed=executed, least=10):
        node = make_node()
        node.order(node.revoke(node.serve(node.booking("a1", *BOTH))))
        death.strikes(node)
        if isinstance(node.word("a1"), SliceGone):
            assert (node.instances(0), node.instances(1)) == ([], [])
        word = _finish(node)
        assert isinstance(word, SliceGone), death.steps
        assert word.revision == 2
        assert (node.instances(0), node.instances(1), node.tickets.names()) == ([], [], ()), death.steps
        assert node.agent.snapshot().slices == ()


@pytest.mark.parametrize("shared", [False, True], ids=["exclusive", "share"])
def test_what_is_made_instead_of_an_instance_that_vanished_is_given_back_after_a_crash(make_node, monkeypatch, shared):
    """The journal names an instance that is gone: the new one would be orphaned, and its place lost."""
    given: list[int] = []

    def never_twice(free):
        given.append(next((each for each in free if each not in given), free[0]))
        return given[-1]

    monkeypatch.setattr("sluice_node_agent.simulated.backend.random.choice", never_twice)
    for second in range(5):
        node = make_node()
        booking = node.share("a1", ON_MIG) if shared else node.booking("a1", ON_MIG)
        node.order(node.grant(booking))
        node.up_to(do.VerifyInstance)
        node.stop()
        node.lose_instances()
        node.begin()
        node.open()
        assert not node.work(own_max=second)
        node.carry_out(node.waiting.popleft())
        node.stop()
        node.put(f"sluice.ledger.n1_example.{booking.allocation}", node.revoke(booking))
        assert isinstance(_finish(node), SliceGone), second
        assert node.instances(0) == [], second


def test_an_instance_with_the_id_of_one_that_just_went_is_its_own_slices_after_a_crash(node, monkeypatch):
    """The driver reuses an id at once: the new instance would be orphaned, and its place lost."""
    monkeypatch.setattr("sluice_node_agent.simulated.backend.random.choice", min)
    leaving, coming = node.booking("a1", (0, "1g.5gb", 3, 1)), node.booking("a2", (0, "1g.5gb", 0, 1))
    node.serve(leaving)
    (before,) = node.hardware.read().gpus[0].instances
    node.order(node.revoke(leaving))
    destroy = node.up_to(do.DestroyGpuInstance)
    node.serve(coming)
    node.handle(node.carry_out(destroy))
    node.carry_out(node.up_to(do.CreateGpuInstance))  # sooner than the journal has it that the other one is gone
    (after,) = node.hardware.read().gpus[0].instances
    assert (after.gi_id, after.start) == (before.gi_id, 0)
    node.live()
    assert isinstance(node.word("a1"), SliceGone)
    assert isinstance(node.word("a2"), SliceReady)
    assert node.instances(0) == [("1g.5gb", 0, 1)]


def test_a_foreign_compute_instance_of_while_the_agent_was_down_is_left_alone(node):
    """Ours was destroyed, and the journal says so: what is there is an administrator's."""
    booking = node.booking("a1", ON_MIG)
    node.serve(booking)
    node.order(node.revoke(booking))
    node.up_to(do.DestroyGpuInstance)
    node.stop()
    node.change_instance(uuid="MIG-by-hand")
    node.live()
    assert [each.uuid for each in node.hardware.read().gpus[0].instances] == ["MIG-by-hand"]
    assert isinstance(node.word("a1"), SliceGone)


OTHER_MIG = (1, "3g.20gb", 4, 4)


def test_a_ticket_never_names_a_device_that_is_gone(node):
    """A share joined early, its home was made again while the slice waited for another device."""
    one, other = node.share("a1", ON_MIG), node.share("a1", OTHER_MIG)
    node.order(node.grant(msgspec.structs.replace(one, devices=(*one.devices, *other.devices))))
    held = node.up_to(do.StartMps, gpu=1)
    node.work()
    node.mps.die(node.mps.living()[0])
    node.lose_instances()
    node.handle(GpuTroubled(node.gpus[0]))
    node.tick(5.0, times=5)
    node.own_done.clear()
    node.happens(node.carry_out(held))
    there = {i.uuid for gpu in node.hardware.read().gpus for i in gpu.instances}
    made = [i for i in node.own_done if isinstance(i, do.MakeTicket)]
    assert isinstance(node.word("a1"), SliceReady)
    for each in made:
        assert set(each.containers[0].visible_devices.split(",")) <= there


def test_what_an_operator_vouched_for_once_does_not_hold_for_a_slice_that_lives_on(node):
    """Its GPU would be granted again under its process, long after a person looked there once."""
    booking = node.ready(node.booking("a1", (0, "3g.20gb", 4, 4), (2, None, 0, 8)))
    node.mps.enter(501, node.gpus[2], "pod-1")
    node.change_instance(uuid="")
    node.refused = [do.CreateComputeInstance] + [do.DestroyGpuInstance] * 5
    while node.refused:
        assert node.now < 1060.0, "it is not tried again"
        node.tick(5.0)
    node.happens(QuarantineReleased(booking.allocation, ignore_holders=True))
    node.tick(5.0, times=20)
    assert isinstance(node.word("a1"), SliceReady)
    node.take_back(booking)
    assert not isinstance(node.word("a1"), SliceGone)


def _changed_while_it_is_made(node, booking, **changes):
    """Its instance changes before it is read back: it fails, and is given back."""
    node.order(node.grant(booking))
    verify = node.up_to(do.VerifyInstance)
    node.change_instance(uuid="", **changes)
    node.happens(node.carry_out(verify))
    assert isinstance(node.word("a1"), SliceFailed)
    node.order(node.revoke(booking))
    node.tick(10.0, times=5)


@pytest.mark.parametrize("is_share", [False, True])
def test_what_loses_its_compute_instance_while_it_is_made_leaves_nothing(node, is_share):
    """It is destroyed before it is read back, and the GPU instance would stay for ever."""
    _changed_while_it_is_made(node, node.share("a1", ON_MIG) if is_share else node.booking("a1", ON_MIG))
    assert isinstance(node.word("a1"), SliceGone)
    assert node.instances(0) == []


@pytest.mark.parametrize("profile", ["1g.5gb+me", "1g.5gb"])
def test_a_foreign_instance_in_the_place_of_ours_is_left_alone(node, profile):
    """Its user would lose it. One that looks like ours cannot be distinguished, and is unused; the id is used again."""
    _changed_while_it_is_made(node, node.booking("a1", (0, "1g.5gb", 0, 1)), profile=profile)
    assert len(node.instances(0)) == (1 if profile.endswith("me") else 0)
