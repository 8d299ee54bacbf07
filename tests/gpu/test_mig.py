"""Instances on a real GPU, only where MIG is on already: made, read back, destroyed. MIG mode is never changed."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from factories.gpus.instances import instance_of
from gpu.clients import Client
from gpu.hardware_report import HardwareReport

from sluice.contracts.ids import HomeId
from sluice.contracts.messages import GpuReport, PlacementReport, ProfileReport
from sluice_node_agent.core.instructions import StartMps, StopMps
from sluice_node_agent.core.journal_records import MpsLimits
from sluice_node_agent.device.port import DifferentError, InUseError, NotFoundError
from sluice_node_agent.device.processes import Processes


@pytest.fixture(scope="module")
def place(gpus, hardware_report: HardwareReport) -> tuple[GpuReport, ProfileReport, PlacementReport]:
    """The smallest instance that has room, and where."""
    for gpu in gpus:
        taken = {at for made in gpu.instances for at in range(made.start, made.start + made.size)}
        for profile in sorted(gpu.profiles, key=lambda each: (each.compute_slices, each.memory_mib, each.name)):
            if not gpu.mig_enabled or not gpu.healthy or "+" in profile.name:
                continue
            for span in profile.placements:
                if not taken & set(range(span.start, span.start + span.size)):
                    return gpu, profile, span
    pytest.skip("MIG is not on here (it is never switched), or nothing more fits")


@pytest.fixture
def made(backend, place) -> Iterator[tuple[GpuReport, int, str, PlacementReport]]:
    """An instance with its compute instance; gone afterwards, whatever the check did."""
    gpu, profile, span = place
    gi_id = backend.create_gpu_instance(gpu.uuid, profile.profile_id, span.start, span.size)
    uuid = ""
    try:
        uuid = backend.create_compute_instance(gpu.uuid, gi_id)
        yield gpu, gi_id, uuid, span
    finally:
        with suppress(NotFoundError):
            if uuid:
                backend.destroy_compute_instance(gpu.uuid, gi_id, uuid)
        with suppress(NotFoundError):
            backend.destroy_gpu_instance(gpu.uuid, gi_id, span.start, span.size)
        assert gi_id not in {instance.gi_id for instance in backend.read_gpu(gpu.uuid).instances}


def test_an_instance_is_where_it_was_ordered_and_only_its_owner_can_end_it(backend, place, made) -> None:
    """A slice elsewhere than booked is given twice; a destroy of the wrong one ends a stranger's work."""
    gpu, gi_id, uuid, span = made
    _, profile, _ = place
    found = instance_of(backend, gpu.uuid, gi_id)
    assert (found.profile, found.start, found.size, found.uuid) == (profile.name, span.start, span.size, uuid)
    assert uuid.startswith("MIG-")
    assert backend.processes(gpu.uuid, uuid) == ()
    with pytest.raises(DifferentError):
        backend.destroy_compute_instance(gpu.uuid, gi_id, "MIG-00000000-0000-0000-0000-000000000000")
    with pytest.raises(InUseError):
        backend.destroy_gpu_instance(gpu.uuid, gi_id, span.start, span.size)
    backend.destroy_compute_instance(gpu.uuid, gi_id, uuid)
    (bare,) = [instance for instance in backend.read_gpu(gpu.uuid).instances if instance.gi_id == gi_id]
    assert (bare.uuid, bare.start) == ("", span.start)
    with pytest.raises(DifferentError):
        backend.destroy_gpu_instance(gpu.uuid, gi_id, span.start + span.size, span.size)
    backend.destroy_gpu_instance(gpu.uuid, gi_id, span.start, span.size)
    assert gi_id not in {instance.gi_id for instance in backend.read_gpu(gpu.uuid).instances}


def test_an_instance_in_use_is_not_destroyed(backend, place, made, hardware_report: HardwareReport) -> None:
    """A tenant's work would vanish under it."""
    gpu, gi_id, uuid, _ = made
    _, profile, _ = place
    with Client({"CUDA_VISIBLE_DEVICES": uuid}) as tenant:
        seen = tenant.ask("open")
        assert "error" not in seen, seen
        hardware_report.fact("MIG", f"SMs visible to a process on {profile.name}", seen["sms"])
        assert seen["sms"] == profile.multiprocessors
        with pytest.raises(InUseError):
            backend.destroy_compute_instance(gpu.uuid, gi_id, uuid)


def test_mps_runs_inside_an_instance(made, hardware_report: HardwareReport) -> None:
    """Shares on a GPU with MIG live in an instance: without this they cannot be."""
    from sluice_node_agent.device.mps.daemons import MpsDaemons  # noqa: PLC0415

    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        pytest.skip("there is no nvidia-cuda-mps-control on PATH")
    gpu, _, uuid, _ = made
    limits = MpsLimits(active_thread_percentage=100, memory_mib=2048)
    with tempfile.TemporaryDirectory(prefix="sl-", dir="/tmp") as folder:
        Path(folder).chmod(0o711)
        daemons = MpsDaemons(Path(folder) / "mps", Path(control), Processes(), timeout_s=60.0)
        order = StartMps(1, HomeId("h3"), gpu.uuid, uuid, "hardware-checks", os.getuid(), limits)
        pid, started_at = daemons.start(order)
        try:
            with Client({"CUDA_MPS_PIPE_DIRECTORY": str(daemons.root / "h3" / "pipe")}) as tenant:
                seen = tenant.ask("open")
                assert "error" not in seen, seen
                hardware_report.fact("MIG", "memory in MiB seen through MPS in an instance", seen["memory_mib"])
                assert "error" in tenant.ask("take", mib=4096)
        finally:
            daemons.stop(StopMps(1, order.home, pid, started_at))
