"""The judge's own hardware is as strict as the real one; else it would let a wrong agent pass."""

from random import Random

import pytest
from simulation.hardware import DeviceRefusedError, Gpu, Machine
from simulation.tables import A30, A100, A100_WITHOUT_MIG, fits_in

from sluice.contracts.ids import NodeName


@pytest.fixture
def gpu() -> Gpu:
    """An empty A100 in MIG mode."""
    return Gpu("GPU-x", 0, A100, mig=True, dice=Random(1))


def refused(kind: str) -> "pytest.RaisesExc[DeviceRefusedError]":
    """The driver says no, in this way."""
    return pytest.raises(DeviceRefusedError, check=lambda error: error.kind == kind)


def test_an_instance_is_made_only_at_a_listed_placement(gpu: Gpu) -> None:
    """2g.10gb starts at 0, 2 or 4, nowhere else."""
    with refused("InvalidArgument"):
        gpu.create_gi(14, (1, 2), "agent")
    gpu.create_gi(14, (2, 2), "agent")
    with refused("InsufficientResources"):
        gpu.create_gi(19, (3, 1), "agent")


def test_media_engines_run_out_before_the_memory_does(gpu: Gpu) -> None:
    """A second 1g.5gb+me has no JPEG engine left."""
    gpu.create_gi(20, (0, 1), "agent")
    with refused("InsufficientResources"):
        gpu.create_gi(20, (1, 1), "agent")
    gpu.create_gi(19, (1, 1), "agent")


def test_what_is_in_use_is_not_destroyed(gpu: Gpu) -> None:
    """Process before compute instance before GPU instance."""
    machine = Machine(NodeName("node"), {gpu.uuid: gpu})
    gi_id = gpu.create_gi(9, (4, 4), "agent")
    uuid = gpu.create_ci(gi_id)
    with refused("InUse"):
        gpu.destroy_gi(gi_id, (4, 4))
    machine.start_process("pod", uuid)
    with refused("InUse"):
        gpu.destroy_ci(gi_id, uuid)
    machine.end_processes("pod")
    with refused("Different"):
        gpu.destroy_ci(gi_id, "MIG-other")
    gpu.destroy_ci(gi_id, uuid)
    gpu.destroy_gi(gi_id, (4, 4))
    with refused("NotFound"):
        gpu.destroy_gi(gi_id, (4, 4))


def test_a_made_again_instance_has_another_uuid(gpu: Gpu) -> None:
    """A pod that knows an old UUID must not find the next tenant's device."""
    first = gpu.create_gi(0, (0, 8), "agent")
    uuid = gpu.create_ci(first)
    gpu.destroy_ci(first, uuid)
    gpu.destroy_gi(first, (0, 8))
    assert gpu.create_ci(gpu.create_gi(0, (0, 8), "agent")) != uuid


def test_a_reboot_takes_instances_and_processes_and_leaves_the_disk(gpu: Gpu) -> None:
    """MIG instances vanish at a reboot; the boot id tells."""
    machine = Machine(NodeName("node"), {gpu.uuid: gpu})
    uuid = gpu.create_ci(gpu.create_gi(0, (0, 8), "agent"))
    machine.start_process("pod", uuid)
    machine.journal.append("a record")
    boot = machine.boot_id
    machine.reboot(tickets_survive=True)
    assert (gpu.instances, gpu.processes, machine.journal) == ({}, [], ["a record"])
    assert machine.boot_id != boot


def test_a_gpu_without_mig_has_no_instances() -> None:
    """It is only given whole."""
    whole = Gpu("GPU-y", 0, A100_WITHOUT_MIG, mig=False, dice=Random(1))
    with refused("NotSupported"):
        whole.create_gi(19, (0, 1), "agent")
    assert whole.has_device("GPU-y")
    assert whole.span_of("GPU-y") == (0, 8)


def test_4g_and_3g_share_an_a100_and_two_4g_do_not() -> None:
    """Compute slices are a budget of their own: 4 + 3 is all there is."""
    small, large = A100.profile("3g.20gb"), A100.profile("4g.20gb")
    assert small is not None
    assert large is not None
    assert fits_in(A100, [("4g.20gb", (0, 4))], small, (4, 4))
    assert not fits_in(A100, [("4g.20gb", (0, 4))], large, (0, 4))
    assert A30.profile("4g.24gb") is not None
