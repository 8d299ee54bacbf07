"""What only a driver does (stale handles, old libraries, wrong structs), and NVML's rules held to our C library."""

import ctypes
import json
import os
import signal
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path

import pynvml
import pytest
from factories.gpus.instances import instance_of
from factories.gpus.nvml import ALWAYS, DOUBLE_BIT_ECC, NvmlMachine, child_environment
from nvml.build import build

from sluice.contracts.gpu_reports import model_from_report
from sluice.mig.catalog import mig_models
from sluice_node_agent.device.nvml.backend import NvmlBackend
from sluice_node_agent.device.port import (
    DeviceError,
    DifferentError,
    DriverMismatchError,
    GpuLostError,
    InUseError,
    NoPermissionError,
    TimedOutError,
)

A100 = '{model="a100-40gb"}'
CHILD_S = 30.0
CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"

# A process that works on the machine of the environment through pynvml's own way to the library, as an agent does.
CHILD = """
import json, sys
import pynvml
from sluice_node_agent.device.nvml.backend import NvmlBackend
from sluice_node_agent.device.processes import Processes
gpus = NvmlBackend(Processes())
(report,) = gpus.read()
gi_id = gpus.create_gpu_instance(report.uuid, 9, 4, 4)
uuid = gpus.create_compute_instance(report.uuid, gi_id)
print(json.dumps([report.uuid, gi_id, uuid]), flush=True)
sys.stdin.read()
gpus.destroy_compute_instance(report.uuid, gi_id, uuid)
gpus.destroy_gpu_instance(report.uuid, gi_id, 4, 4)
gpus.close()
"""


@pytest.fixture
def rig(make_nvml):
    """One A100-40GB in MIG mode."""
    return make_nvml(A100)


@pytest.fixture
def machine(nvml_library, tmp_path):
    """A machine without GPUs yet, which other processes find by its file."""
    return NvmlMachine(nvml_library, tmp_path, state=tmp_path / "gpus")


@contextmanager
def opened(machine):
    """A backend on a machine."""
    with machine.loaded(), closing(NvmlBackend(machine.processes)) as backend:
        yield backend


# -- the agent's process and the driver -----------------------------------------------------------------------------


@contextmanager
def _child(machine):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    child = subprocess.Popen([sys.executable, "-c", CHILD], env=child_environment(machine), **pipes)
    try:
        line = child.stdout.readline()
        assert line, "the child said nothing"
        yield child, json.loads(line)
    finally:
        child.kill()
        child.communicate(timeout=CHILD_S)


def test_what_a_killed_agent_made_is_found_by_the_next(machine):
    """Instances of a killed agent would be on the GPU and in no journal."""
    machine.add_gpu("a100-40gb")
    with _child(machine) as (child, (gpu, gi_id, uuid)):
        child.send_signal(signal.SIGKILL)
        child.wait(CHILD_S)
    with opened(machine) as backend:
        (found,) = backend.read_gpu(gpu).instances
        assert (found.gi_id, found.profile, found.start, found.uuid) == (gi_id, "3g.20gb", 4, uuid)
        backend.destroy_compute_instance(gpu, gi_id, uuid)
        backend.destroy_gpu_instance(gpu, gi_id, 4, 4)
    assert [line for line in machine.show() if line[0] in {"gi", "ci"}] == []


# Makes and unmakes instances as fast as it can, until it is killed.
BUSY = """
import ctypes, sys
library, (device, instance, compute) = ctypes.CDLL(sys.argv[1]), (ctypes.c_void_p() for _ in range(3))
span, at = (ctypes.c_uint * 2)(4, 4), ctypes.byref
assert library.nvmlInitWithFlags(0) == 0 and library.nvmlDeviceGetHandleByIndex_v2(0, at(device)) == 0
for number in range(1 << 30):
    assert library.nvmlDeviceCreateGpuInstanceWithPlacement(device, 9, at(span), at(instance)) == 0
    assert library.nvmlGpuInstanceCreateComputeInstance(instance, 2, at(compute)) == 0
    if number == 0:
        print("busy", flush=True)
    assert library.nvmlComputeInstanceDestroy(compute) == 0
    assert library.nvmlGpuInstanceDestroy(instance) == 0
"""


def test_a_process_that_is_killed_in_a_call_leaves_a_machine_that_works(machine):
    """A soak that kills agents at any step would hang, or judge by a state that no driver can be in."""
    machine.add_gpu("a100-40gb")
    library = str(machine.built.for_children)
    dying = [sys.executable, "-I", "-S", "-c", f"import ctypes; ctypes.CDLL({library!r}).sluice_nvml_die()"]
    died = subprocess.run(dying, env=child_environment(machine), timeout=CHILD_S, check=False)
    assert died.returncode == -signal.SIGKILL
    for _ in range(20):
        command = [sys.executable, "-I", "-S", "-c", BUSY, library]
        with subprocess.Popen(command, env=child_environment(machine), stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout.readline() == "busy\n"
            child.kill()
        assert [line[0] for line in machine.show() if line[0] in {"gi", "ci"}] in ([], ["gi"], ["gi", "ci"])
        machine.reset(0)
        machine.make_instance(0, "7g.40gb", 0)
        machine.reset(0)


def test_two_processes_see_one_machine(machine):
    """A foreign hand on the same GPU would not be noticed."""
    machine.add_gpu("a100-40gb")
    with _child(machine) as (child, (_, gi_id, uuid)):
        assert ("gi", "0", str(gi_id), "3g.20gb", "4", "4") in machine.show()
        assert ("ci", "0", str(gi_id), "0", uuid) in machine.show()
        machine.make_instance(0, "1g.5gb", 0)
        out, _ = child.communicate("", timeout=CHILD_S)
        assert (child.returncode, out) == (0, "")
    assert [line[3] for line in machine.show() if line[0] == "gi"] == ["1g.5gb"]


def test_a_driver_that_does_not_tell_names_has_the_same_profiles(tmp_path, nvml_library):
    """Slices would have other names after an upgrade of the driver."""
    seen = []
    for old in (False, True):
        built = build(tmp_path / "old", old=True) if old else nvml_library
        machine = NvmlMachine(built, tmp_path)
        machine.add_gpu("a100-40gb")
        with opened(machine) as backend:
            (report,) = backend.read()
            gi_id = backend.create_gpu_instance(report.uuid, 9, 4, 4)
            backend.create_compute_instance(report.uuid, gi_id)
            seen.append((report.profiles, instance_of(backend, report.uuid, gi_id).profile))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("key", [model.key for model in mig_models()])
def test_a_gpu_that_says_what_the_catalog_says_is_the_catalogs_model(make_nvml, key):
    """Equal GPUs would be counted apart, and a request for the model by its name would not find them."""
    (report,) = make_nvml(f'{{model="{key}"}}').backend.read()
    assert model_from_report(report).key == key


# -- what the backend has to live with ------------------------------------------------------------------------------


def test_a_gpu_that_was_reset_is_worked_on_as_before(rig):
    """Every call would fail on an old handle until the agent is restarted."""
    (gpu,) = rig.uuids()
    rig.make("3g.20gb", 4)
    rig.machine.reset(0)
    assert rig.backend.read_gpu(gpu).instances == ()
    rig.make("4g.20gb", 0)
    rig.machine.reset(0)
    assert rig.backend.processes(gpu, gpu) == ()
    rig.machine.reset(0)
    rig.make("7g.40gb", 0)
    assert rig.spans() == [("7g.40gb", 0, 8)]


def test_the_list_of_mig_devices_is_read_past_its_holes(rig):
    """Slices behind the first hole would have no UUID, and never be taken down."""
    (gpu,) = rig.uuids()
    made = dict(rig.make("1g.5gb", start) for start in range(7))
    for gone in list(made)[::2]:
        rig.backend.destroy_compute_instance(gpu, gone, made.pop(gone))
    assert {each.gi_id: each.uuid for each in rig.backend.read_gpu(gpu).instances if each.uuid} == made


def test_a_compute_instance_has_all_of_its_gpu_instance(make_nvml):
    """A tenant would get 16 SMs of 26, because double memory is filled by another profile than the rest."""
    rig = make_nvml('{model="h100-sxm-80gb"}')
    for profile, sms, start in (("1g.20gb", 26, 0), ("1g.10gb", 16, 2), ("3g.40gb", 60, 4)):
        _, uuid = rig.make(profile, start)
        attributes = pynvml.nvmlDeviceGetAttributes_v2(pynvml.nvmlDeviceGetHandleByUUID(uuid))
        assert attributes.multiprocessorCount == sms
        assert attributes.computeInstanceSliceCount == attributes.gpuInstanceSliceCount


@pytest.mark.parametrize("parent", [0, 1])
def test_the_mig_device_is_found_whatever_the_driver_says_of_its_compute_instance(rig, parent):
    """A tenant would be given the whole GPU's UUID for its slice."""
    rig.machine.fault("parent_in_ci_info", parent)
    (gpu,) = rig.uuids()
    for start in (0, 4):
        gi_id, uuid = rig.make("3g.20gb", start)
        assert uuid.startswith("MIG-")
        assert instance_of(rig.backend, gpu, gi_id).uuid == uuid
        rig.backend.destroy_compute_instance(gpu, gi_id, uuid)


def test_an_instance_that_another_hand_divided_is_left_alone(rig):
    """The second half of an administrator's instance would be destroyed with the first."""
    (gpu,) = rig.uuids()
    gi_id = rig.foreign("3g.20gb", 4, compute=False)
    rig.machine.make_compute_instance(0, gi_id, 0)
    rig.machine.make_compute_instance(0, gi_id, 0)
    (found,) = rig.backend.read_gpu(gpu).instances
    assert found.uuid.startswith("MIG-")
    with pytest.raises(DifferentError):
        rig.backend.destroy_compute_instance(gpu, gi_id, found.uuid)
    with pytest.raises(InUseError):
        rig.backend.destroy_gpu_instance(gpu, gi_id, 4, 4)
    assert len([line for line in rig.machine.show() if line[0] == "ci"]) == 2


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (pynvml.NVML_ERROR_TIMEOUT, TimedOutError),
        (pynvml.NVML_ERROR_IN_USE, InUseError),
        (pynvml.NVML_ERROR_NO_PERMISSION, NoPermissionError),
        (pynvml.NVML_ERROR_RESET_REQUIRED, GpuLostError),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, DriverMismatchError),
        (pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH, DriverMismatchError),
        (pynvml.NVML_ERROR_UNKNOWN, DeviceError),
        (12345, DeviceError),
    ],
)
def test_whatever_the_driver_answers_has_a_meaning_and_leaves_nothing(rig, code, kind):
    """An agent would end by an error that it does not know, or try again what can never be."""
    (gpu,) = rig.uuids()
    rig.machine.fail(CREATE, code, ALWAYS)
    with pytest.raises(kind) as refused:
        rig.backend.create_gpu_instance(gpu, 9, 4, 4)
    assert type(refused.value) is kind
    assert gpu in str(refused.value)
    rig.machine.fail(CREATE, code, 0)
    assert rig.spans() == []


def test_many_processes_on_one_gpu_are_all_listed(rig):
    """A slice would be called free while the sixth tenant's process is still on it."""
    (gpu,) = rig.uuids()
    _, uuid = rig.make("3g.20gb", 4)
    pids = {rig.start_process(uuid) for _ in range(100)}
    pids |= {rig.machine.add_process(uuid, kind=kind) for kind in ("client", "graphics")}
    assert {holder.pid for holder in rig.backend.processes(gpu, uuid)} == pids
    assert {holder.pid for holder in rig.backend.processes(gpu, gpu)} == pids


def test_who_only_opened_the_files_of_a_slice_is_shown_for_that_slice(rig):
    """A slice that is "in use by another client" would have no visible holder."""
    (gpu,) = rig.uuids()
    gi_id, uuid = rig.make("3g.20gb", 4)
    _, other = rig.make("3g.20gb", 0)
    # Minor numbers: kernel-open/nvidia/nv-caps.c of NVIDIA/open-gpu-kernel-modules; this is GPU 0.
    files = [f"/dev/nvidia-caps/nvidia-cap{3 + 9 * gi_id + more}" for more in (0, 1)]
    pids = {rig.machine.add_file_holder(file) for file in files}
    rig.machine.add_file_holder("/dev/null", name="bystander")
    assert {(holder.pid, holder.kind) for holder in rig.backend.processes(gpu, uuid)} == {(pid, "file") for pid in pids}
    assert rig.backend.processes(gpu, other) == ()


def test_errors_of_memory_are_noticed_by_drivers_that_cannot_judge_them(rig):
    """Tenants would compute on broken memory."""
    while rig.backend.troubled(0):
        pass
    (gpu,) = rig.uuids()
    rig.machine.set_ecc(0, 2)
    rig.machine.tell(0, DOUBLE_BIT_ECC, 0)
    assert rig.backend.troubled(5) == (gpu,)
    assert "2 uncorrectable" in rig.backend.read_gpu(gpu).health_message
    rig.machine.reset(0)
    assert rig.backend.read_gpu(gpu).healthy


def test_what_the_driver_asks_for_is_believed_until_it_is_done(rig):
    """A GPU that needs a reset would get tenants, or one that had it never again."""
    (gpu,) = rig.uuids()
    rig.machine.set_recovery(0, 1)
    assert "reset" in rig.backend.read_gpu(gpu).health_message
    rig.machine.xid(0, 95)
    assert rig.backend.troubled(5) == (gpu,)
    assert not rig.backend.read_gpu(gpu).healthy
    rig.machine.reset(0)
    assert rig.backend.read_gpu(gpu).healthy


@pytest.fixture
def gb10(machine):
    """A machine with one GPU that reports no memory of its own, nor a NUMA node or links."""
    machine.add_plain_gpu("NVIDIA GB10", memory_mib=0, multiprocessors=48)
    return machine


def test_a_gpu_that_does_not_tell_its_memory_is_not_lost(gb10):
    """Nothing would ever be granted on a GB10, and its owner be sent to look for a broken card."""
    with opened(gb10) as backend:
        (report,) = backend.read()
        assert (report.model, report.lost, report.healthy) == ("NVIDIA GB10", False, True)
        assert (report.memory_mib, report.multiprocessors, report.numa_node) == (0, 48, None)
        assert backend.read_gpu(report.uuid) == report
        pid = gb10.add_process(report.uuid, owner="")
        assert [holder.pid for holder in backend.processes(report.uuid, report.uuid)] == [pid]
        (use,) = backend.uses(report.uuid, [report.uuid])
        assert use.memory_mib is None


@pytest.mark.parametrize(
    "symbol",
    [
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetMemoryAffinity",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetNumGpuCores",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetSupportedEventTypes",
        "nvmlSystemGetCudaDriverVersion_v2",
    ],
)
def test_a_fact_that_this_gpu_does_not_tell_is_no_lost_gpu(gb10, symbol):
    """Each generation of GPUs leaves out some: an agent that needs them all serves none of it."""
    gb10.fail(symbol, pynvml.NVML_ERROR_NOT_SUPPORTED, ALWAYS)
    with opened(gb10) as backend:
        (report,) = backend.read()
        assert (report.lost, report.healthy) == (False, True)
        assert backend.processes(report.uuid, report.uuid) == ()
        assert len(backend.uses(report.uuid, [report.uuid])) == 1


def test_memory_that_cannot_be_read_for_a_moment_is_no_unknown_memory(rig):
    """The GPU would be another model for a moment, and its bookings be measured again."""
    before = rig.backend.read()
    rig.machine.fail("nvmlDeviceGetMemoryInfo", pynvml.NVML_ERROR_TIMEOUT, 1)
    (slow,) = rig.backend.read()
    assert (slow.lost, slow.memory_mib) == (True, before[0].memory_mib)
    assert rig.backend.read() == before


def test_a_gpu_that_tells_no_errors_is_served_all_the_same(machine):
    """A node with one old GPU would have no agent."""
    uuids = [machine.add_gpu("a100-40gb"), machine.add_plain_gpu("Tesla T4", memory_mib=15_360, multiprocessors=40)]
    machine.set_events(0, supported=False)
    with opened(machine) as backend:
        assert backend.troubled(0.01) == ()
        machine.xid(1, 79)
        assert backend.troubled(5) == (uuids[1],)
        plain = backend.read()[1]
        assert (plain.mig_enabled, plain.profiles, plain.multiprocessors) == (False, (), 40)
        assert (plain.memory_mib, plain.memory_slices, plain.compute_slices) == (15_360, 1, 1)


def test_gpus_behind_a_switch_are_all_close(machine):
    """Jobs on several GPUs of a DGX would be placed as if its GPUs were not linked at all."""
    uuids = [machine.add_gpu("h100-sxm-80gb", mig=False) for _ in range(3)]
    for gpu in range(3):
        machine.link_to_switch(gpu, 18)
    with opened(machine) as backend:
        assert backend.read()[0].links == {uuids[1]: 1800, uuids[2]: 1800}


@pytest.mark.parametrize(("cuda", "clients"), [(13_000, 48), (13_010, 60)])
def test_an_mps_server_serves_as_many_as_the_driver_says(machine, cuda, clients):
    """Tenants would be admitted that the server then refuses."""
    machine.add_gpu("a100-40gb", mig=False)
    machine.set_versions("590.10.01", cuda)
    with opened(machine) as backend:
        assert backend.driver_version() == "590.10.01"
        assert backend.read()[0].mps_clients_max == clients


def test_exclusive_mode_is_really_set_and_gone_after_a_reset(make_nvml):
    """A client without its daemon would run beside the server, unbounded."""
    rig = make_nvml('{model="a100-40gb", mig=false}')
    (gpu,) = rig.uuids()
    rig.backend.set_exclusive_process(gpu, exclusive=True)
    assert rig.machine.compute_mode(0) == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    server = rig.start_process(gpu, kind="mps")
    rig.machine.add_process(gpu, kind="client")
    with pytest.raises(OSError, match="takes no process"):
        rig.start_process(gpu)
    rig.stop_process(server)
    rig.backend.set_exclusive_process(gpu, exclusive=False)
    assert rig.machine.compute_mode(0) == pynvml.NVML_COMPUTEMODE_DEFAULT
    rig.backend.set_exclusive_process(gpu, exclusive=True)
    rig.machine.reset(0)
    assert rig.machine.compute_mode(0) == pynvml.NVML_COMPUTEMODE_DEFAULT


# -- the library itself ---------------------------------------------------------------------------------------------


def test_the_library_refuses_what_a_driver_refuses(rig):
    """The suite would pass with calls that fail on every real GPU."""
    library = rig.machine.library
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    invalid, version, size = 2, 25, 7
    span = pynvml.c_nvmlGpuInstancePlacement_t(4, 4)
    made = ctypes.c_void_p()
    assert library[CREATE](device, 9, None, ctypes.byref(made)) == invalid
    assert library[CREATE](device, 9, ctypes.byref(span), None) == invalid
    assert library[CREATE](device, 2, ctypes.byref(span), ctypes.byref(made)) == invalid  # the enum of the profile
    info = pynvml.c_nvmlGpuInstanceProfileInfo_v2_t()
    info.version = 0x01000098
    assert library.nvmlDeviceGetGpuInstanceProfileInfoV(device, 0, ctypes.byref(info)) == version
    assert library.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(pynvml.c_nvmlMemory_v2_t())) == version
    for length, code in ((40, size), (41, 0)):  # GPU-, 36 characters, and the final zero
        assert library.nvmlDeviceGetUUID(device, ctypes.create_string_buffer(length), length) == code
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, pynvml.NVML_GPU_INSTANCE_PROFILE_6_SLICE)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetAttributes_v2(device)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, 3)


def test_handles_of_what_is_gone_are_refused(rig):
    """A destroyed instance would be worked on, or another one in its stead."""
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    gi_id, uuid = rig.make("3g.20gb", 4)
    instance = pynvml.nvmlDeviceGetGpuInstanceById(device, gi_id)
    compute = pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)
    mig = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    rig.backend.destroy_compute_instance(rig.uuids()[0], gi_id, uuid)
    rig.backend.destroy_gpu_instance(rig.uuids()[0], gi_id, 4, 4)
    rig.make("3g.20gb", 4)
    for ask in (
        lambda: pynvml.nvmlGpuInstanceGetInfo(instance),
        lambda: pynvml.nvmlGpuInstanceDestroy(instance),
        lambda: pynvml.nvmlComputeInstanceDestroy(compute),
        lambda: pynvml.nvmlDeviceGetUUID(mig),
    ):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            ask()
    rig.machine.reset(0)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetName(device)


def test_a_uuid_may_come_again_when_a_slice_is_made_again_at_its_place(rig):
    """Code that takes a UUID for a slice's name would pass, although drivers may reuse it."""
    rig.machine.fault("stable_uuids", 1)
    (gpu,) = rig.uuids()
    seen = set()
    for _ in range(2):
        gi_id, uuid = rig.make("3g.20gb", 4)
        seen.add(uuid)
        rig.backend.destroy_compute_instance(gpu, gi_id, uuid)
        rig.backend.destroy_gpu_instance(gpu, gi_id, 4, 4)
    assert len(seen) == 1


def test_ids_follow_the_drivers_tree(rig):
    """The capability files of a slice (named after its id) would be looked for under ids that no driver gives."""
    (gpu,) = rig.uuids()
    pools = {"7g.40gb": {0}, "3g.20gb": {1, 2}, "2g.10gb": {3, 4, 5, 6}, "1g.5gb": set(range(7, 15))}
    for profile, pool in pools.items():
        row = next(row for row in rig.backend.read_gpu(gpu).profiles if row.name == profile)
        found = [rig.make(profile, span.start, compute=False)[0] for span in row.placements]
        assert set(found) <= pool
        assert len(set(found)) == len(found)
        for gi_id, span in zip(found, row.placements, strict=True):
            rig.backend.destroy_gpu_instance(gpu, gi_id, span.start, span.size)


def test_pynvml_is_left_as_it_was_found(machine):
    """The tests that follow would work on this library, and a node without a driver would seem to have one."""
    machine.add_gpu("a100-40gb")
    with opened(machine):
        pass
    assert pynvml.nvmlLib is None
    assert pynvml._nvmlGetFunctionPointer_cache == {}
    assert str(machine.built.for_children) not in Path("/proc/self/maps").read_text(encoding="utf-8")
    assert os.environ.get("NVML_FOR_TESTS_STATE") is None


# -- fixed layouts ----------------------------------------------------------------------------------------------------


def _compute_profile(machine, gpu, gi_id, slices):
    parent = pynvml.nvmlDeviceGetGpuInstanceById(pynvml.nvmlDeviceGetHandleByIndex(gpu), gi_id)
    shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(parent, number, shared)
        except pynvml.NVMLError:
            continue
        if info.sliceCount == slices:
            return parent, info.id
    raise AssertionError(f"no compute instance profile of {slices} slices")


@pytest.mark.parametrize(
    ("count", "sentence"),
    [
        (1, "its compute instance does not fill it: a tenant would get less than the profile says"),
        (2, "it has 2 compute instances; only one that fills it can be handed out"),
    ],
)
def test_a_part_of_an_instance_is_not_taken_for_all_of_it(make_nvml, count, sentence):
    """A pod that asks for a 3g would get a third of its SMs, or share them with an unseen process."""
    rig = make_nvml('{model="a100-40gb", layout=["1g.5gb:6"]}')
    parent, profile = _compute_profile(rig.machine, 0, rig.foreign("3g.20gb", 0, compute=False), 1)
    for _ in range(count):
        pynvml.nvmlGpuInstanceCreateComputeInstance(parent, profile)
    found = {each.start: each for each in rig.backend.read()[0].instances}
    assert (found[0].unusable, found[6].unusable) == (sentence, "")
