"""Reading a real GPU through our backend, beside the catalog and beside NVML's own values. Changes nothing."""

import platform
import time

import pytest
from gpu.catalog_check import compare
from gpu.clients import Client, until
from gpu.hardware_report import PROFILE, HardwareReport

from sluice.contracts.messages import GpuReport
from sluice.mig.catalog import find_model

CLIENT_MIB = 512


def test_every_gpu_tells_what_placing_needs_to_know(backend, gpus, hardware_report: HardwareReport) -> None:
    """A GPU without a UUID, memory or SMs could not be granted, or be granted twice."""
    import pynvml  # noqa: PLC0415 - NVML's own values, beside ours

    assert len({gpu.uuid for gpu in gpus}) == len(gpus)
    assert [gpu.index for gpu in gpus] == sorted({gpu.index for gpu in gpus})
    hardware_report.fact("machine", "driver", backend.driver_version())
    hardware_report.fact("machine", "CUDA of the driver", pynvml.nvmlSystemGetCudaDriverVersion_v2())
    hardware_report.fact("machine", "kernel", platform.release())
    for gpu in gpus:
        keep(hardware_report, gpu)
        assert gpu.uuid.startswith("GPU-")
        assert gpu.model
        assert gpu.memory_mib > 0
        assert gpu.multiprocessors > 0
        handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        assert gpu.memory_mib == pynvml.nvmlDeviceGetMemoryInfo(handle).total // 1024**2
        assert set(gpu.links) <= {other.uuid for other in gpus} - {gpu.uuid}
        assert all(closeness > 0 for closeness in gpu.links.values())


def keep(report: HardwareReport, gpu: GpuReport) -> None:
    section = f"GPU {gpu.index}"
    for what, value in (
        ("model", gpu.model),
        ("memory in MiB", gpu.memory_mib),
        ("SMs", gpu.multiprocessors),
        ("MIG is on", gpu.mig_enabled),
        ("memory slices", gpu.memory_slices),
        ("compute slices", gpu.compute_slices),
        ("healthy", gpu.healthy),
        ("reason", gpu.health_message),
        ("NUMA node", gpu.numa_node),
        ("linked GPUs", len(gpu.links)),
        ("MPS clients at most", gpu.mps_clients_max),
        ("instances", len(gpu.instances)),
    ):
        report.fact(section, what, value)
    for profile in gpu.profiles:
        places = ", ".join(f"{place.start}:{place.size}" for place in profile.placements)
        engines = (profile.copy_engines, profile.decoders, profile.encoders, profile.jpegs, profile.ofas)
        report.fact(
            section,
            f"{PROFILE}{profile.name}",
            f"id {profile.profile_id}, {profile.memory_mib} MiB, {profile.multiprocessors} SMs, engines {engines}, "
            f"at most {profile.max_instances}, at {places}",
        )


def test_the_catalog_says_nothing_that_the_device_contradicts(gpus, hardware_report: HardwareReport) -> None:
    """The simulator, refusals and documentation go by it: where it is wrong, they promise the impossible."""
    contradictions = []
    for gpu in gpus:
        model = find_model(gpu.model)
        if model is None:
            hardware_report.fact(f"GPU {gpu.index}", "in the catalog", value=False)
            continue
        for difference in compare(gpu, model):
            hardware_report.differences.append(
                {
                    "gpu": gpu.index,
                    "what": difference.what,
                    "device": difference.device,
                    "catalog": difference.catalog,
                    "contradicts": difference.contradicts,
                }
            )
            if difference.contradicts:
                contradictions.append(f"GPU {gpu.index} ({gpu.model}): {difference.text()}")
    assert not contradictions, "; ".join(contradictions)


def test_reading_one_gpu_says_what_reading_all_says(backend, gpus) -> None:
    """An agent reads all at its start and one by one later: two answers would be two truths."""
    for gpu in gpus:
        assert backend.read_gpu(gpu.uuid) == gpu


def test_waiting_for_trouble_ends_in_time_and_hears_of_none(backend, gpus) -> None:
    """An agent that hangs in this call never stops; one that takes calm for errors marks good GPUs bad."""
    began = time.monotonic()
    heard = backend.troubled(1.0)
    assert time.monotonic() - began < 30.0
    assert not [gpu for gpu in heard if backend.read_gpu(gpu).healthy is False]


def test_a_process_with_a_context_is_listed(backend, quiet_gpu, hardware_report: HardwareReport) -> None:
    """A tenant's process that is not seen is handed over with its memory to the next tenant."""
    if "gvisor" in platform.version().lower() or platform.release().startswith("4.4.0"):
        pytest.skip("in this sandbox the driver knows processes by ids of the host")
    with Client({"CUDA_VISIBLE_DEVICES": quiet_gpu.uuid}) as client:
        seen = client.ask("open")
        assert "error" not in seen, seen
        hardware_report.fact("CUDA", "SMs visible to a process", seen["sms"])
        hardware_report.fact("CUDA", "memory in MiB visible to a process", seen["memory_mib"])
        assert seen["sms"] == quiet_gpu.multiprocessors
        ran = client.ask("run")
        hardware_report.fact("CUDA", "SMs used by a kernel", ran.get("sms_run_on", ran))
        assert "error" not in client.ask("take", mib=CLIENT_MIB)
        holders = until(
            lambda: {holder.pid: holder for holder in backend.processes(quiet_gpu.uuid, quiet_gpu.uuid)},
            lambda holders: client.pid in holders,
            f"process {client.pid} to be listed",
        )
        holder = holders[client.pid]
        assert (holder.kind, holder.owner) == ("compute", "")
        assert holder.name
        pid = client.pid
    until(
        lambda: [holder.pid for holder in backend.processes(quiet_gpu.uuid, quiet_gpu.uuid)],
        lambda pids: pid not in pids,
        f"process {pid} to be gone",
    )
