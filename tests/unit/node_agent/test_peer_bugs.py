"""Known faults of other systems on a node: one test each that shows they are not ours (docs/peer-bugs.md)."""

from pathlib import Path

import pytest

from sluice.contracts.messages import SliceFailed, SliceGone, SliceReady
from sluice_node_agent.core.instructions import DestroyComputeInstance, DestroyGpuInstance
from sluice_node_agent.simulated.hardware_file import Instance, Process

HALF = (0, "3g.20gb", 4, 4)
OTHER_HALF = (0, "3g.20gb", 0, 4)


def foreign(node, profile="1g.5gb", start=6, size=1, uuid="MIG-by-hand"):
    with node.hardware.changing() as hardware:
        hardware.gpus[0].instances.append(Instance(gi_id=99, profile=profile, start=start, size=size, uuid=uuid))


def ready(node, allocation="a1", device=HALF):
    booking = node.booking(allocation, device, owner=f"pod-{allocation}")
    node.order(node.grant(booking))
    node.work()
    assert isinstance(node.word(allocation), SliceReady)
    return booking


def destroyed(node):
    return [each for each in node.own_done if isinstance(each, (DestroyComputeInstance, DestroyGpuInstance))]


@pytest.mark.parametrize("damage", ["flipped", "torn", "emptied", "removed"])
def test_a_damaged_journal_is_told_of_and_ends_no_agent(node, damage):
    """DRA driver #1100: a corrupt checkpoint ended every start, and no event said why."""
    node.live()
    ready(node)
    node.stop()
    path = next(path for path in (node.tmp_path / "agent").iterdir() if path.name == "journal")
    spoil(path, damage)
    node.start()
    node.work()
    assert node.agent.snapshot().warnings, "no warning"
    node.open()
    node.work()
    assert node.instances() == [("3g.20gb", 4, 4)]
    assert destroyed(node) == []
    node.live()
    assert isinstance(node.word("a1"), SliceReady)


def spoil(path: Path, damage: str) -> None:
    data = path.read_bytes()
    match damage:
        case "flipped":
            middle = len(data) // 2
            path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
        case "torn":
            path.write_bytes(data[: len(data) // 2])
        case "emptied":
            path.write_bytes(b"")
        case _:
            path.unlink()


def test_all_slices_of_a_rebooted_node_are_made_again_whatever_one_of_them_does(node):
    """InstaSlice #663: one node whose boot id differed stopped all of them; HAMi 2.4: one that fails ends all."""
    node.live()
    ready(node)
    ready(node, "a2", OTHER_HALF)
    node.hardware.reboot()
    with node.hardware.changing() as hardware:
        hardware.faults.ci_fails = 1
    node.live()
    for _ in range(60):
        node.tick(2.0)
    assert [type(node.word(each)) for each in ("a1", "a2")] == [SliceReady, SliceReady]
    assert node.instances() == [("3g.20gb", 0, 4), ("3g.20gb", 4, 4)]


def test_a_slice_is_ready_only_when_its_instance_reads_back(node, monkeypatch):
    """HAMi #2131: a tool did nothing, ended with status 0, and a pod was given the UUID of what was never made."""
    node.live()
    made = node.backend.create_compute_instance

    def vanishes(gpu, gi_id):
        uuid = made(gpu, gi_id)
        with node.hardware.changing() as hardware:
            hardware.gpus[0].instances.clear()
        return uuid

    monkeypatch.setattr(node.backend, "create_compute_instance", vanishes)
    node.order(node.grant(node.booking("a1", HALF)))
    node.work()
    assert isinstance(node.word("a1"), SliceFailed)
    assert node.tickets.names() == ()


def test_a_slice_in_use_keeps_no_other_waiting(node):
    """HAMi 2.4: the loop that frees slices ended at the first that is in use, and delayed all others of the node."""
    node.live()
    stuck, free = ready(node), ready(node, "a2", OTHER_HALF)
    uuid = node.word("a1").devices[0].uuid
    with node.hardware.changing() as hardware:
        hardware.gpus[0].processes.append(Process(pid=7, owner="pod-a1", device=uuid))
    node.order(node.revoke(stuck))
    node.order(node.revoke(free))
    node.work()
    assert isinstance(node.word("a2"), SliceGone)
    assert not isinstance(node.word("a1"), SliceGone)


def test_no_form_of_a_uuid_is_needed(node):
    """HAMi #1950: the MIG UUID of a newer driver could not be parsed, and all of a node's devices became unhealthy."""
    foreign(node, uuid="MIG-GPU-5fd4f/7/0 of the next driver")
    node.live()
    ready(node, device=OTHER_HALF)
    report = node.agent.snapshot().gpus[0]
    assert report.healthy
    assert len(report.instances) == 2
