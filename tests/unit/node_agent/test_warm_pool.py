"""Instances kept warm: faster for the next tenant, blocking no grant, and never a device of the one before."""

import pytest
from factories.crashes import deaths

from sluice.contracts.messages import PlacementReport, SliceFailed, SliceGone, SliceReady
from sluice_node_agent.core.events import DeviceErrorKind, DeviceRefused
from sluice_node_agent.core.instructions import CreateComputeInstance, CreateGpuInstance, DestroyGpuInstance

PLACE = (0, "2g.10gb", 4, 2)


def _given_back(node, place=PLACE):
    node.gone(node.ready(node.booking("a1", place)))


@pytest.fixture
def warm(make_node):
    return make_node(keep_warm_s=60.0)


@pytest.mark.parametrize("shared", [False, True], ids=["slice", "home"])
def test_a_creation_does_not_hammer_the_driver_while_a_warm_instance_cannot_be_destroyed(warm, monkeypatch, shared):
    """It was tried over and over, at full speed, until that was given up."""
    _given_back(warm)
    tried, carry_out = [], warm.carry_out

    def refuse(step):
        kinds = {CreateGpuInstance: DeviceErrorKind.INSUFFICIENT_RESOURCES, DestroyGpuInstance: DeviceErrorKind.IN_USE}
        kind = kinds.get(type(step))
        if kind is None:
            return carry_out(step)
        tried.append(type(step))
        return DeviceRefused(step.token, kind, "refused by the test")

    monkeypatch.setattr(warm, "carry_out", refuse)
    at = (0, "2g.10gb", 0, 2)
    warm.order(warm.grant(warm.share("a2", at) if shared else warm.booking("a2", at)))
    assert warm.work(own_max=50)
    warm.tick(1.0, times=12)
    assert isinstance(warm.word("a2"), SliceFailed)
    assert tried.count(CreateGpuInstance) < 15


def test_a_warm_instance_that_holds_the_last_media_engine_goes_first(warm):
    """1g.5gb+me elsewhere on the GPU would be refused although no tenant is there."""
    _given_back(warm, (0, "1g.5gb+me", 6, 1))
    warm.ready(warm.booking("a2", (0, "1g.5gb+me", 2, 1)))
    assert warm.instances(0) == [("1g.5gb+me", 2, 1)]


def test_one_that_another_program_uses_is_left_alone(warm):
    _given_back(warm)
    warm.change_instance(uuid="MIG-of-another")
    warm.tick(11.0, times=10)
    assert warm.instances(0) == [("2g.10gb", 4, 2)]
    assert [i.allocation for i in warm.agent.snapshot().gpus[0].instances] == [None]


@pytest.mark.parametrize("executed", [False, True], ids=["before", "after"])
def test_a_crash_at_any_step_of_keeping_and_taking_loses_nothing(make_node, executed):
    """An instance would be foreign after a crash: lost capacity."""
    for death in deaths(executed=executed, least=12):
        node = make_node(keep_warm_s=60.0)
        again = node.booking("a2", PLACE)
        node.order(node.revoke(node.serve(node.booking("a1", PLACE))))
        node.order(node.grant(again, after=("a1",)))
        death.strikes(node)
        node.live()
        assert node.work()
        assert isinstance(node.word("a2"), SliceReady), death.steps
        assert node.instances(0) == [("2g.10gb", 4, 2)], death.steps
        node.take_back(again)
        node.tick(10.0, times=8)
        assert node.instances(0) == [], death.steps


def test_a_homes_instance_is_kept_too(warm):
    """Shares that come and go would pay for an instance each time."""
    for name in ("a1", "a2"):
        warm.gone(warm.ready(warm.share(name, (0, "3g.20gb", 4, 4))))
        assert warm.mps.homes == {}
    done = [type(step) for step in warm.own_done]
    assert (done.count(CreateGpuInstance), done.count(DestroyGpuInstance)) == (1, 0)


@pytest.mark.parametrize("shared", [False, True], ids=["slice", "home"])
def test_nothing_is_kept_on_a_gpu_that_does_not_say_what_is_in_it(make_node, shared):
    """A compute instance that no record names would be taken for a stranger's, and its place never be free again."""
    node = make_node(keep_warm_s=600.0)
    booking = node.share("a1", PLACE) if shared else node.booking("a1", PLACE)
    node.order(node.grant(booking))
    node.carry_out(node.up_to(CreateComputeInstance))
    node.stop()
    node.fault(gpu_lost=0)
    node.put("sluice.ledger.n1_example.a1", node.revoke(booking))
    node.live()
    node.tick(60.0)
    node.fault(gpu_lost=-1)
    node.tick(60.0, times=3)
    assert isinstance(node.word("a1"), SliceGone)
    assert [i.uuid for i in node.hardware.read().gpus[0].instances] == [""]


def test_one_that_cannot_be_destroyed_is_reported_and_its_place_stays_booked(warm):
    """Its place would be granted again and again, to slices that cannot be created, for no visible reason."""
    _given_back(warm)
    warm.refused = [DestroyGpuInstance] * 5
    warm.tick(60.0)
    while warm.refused:
        assert warm.agent.snapshot().gpus[0].instances == ()
        warm.tick(9.0)
    assert warm.instances(0) == [("2g.10gb", 4, 2)]
    gpu = warm.agent.snapshot().gpus[0]
    assert [(i.profile, i.start, i.size, i.allocation) for i in gpu.instances] == [("2g.10gb", 4, 2, None)]
    assert gpu.quarantined == (PlacementReport(start=4, size=2),)
    assert gpu.creatable["7g.40gb"] == 0
    warm.tick(9.0, times=4)
    gpu = warm.agent.snapshot().gpus[0]
    assert (warm.instances(0), gpu.instances, gpu.quarantined) == ([], (), ())
