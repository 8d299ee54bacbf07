"""Preflight of the driver and the GPUs: whether they exist, match, and are unused (`findings`)."""

import re
from pathlib import Path

from sluice.contracts.messages import GpuReport
from sluice_node_agent.core.journal_records import SharedDeviceRecord, SliceRecord, WarmRecord
from sluice_node_agent.device.gpu_health import reset_of
from sluice_node_agent.device.port import BackendError, DeviceError
from sluice_node_agent.preflight.findings import Check, DriverReport, Finding, Machine, version_of

DRIVER_FLOOR = (470,)
"""Since R470 a MIG device has a UUID of its own; before, it was named by ids that are reused (MIG User Guide)."""
MPS_FLOOR = (495,)
"""Memory limits of MPS clients came with CUDA 11.5 (NVIDIA MPS, "Device Memory Limit"), whose driver is R495."""
DRIVER_FLOORS: tuple[tuple[str, str], ...] = (
    ("A100|A800", "450.80.02"),
    ("A30", "460.73.01"),
    (r"H20\b", "535.161.07"),
    ("H200|GH200", "550.90.07"),
    ("H100|H800", "525.85.12"),
    ("GB300", "595.58.03"),
    ("B300", "580.82.07"),
    ("GB200|B200", "570.133.20"),
    ("RTX PRO 6000", "575.51.03"),
    ("RTX PRO 5000", "575.57.08"),
    ("RTX PRO 4500", "575.64"),
)
"""The oldest driver with MIG on a model, by the first entry that matches (NVIDIA MIG User Guide (R620), "Deployment
Considerations"): https://docs.nvidia.com/datacenter/tesla/mig-user-guide/620/deployment-considerations.html"""
_KERNEL_VERSION = re.compile(r"\b(\d{3,}(?:\.\d+){1,2})\b")


def check_driver(machine: Machine) -> list[Finding]:
    version = kernel_version(machine)
    if version is None:
        return Check.DRIVER.problem(
            f"the NVIDIA kernel module is not loaded: there is no {_version_file(machine)}",
            "install the NVIDIA driver and load it (modprobe nvidia); in a container, give it the host's /proc",
        )
    if not version:
        return Check.DRIVER.warning(
            f"the version of the NVIDIA kernel module is not known: {_version_file(machine)} does not say it",
            "compare `nvidia-smi` with `modinfo nvidia` by hand",
        )
    if version_of(version) < DRIVER_FLOOR:
        return Check.DRIVER.problem(
            f"the NVIDIA driver {version} is too old: before R{DRIVER_FLOOR[0]} MIG devices have no lasting names",
            f"install a driver of at least R{DRIVER_FLOOR[0]}",
        )
    return Check.DRIVER.ok(f"NVIDIA driver {version} is loaded")


def look_at_gpus(machine: Machine) -> tuple[list[Finding], DriverReport]:
    """Open the driver's library and read all GPUs; the findings, and what was read."""
    try:
        backend = machine.open_gpus()
        try:
            devices = DriverReport(backend.driver_version(), backend.read(), backend.nameless())
        finally:
            backend.close()
    except (BackendError, DeviceError) as error:
        remedy = "check whether `nvidia-smi` works here, as this user and in this container"
        return Check.LIBRARY.problem(f"the GPUs cannot be used: {error}", remedy), DriverReport()
    kernel = kernel_version(machine) or ""
    if not machine.simulated and kernel and devices.driver_version and kernel != devices.driver_version:
        return Check.LIBRARY.problem(
            f"the driver's library is of {devices.driver_version}, the loaded kernel module of {kernel}",
            "load the kernel module that was installed last: unload nvidia (no process on it), or reboot",
        ), devices
    said = "the simulated GPUs answer" if machine.simulated else f"NVML of driver {devices.driver_version} answers"
    return Check.LIBRARY.ok(said), devices


def check_gpus(machine: Machine, devices: DriverReport) -> list[Finding]:
    found = []
    for index, why in devices.nameless.items():
        found += Check.GPUS.problem(
            f"GPU {index} cannot read its UUID, so it gets no new slices: {why}",
            "look for its Xid in the kernel's log (dmesg | grep Xid); if it does not come back, reboot the node",
        )
    if not devices.gpus and not found:
        return Check.GPUS.problem(
            "there is no GPU", "check whether `nvidia-smi -L` lists any, and whether the container was given them"
        )
    for gpu in devices.gpus:
        name = called(gpu)
        if gpu.lost:
            said = gpu.health_message or "it does not answer"
            found += Check.GPUS.problem(
                f"{name} is lost: {said}",
                "look for its Xid in the kernel's log (dmesg | grep Xid); if it does not come back, "
                + reset_of(gpu.uuid),
            )
        elif not gpu.healthy:
            found += Check.GPUS.problem(
                f"{name} gets no new slices: {gpu.health_message or 'it is not healthy'}",
                "do what this says; how one GPU is reset is in docs/operations.md",
            )
        else:
            found += Check.GPUS.ok(f"{name}: {_sizes_of(gpu)}")
        found += _check_model(machine, devices, gpu)
        found += _check_mig(gpu)
    return found


def check_instances(machine: Machine, devices: DriverReport) -> list[Finding]:
    """Whether foreign GPU instances exist, and whether those of fixed layouts can be assigned."""
    ours = {place for record in machine.journal.records for place in _instances_of(record)}
    foreign = [
        (gpu, instance)
        for gpu in devices.gpus
        for instance in gpu.instances
        if (gpu.uuid, instance.gi_id) not in ours and not gpu.fixed_layout
    ]
    unusable = _unusable(devices)
    if not foreign:
        return [*unusable, *Check.INSTANCES.ok("there are no foreign GPU instances")]
    named = ", ".join(f"{instance.profile} at {instance.start} of {called(gpu)}" for gpu, instance in foreign[:4])
    if machine.journal.problem:
        what = f"the owners of {len(foreign)} GPU instances are unknown, because the journal cannot be read: {named}"
        return [*unusable, *Check.INSTANCES.warning(what, "destroy none of them; fix the journal first")]
    gpu, instance = foreign[0]
    one = f"-i {gpu.uuid} -gi {instance.gi_id}"  # without ids it destroys all instances of the node, tenants' too
    return [
        *unusable,
        *Check.INSTANCES.warning(
            f"{len(foreign)} GPU instances are not in this node's journal: {named}",
            ("" if machine.journal.exists else "if an agent served this node, name its SLUICE_DATA_DIR first; else ")
            + "leave them (they are counted as taken, and never touched) or destroy each by its ids, the first with "
            f"nvidia-smi mig -dci {one}, then nvidia-smi mig -dgi {one}; without ids all of the node's are destroyed",
        ),
    ]


def _sizes_of(gpu: GpuReport) -> str:
    memory = f"{gpu.memory_mib} MiB" if gpu.memory_mib else "its memory is unknown, so it is granted whole"
    return f"{memory}, {gpu.multiprocessors} SMs" if gpu.multiprocessors else memory


def _unusable(devices: DriverReport) -> list[Finding]:
    said = [
        f"{instance.profile} at {instance.start} of {called(gpu)}: {instance.unusable or 'it has no compute instance'}"
        for gpu in devices.gpus
        for instance in gpu.instances
        if gpu.fixed_layout and (instance.unusable or not instance.uuid)
    ]
    said += [
        f"{called(gpu)} has no instance at all"
        for gpu in devices.gpus
        if gpu.fixed_layout and gpu.mig_enabled and not gpu.lost and not gpu.instances
    ]
    if not said:
        return []
    remedy = "create them as intended: nvidia-smi mig -cgi, -cci, or mig-parted"
    what = f"of fixed layouts {len(said)} cannot be handed out: {'; '.join(said[:4])}"
    return Check.INSTANCES.warning(what, remedy)


def check_compute_mode(machine: Machine, devices: DriverReport) -> list[Finding]:
    """Whether a GPU is left in a mode in which only one process may use it."""
    exclusive = machine.exclusive()
    if exclusive is None:
        return Check.COMPUTE_MODE.warning(
            "the compute modes of the GPUs are not known: nvidia-smi does not report them",
            "install nvidia-smi, or look with the driver's tools of this node",
        )
    homes = {home.gpu for home in machine.journal.records if isinstance(home, SharedDeviceRecord) and not home.profile}
    left = [gpu for gpu in devices.gpus if gpu.uuid in exclusive and gpu.uuid not in homes]
    if not left:
        return Check.COMPUTE_MODE.ok("no GPU is left in compute mode EXCLUSIVE_PROCESS")
    if machine.journal.problem:
        what = f"whether {called(left[0])} is in compute mode EXCLUSIVE_PROCESS for its shares is not known"
        return Check.COMPUTE_MODE.warning(what, "leave its mode as it is; fix the journal first")
    why = "although it is not shared: a whole-GPU pod with two processes would fail on it"
    found = []
    for gpu in left:
        what = f"{called(gpu)} is in compute mode EXCLUSIVE_PROCESS {why}"
        found += Check.COMPUTE_MODE.warning(what, f"nvidia-smi -i {gpu.uuid} -c DEFAULT")
    return found


def kernel_version(machine: Machine) -> str | None:
    """The version of the loaded kernel module; empty when it is not known, None when there is none."""
    try:
        text = _version_file(machine).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = _KERNEL_VERSION.search(text.partition("\n")[0])
    return found[1] if found else ""


def called(gpu: GpuReport) -> str:
    return f"GPU {gpu.index} ({gpu.model})"


def _version_file(machine: Machine) -> Path:
    return machine.root / "proc/driver/nvidia/version"


def _check_model(machine: Machine, devices: DriverReport, gpu: GpuReport) -> list[Finding]:
    if machine.simulated or not devices.driver_version:
        return []
    floor = next((floor for pattern, floor in DRIVER_FLOORS if re.search(rf"\b(?:{pattern})", gpu.model)), "")
    if not floor or version_of(devices.driver_version) >= version_of(floor):
        return []
    return Check.DRIVER_FOR_GPU.problem(
        f"driver {devices.driver_version} is too old for MIG on {called(gpu)}, which needs {floor}",
        f"install driver {floor} or later",
    )


def _check_mig(gpu: GpuReport) -> list[Finding]:
    if gpu.lost:
        return []
    name = called(gpu)
    if gpu.mig_enabled:
        held = sum(instance.size for instance in gpu.instances)
        said = f"MIG is on, {len(gpu.profiles)} profiles, {held} of {gpu.memory_slices} memory slices taken"
        return Check.MIG.ok(f"{name}: {said}")
    if not gpu.profiles:
        return Check.MIG.ok(f"{name} has no MIG: it is handed out whole, or shared")
    return Check.MIG.ok(
        f"{name}: MIG is off, so it is handed out whole, or shared; to cut it into instances: "
        f"nvidia-smi -i {gpu.uuid} -mig 1, while nothing runs on it"
    )


def _instances_of(record: object) -> list[tuple[str, int | None]]:
    match record:
        case SliceRecord(booking=booking, devices=devices):
            return [(grant.gpu, device.gi_id) for grant, device in zip(booking.devices, devices, strict=False)]
        case SharedDeviceRecord(gpu=gpu, device=device):
            return [(gpu, device.gi_id)]
        case WarmRecord(gpu=gpu, gi_id=gi_id):
            return [(gpu, gi_id)]
        case _:
            return []
