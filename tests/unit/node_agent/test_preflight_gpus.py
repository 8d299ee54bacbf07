"""`check` of driver and GPUs: each way in which they can be wrong is found, and shown with what to do about it."""

from dataclasses import replace
from unittest.mock import Mock

import msgspec
import pytest
from factories.gpus.machine import DRIVER, NODE, PROC_VERSION, Gpus, found, only, version_file
from factories.words import booking_of

from sluice.contracts.ids import GpuUuid, HomeId
from sluice.contracts.messages import Booking, DeviceGrant
from sluice_node_agent.core.journal_records import DeviceRecord, NodeRecord, SharedDeviceRecord, SliceRecord, WarmRecord
from sluice_node_agent.device.port import BackendError
from sluice_node_agent.preflight.environment import check_machine
from sluice_node_agent.preflight.findings import Check, ReadJournal, worst
from sluice_node_agent.simulated.backend import SimulatedBackend


def test_a_driver_that_is_of_no_use_is_told(well):
    """Before 470 a UUID could come to mean another tenant's device."""
    version_file(well).write_text(PROC_VERSION.replace(DRIVER, "465.19.01"))
    assert "465.19.01 is too old" in found(well, Check.DRIVER)[0].what
    version_file(well).write_text("NVRM version: something new\n")
    only(well, Check.DRIVER, "warning")
    version_file(well).unlink()
    assert "not loaded" in only(well, Check.DRIVER, "problem").what


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Wed Feb  9 12:45:10 UTC 2025\nGCC version: 9.4.0",
        "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.65.06  Release Build  (dvs-builder@U22)",
    ],
)
def test_the_version_of_both_kernel_modules_is_read(well, text):
    """The closed and the open module say it differently."""
    version_file(well).write_text(text)
    assert found(well, Check.DRIVER)[0].what == f"NVIDIA driver {DRIVER} is loaded"


def test_no_library_is_told_in_the_borders_own_sentence(well):
    """Whatever the driver's library says is passed on, and nothing that depends on the GPUs is guessed."""
    none = BackendError("libnvidia-ml.so.1 was not found: install the driver")
    machine = replace(well, open_gpus=Mock(side_effect=none))
    assert "libnvidia-ml.so.1 was not found" in only(machine, Check.LIBRARY, "problem").what
    assert not found(machine, Check.GPUS)
    assert not found(machine, Check.CAPABILITY_FILES)


def test_a_driver_that_does_not_know_mig_on_this_model_is_told(well, monkeypatch):
    """Else MIG looks unsupported, for no visible reason."""
    monkeypatch.setattr(Gpus, "version", "515.43.04")
    version_file(well).write_text(PROC_VERSION.replace(DRIVER, "515.43.04"))
    assert "which needs 525.85.12" in only(well, Check.DRIVER_FOR_GPU, "problem").what


@pytest.mark.parametrize(
    ("model", "floor"),
    [
        ("NVIDIA A100-SXM4-40GB", "450.80.02"),
        ("A100-PCIE-40GB", "450.80.02"),
        ("NVIDIA A30", "460.73.01"),
        ("NVIDIA H100 80GB HBM3", "525.85.12"),
        ("NVIDIA H200", "550.90.07"),
        ("NVIDIA GH200 480GB", "550.90.07"),
        ("NVIDIA H20", "535.161.07"),
        ("NVIDIA H20-3e", "535.161.07"),
        ("NVIDIA B200", "570.133.20"),
        ("NVIDIA GB200", "570.133.20"),
        ("NVIDIA B300 SXM6 AC", "580.82.07"),
        ("NVIDIA GB300", "595.58.03"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "575.51.03"),
        ("NVIDIA L40S", ""),
    ],
)
def test_each_model_has_its_own_floor(well, model, floor, monkeypatch):
    """H20, H200 and H100 begin alike, and need different drivers."""

    def as_model(gpus):
        return tuple(msgspec.structs.replace(gpu, model=model) for gpu in SimulatedBackend.read(gpus))

    monkeypatch.setattr(Gpus, "version", "440.0")
    monkeypatch.setattr(Gpus, "read", as_model)
    version_file(well).write_text(PROC_VERSION.replace(DRIVER, "440.0"))
    told = [finding.remedy for finding in found(well, Check.DRIVER_FOR_GPU)]
    assert told == ([f"install driver {floor} or later"] * 2 if floor else [])


def test_no_gpu_is_told(well, monkeypatch):
    """A container without the GPUs' device files looks like this."""
    monkeypatch.setattr(Gpus, "read", lambda self: ())
    assert found(well, Check.GPUS)[0].level == "problem"


def test_a_lost_gpu_is_told(well, hardware):
    """An operator would not learn that it needs a reset, and which one."""
    with hardware.changing() as now:
        now.faults.gpu_lost = 1
    told = only(well, Check.GPUS, "problem")
    assert "GPU 1 (" in told.what
    assert f"nvidia-smi --gpu-reset -i {hardware.read().gpus[1].uuid}," in told.remedy


def test_a_gpu_that_cannot_tell_its_uuid_is_told(well, monkeypatch):
    """It is in no list: the node would seem to have a GPU less, and be well."""
    monkeypatch.setattr(Gpus, "nameless", lambda self: {1: "GPU 1: the driver did not answer in time"})
    monkeypatch.setattr(Gpus, "read", lambda self: SimulatedBackend.read(self)[:1])
    assert "GPU 1 cannot read its UUID" in only(well, Check.GPUS, "problem").what
    monkeypatch.setattr(Gpus, "read", lambda self: ())
    assert "did not answer in time" in only(well, Check.GPUS, "problem").what


def test_a_mig_mode_that_waits_for_a_reset_is_told(well, hardware):
    """Until then the GPU takes no slice, and looks idle."""
    with hardware.changing() as now:
        now.faults.mig_pending = 0
    told = only(well, Check.GPUS, "problem")
    assert "MIG" in told.what
    assert f"nvidia-smi --gpu-reset -i {hardware.read().gpus[0].uuid}," in told.what
    assert "reset" in told.remedy


def test_the_mig_mode_of_each_gpu_is_said(well):
    on, off = (finding.what for finding in found(well, Check.MIG))
    assert "MIG is on, 7 profiles, 0 of 8 memory slices taken" in on
    assert "MIG is off" in off
    assert "-mig 1" in off


HOME = {"home": HomeId("h"), "namespace": "ns", "uid": 0, "phase": "ready", "boot_id": "b"}


def made_by_hand(hardware) -> tuple[GpuUuid, int]:
    """A 1g.5gb at 2 of the first GPU, whose profile's id is 19."""
    gpus = SimulatedBackend(hardware)
    gpu = gpus.read()[0].uuid
    return gpu, gpus.create_gpu_instance(gpu, 19, 2, 1)


def booking(gpu: GpuUuid) -> Booking:
    device = DeviceGrant(container="main", gpu=gpu, profile="1g.5gb", start=2, size=1)
    return booking_of("r1_a_1", NODE, (device,), request="r1", owner="u1", namespace="ns", name="pod")


def test_the_advice_to_destroy_foreign_instances_destroys_no_slice(well, hardware):
    """`nvidia-smi mig -dci` without ids destroys every instance of the node that is idle at that moment (MIG guide)."""
    gpu, gi_id = made_by_hand(hardware)
    remedy = only(well, Check.INSTANCES, "warning").remedy
    for destroys in ("-dci", "-dgi"):
        assert f"nvidia-smi mig {destroys} -i {gpu} -gi {gi_id}" in remedy


def test_no_advice_is_to_destroy_instances_whose_journal_was_not_read(well, hardware):
    """A check as another user, or in another directory, than the agent's destroys its slices on our advice."""
    made_by_hand(hardware)
    shared = frozenset({hardware.read().gpus[1].uuid})
    problem = ReadJournal(exists=True, problem="/d/journal cannot be read: Permission denied")
    unread = replace(well, journal=problem, exclusive=lambda: shared)
    told, mode = (found(unread, about)[0] for about in (Check.INSTANCES, Check.COMPUTE_MODE))
    assert "1g.5gb at 2 of GPU 0" in told.what
    assert told.remedy == "destroy none of them; fix the journal first"
    assert mode.remedy == "leave its mode as it is; fix the journal first"
    assert "SLUICE_DATA_DIR" in only(well, Check.INSTANCES, "warning").remedy
    begun = ReadJournal(exists=True, records=(NodeRecord(node=NODE, boot_id="b", generation_upto=0),))
    assert "SLUICE_DATA_DIR" not in only(replace(well, journal=begun), Check.INSTANCES, "warning").remedy


def test_instances_of_a_fixed_layout_are_not_foreign_and_said_when_they_are_of_no_use(well, hardware):
    """An administrator would be advised to destroy the partitioning, or not learn that half of it is unusable."""
    made_by_hand(hardware)
    with hardware.changing() as file:
        for gpu in file.gpus:
            gpu.fixed = True
        file.gpus[0].instances[0].uuid = ""
    said = only(well, Check.INSTANCES, "warning").what
    assert "1g.5gb at 2 of GPU 0" in said
    assert "it has no compute instance" in said
    assert "not in this node's journal" not in said


@pytest.mark.parametrize("kind", ["slice", "home", "warm"])
def test_instances_of_our_own_are_not_foreign(well, hardware, kind):
    """Else a person destroys a live slice on our advice."""
    gpu, gi_id = made_by_hand(hardware)
    device, place = DeviceRecord(step="made", gi_id=gi_id), {"gpu": gpu, "profile": "1g.5gb", "start": 2, "size": 1}
    records = {
        "slice": SliceRecord(booking=booking(gpu), revision=1, phase="ready", devices=(device,)),
        "home": SharedDeviceRecord(**HOME, **place, device=device),
        "warm": WarmRecord(**place, gi_id=gi_id, boot_id="b"),
    }
    journal = ReadJournal(exists=True, records=(NodeRecord(node=NODE, boot_id="b", generation_upto=0), records[kind]))
    assert worst(check_machine(replace(well, journal=journal))) == "ok"


def test_a_compute_mode_left_behind_is_told(well, hardware):
    """A pod with two processes would fail on that GPU, for no visible reason; also where the mode is not known."""
    only(replace(well, exclusive=lambda: None), Check.COMPUTE_MODE, "warning")
    gpu = hardware.read().gpus[1]
    machine = replace(well, exclusive=lambda: frozenset({gpu.uuid}))
    assert only(machine, Check.COMPUTE_MODE, "warning").remedy == f"nvidia-smi -i {gpu.uuid} -c DEFAULT"
    home = SharedDeviceRecord(**HOME, gpu=gpu.uuid, profile=None, start=0, size=8)
    ours = replace(machine, journal=ReadJournal(exists=True, records=(home,)))
    assert worst(check_machine(ours)) == "ok"
