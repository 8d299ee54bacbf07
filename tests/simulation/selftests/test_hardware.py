"""The judge's own hardware is as strict as the real one; else it would let a wrong agent pass."""

from collections.abc import Callable
from random import Random

import pytest
from simulation.judges.gpu_tables import A30, A100, A100_WITHOUT_MIG, fits_in
from simulation.judges.share_limits import overfull, width_of
from simulation.world.hardware import DeviceRefusedError, Gpu, Machine
from simulation.world.mps_daemons import Daemon, DaemonRefusedError, Directory, clients_of, let_go

from sluice.contracts.ids import NodeName
from sluice.contracts.messages import Share


@pytest.fixture
def gpu() -> Gpu:
    """An empty A100 in MIG mode."""
    return Gpu("GPU-x", 0, A100, mig=True, dice=Random(1))


@pytest.fixture
def whole() -> Gpu:
    """A GPU without MIG."""
    return Gpu("GPU-y", 0, A100_WITHOUT_MIG, mig=False, dice=Random(1))


@pytest.fixture
def machine(gpu: Gpu, whole: Gpu) -> Machine:
    return Machine(NodeName("node"), {gpu.uuid: gpu, whole.uuid: whole})


def refused(kind: str, call: Callable[..., object], *arguments: object, **more: object) -> None:
    with pytest.raises(DeviceRefusedError, check=lambda error: error.kind == kind):
        call(*arguments, **more)


def test_an_instance_is_made_only_at_a_listed_placement(gpu: Gpu) -> None:
    """2g.10gb starts at 0, 2 or 4, nowhere else."""
    refused("InvalidArgument", gpu.create_gi, 14, (1, 2), "agent")
    gpu.create_gi(14, (2, 2), "agent")
    refused("InsufficientResources", gpu.create_gi, 19, (3, 1), "agent")


def test_media_engines_run_out_before_the_memory_does(gpu: Gpu) -> None:
    """A second 1g.5gb+me has no JPEG engine left."""
    gpu.create_gi(20, (0, 1), "agent")
    refused("InsufficientResources", gpu.create_gi, 20, (1, 1), "agent")
    gpu.create_gi(19, (1, 1), "agent")


def test_what_is_in_use_is_not_destroyed(gpu: Gpu, machine: Machine) -> None:
    """Process before compute instance before GPU instance."""
    gi_id = gpu.create_gi(9, (4, 4), "agent")
    uuid = gpu.create_ci(gi_id)
    refused("InUse", gpu.destroy_gi, gi_id, (4, 4))
    machine.start_process("pod", uuid)
    refused("InUse", gpu.destroy_ci, gi_id, uuid)
    machine.end_processes("pod")
    refused("Different", gpu.destroy_ci, gi_id, "MIG-other")
    gpu.destroy_ci(gi_id, uuid)
    gpu.destroy_gi(gi_id, (4, 4))
    refused("NotFound", gpu.destroy_gi, gi_id, (4, 4))


def test_a_made_again_instance_has_another_uuid(gpu: Gpu) -> None:
    """A pod that knows an old UUID does not find the next tenant's device."""
    first = gpu.create_gi(0, (0, 8), "agent")
    uuid = gpu.create_ci(first)
    gpu.destroy_ci(first, uuid)
    gpu.destroy_gi(first, (0, 8))
    assert gpu.create_ci(gpu.create_gi(0, (0, 8), "agent")) != uuid


def test_a_reboot_takes_instances_and_processes_and_leaves_the_disk(gpu: Gpu, machine: Machine) -> None:
    """MIG instances vanish at a reboot; the boot id shows it."""
    uuid = gpu.create_ci(gpu.create_gi(0, (0, 8), "agent"))
    machine.start_process("pod", uuid)
    machine.journal.append("a record")
    boot = machine.boot_id
    machine.reboot(tickets_survive=True)
    assert (gpu.instances, gpu.processes, machine.journal) == ({}, [], ["a record"])
    assert machine.boot_id != boot


def test_a_gpu_without_mig_has_no_instances(whole: Gpu) -> None:
    """It is only given whole."""
    refused("NotSupported", whole.create_gi, 19, (0, 1), "agent")
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


# -- MPS daemons --------------------------------------------------------------------------------------------------


def daemon_on(machine: Machine, gpu: Gpu, device: str, home: str = "h1") -> Daemon:
    return machine.mps.start(Directory(home, gpu.uuid, device, "lab", 0), gpu, machine.new_pid(), 1, 50, 1000)


def test_an_instance_with_a_daemon_is_in_use(gpu: Gpu, machine: Machine) -> None:
    """A forgotten daemon would else go unnoticed: its server holds the device."""
    gi_id = gpu.create_gi(9, (4, 4), "agent")
    uuid = gpu.create_ci(gi_id)
    daemon_on(machine, gpu, uuid)
    refused("InUse", gpu.destroy_ci, gi_id, uuid)
    machine.mps.stop("h1", machine.gpus)
    gpu.destroy_ci(gi_id, uuid)


def test_a_daemon_needs_its_device_and_serves_it_to_one_home(gpu: Gpu, machine: Machine) -> None:
    """It does not start on a MIG device that is not there; a home's name never comes again."""
    with pytest.raises(DaemonRefusedError):
        daemon_on(machine, gpu, "MIG-gone")
    uuid = gpu.create_ci(gpu.create_gi(9, (4, 4), "agent"))
    first = daemon_on(machine, gpu, uuid, "h2")
    assert daemon_on(machine, gpu, uuid, "h2") is first
    machine.mps.stop("h2", machine.gpus)
    with pytest.raises(DaemonRefusedError):
        daemon_on(machine, gpu, uuid, "h2")


def test_clients_end_with_their_daemon_and_not_with_its_agent(whole: Gpu, machine: Machine) -> None:
    """A daemon that dies takes its clients along; its directory stays, for the next one."""
    daemon_on(machine, whole, whole.uuid)
    machine.start_process("pod", whole.uuid, "h1")
    assert machine.mps.die("h1", machine.gpus) == ["pod"]
    assert (whole.processes, list(machine.mps.directories)) == ([], ["h1"])
    assert machine.mps.alive("h1") is None


def test_a_client_that_was_let_go_is_still_there(whole: Gpu, machine: Machine) -> None:
    """It computes no more; its memory is had again only when its process has ended."""
    daemon_on(machine, whole, whole.uuid)
    process = machine.start_process("pod", whole.uuid, "h1")
    assert let_go(whole, "h1", (process.pid, 99)) == ["pod"]
    assert [(one.pid, one.terminated) for one in clients_of(whole, "h1")] == [(process.pid, True)]
    assert let_go(whole, "h1", (process.pid,)) == [], "asked a second time, the daemon would answer no process any more"


def test_one_process_in_exclusive_mode_keeps_all_others_out(whole: Gpu, machine: Machine) -> None:
    """A process that does not find the daemon cannot run beside it, unbounded; and a reboot forgets the mode."""
    whole.set_exclusive(exclusive=True)
    daemon_on(machine, whole, whole.uuid)
    assert machine.start_process("stranger", whole.uuid) is None
    assert machine.start_process("pod", whole.uuid, "h1") is not None
    machine.reboot(tickets_survive=True)
    assert (whole.exclusive, whole.servers, machine.mps.listed) == (False, {}, {})
    assert list(machine.mps.directories) == ["h1"]


def test_a_gpu_in_mig_mode_has_no_compute_mode(gpu: Gpu) -> None:
    """There, the wall is the instance."""
    refused("NotSupported", gpu.set_exclusive, exclusive=True)


def test_a_lost_gpu_answers_nothing_and_forgets_nothing(gpu: Gpu) -> None:
    """Its content is unknown; when it is back, all of it is still there."""
    gi_id = gpu.create_gi(9, (4, 4), "agent")
    gpu.lost = "fallen off the bus"
    refused("GpuLost", gpu.create_ci, gi_id)
    refused("GpuLost", gpu.holders, gpu.uuid)
    report = gpu.report()
    assert (report.lost, report.healthy, report.instances) == (True, False, ())
    gpu.lost = ""
    assert [instance.gi_id for instance in gpu.report().instances] == [gi_id]


def test_what_a_home_can_give() -> None:
    """The examples of docs/sharing.md: widths are rounded up twice, and nothing is promised twice."""
    ten = Share(mode="fractional", uid=0, memory_mib=1000, sm_partition=10)
    half = Share(mode="fractional", uid=0, memory_mib=16000, sm_partition=50)
    small = Share(mode="mps", uid=0, memory_mib=700)
    assert (width_of(ten, A100, "2g.10gb"), width_of(ten, A100, "7g.40gb"), width_of(ten, A100, "")) == (36, 10, 10)
    assert not overfull(A100, "", [half, half])
    assert "percent" in overfull(A100, "", [half, half, ten])
    assert "MiB" in overfull(A100, "1g.5gb", [small] * 7)
    assert "clients" in overfull(A100, "2g.10gb", [Share(mode="mps", uid=0, memory_mib=1)] * 14)
