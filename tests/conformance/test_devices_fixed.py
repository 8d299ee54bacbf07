"""A GPU whose layout is fixed, on simulated devices and on a driver: shown as it is, and changed by its owner alone."""

import pytest
from factories.gpus.instances import instance_of

from sluice_node_agent.device.port import NotSupportedError

GPUS = '{model="a100-40gb", layout=["3g.20gb:0", "2g.10gb", "1g.5gb:6"]}, {model="a100-40gb"}'
LAYOUT = [("3g.20gb", 0, 4), ("2g.10gb", 4, 2), ("1g.5gb", 6, 1)]


@pytest.fixture
def rig(make_devices):
    """A GPU with a fixed layout, and one without."""
    return make_devices(GPUS)


def test_what_its_administrator_made_is_told(rig):
    """Available instances would be unknown."""
    fixed, plain = rig.backend.read()
    assert (fixed.fixed_layout, plain.fixed_layout) == (True, False)
    assert rig.spans() == LAYOUT
    assert all(each.uuid.startswith("MIG-") and not each.unusable for each in fixed.instances)
    assert rig.backend.read_gpu(fixed.uuid).fixed_layout
    assert instance_of(rig.backend, fixed.uuid, fixed.instances[0].gi_id).uuid == fixed.instances[0].uuid


def test_nothing_is_made_or_destroyed_there(rig):
    """One wrong order would cost an administrator the partitioning: this is the last check before the driver."""
    gpu = rig.uuids()[0]
    found = rig.backend.read()[0].instances[2]
    ids = rig.ids()
    rig.foreign("1g.5gb", 3, gpu=1)
    for change in (
        lambda: rig.backend.create_gpu_instance(gpu, ids["1g.5gb"], 7, 1),
        lambda: rig.backend.create_compute_instance(gpu, found.gi_id),
        lambda: rig.backend.destroy_compute_instance(gpu, found.gi_id, found.uuid),
        lambda: rig.backend.destroy_gpu_instance(gpu, found.gi_id, found.start, found.size),
    ):
        with pytest.raises(NotSupportedError, match="its layout is fixed by its administrator"):
            change()
    assert rig.spans() == LAYOUT
    assert rig.make("1g.5gb", 0, gpu=1)[1].startswith("MIG-")


def test_what_its_administrator_changes_is_seen_at_the_next_reading(rig):
    """New instances would never be assigned."""
    rig.foreign("1g.5gb", 3, gpu=1)
    rig.reboot()
    assert rig.spans() == []
    rig.foreign("4g.20gb", 0)
    rig.foreign("1g.5gb", 4, compute=False)
    assert rig.spans() == [("4g.20gb", 0, 4), ("1g.5gb", 4, 1)]
    assert [bool(each.uuid) for each in rig.backend.read()[0].instances] == [True, False]


def test_who_uses_an_instance_is_told(rig):
    """A device that is in use would be granted."""
    device = rig.backend.read()[0].instances[2].uuid
    pid = rig.start_process(device)
    gpu = rig.uuids()[0]
    assert [each.pid for each in rig.backend.processes(gpu, device)] == [pid]
    assert rig.backend.processes(gpu, rig.backend.read()[0].instances[0].uuid) == ()


def test_a_lost_gpu_is_fixed_still(rig):
    """When it is back, it would be cut up."""
    gpu = rig.uuids()[0]
    rig.lose(0)
    lost = rig.backend.read_gpu(gpu)
    assert (lost.lost, lost.fixed_layout) == (True, True)
    rig.find(0)
    assert rig.backend.read()[0].fixed_layout
