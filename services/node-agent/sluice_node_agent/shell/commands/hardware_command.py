"""`sluice-node-agent hardware`: changes a simulated node behind the agent's back, for operators and tests: only the
hardware file, with the same refusals as the agent gets."""

import argparse
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import msgspec

from sluice.contracts.fleet_file.fleet_spec import FaultValue
from sluice.runtime.errors import ServiceError
from sluice_node_agent.core.events import HolderKind
from sluice_node_agent.device.port import DeviceError
from sluice_node_agent.shell.paths import hardware_path
from sluice_node_agent.simulated.backend import SimulatedBackend
from sluice_node_agent.simulated.hardware_file import Faults, Gpu, HardwareFile, HardwareFileError, Process, faults_from
from sluice_node_agent.simulated.reports import refuse_second_context

_FAULTS = Faults.__struct_fields__


def change_hardware(arguments: Sequence[str]) -> int:
    """Carry out one command. Returns the exit code: 0, 1 when the hardware refused, 2 for a wrong command."""
    wanted = _parser().parse_args(arguments)
    try:
        file = HardwareFile(hardware_path(wanted.data, wanted.node))
        if not file.exists:
            raise HardwareFileError(f"--data {wanted.data}: no simulated node {wanted.node!r}; see `sluice up`")
        said = wanted.do(file, wanted)
    except (ServiceError, DeviceError) as error:
        sys.stderr.write(f"sluice-node-agent: {error}\n")
        return 1
    sys.stdout.write(f"{said}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sluice-node-agent", description="Without arguments: run the agent, configured by SLUICE_* variables."
    )
    hardware = parser.add_subparsers(required=True).add_parser(
        "hardware", help="change the hardware of a simulated node"
    )
    hardware.add_argument("--data", type=Path, default=Path(os.environ.get("SLUICE_DATA_DIR", ".")), help="data folder")
    hardware.add_argument("node")
    what = hardware.add_subparsers(required=True)
    what.add_parser("show", help="print it as JSON").set_defaults(do=_show)
    what.add_parser("reboot", help="instances and processes vanish").set_defaults(do=_reboot)
    fault = what.add_parser(
        "fault", help=f"inject a fault, for instance gpu_lost=0 slow=5 (known: {', '.join(_FAULTS)})"
    )
    fault.add_argument("switches", nargs="+", metavar="NAME=VALUE")
    fault.set_defaults(do=_fault)
    start = what.add_parser("start-process", help="run a process on a device")
    start.add_argument("device", help="UUID of a GPU or MIG device")
    start.add_argument("--owner", default="", help="UID of its pod")
    start.add_argument("--kind", choices=get_args(HolderKind), default="compute", help="what it does there")
    start.add_argument("--name", default="python", help="what it is called")
    start.add_argument("--memory-mib", type=_mib, default=0, help="device memory that it holds")
    start.add_argument("--busy-percent", type=_percent, default=0.0, help="of the time in which it computes")
    start.set_defaults(do=_start_process)
    stop = what.add_parser("stop-process", help="end a process")
    stop.add_argument("pid", type=int)
    stop.set_defaults(do=_stop_process)
    create = what.add_parser(
        "create", help="create an instance by hand: a foreign one for the agent, or one of a fixed layout"
    )
    create.add_argument("gpu", type=int, help="index")
    create.add_argument("profile")
    create.add_argument("start", type=int, help="memory slice")
    create.set_defaults(do=_create)
    destroy = what.add_parser("destroy", help="destroy an instance by hand")
    destroy.add_argument("gpu", type=int, help="index")
    destroy.add_argument("start", type=int, help="memory slice")
    destroy.set_defaults(do=_destroy)
    return parser


def _mib(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative; it must be 0 or more MiB")
    return value


def _percent(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text} is out of range; it must be 0 to 100 percent")
    return value


def _show(file: HardwareFile, _: argparse.Namespace) -> str:
    return msgspec.json.format(msgspec.json.encode(file.read()), indent=2).decode()


def _reboot(file: HardwareFile, _: argparse.Namespace) -> str:
    return f"boot {file.reboot()}"


def _fault(file: HardwareFile, wanted: argparse.Namespace) -> str:
    with file.changing() as hardware:
        values: dict[str, FaultValue] = msgspec.to_builtins(hardware.faults)
        for switch in wanted.switches:
            name, _, value = switch.partition("=")
            values[name] = _number(value)
        hardware.faults = faults_from(values, "fault")
        return " ".join(f"{name}={value}" for name, value in msgspec.to_builtins(hardware.faults).items())


def _number(text: str) -> FaultValue:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def _start_process(file: HardwareFile, wanted: argparse.Namespace) -> str:
    with file.changing() as hardware:
        for gpu in hardware.gpus:
            if wanted.device in {gpu.uuid, *(instance.uuid for instance in gpu.instances)}:
                taken = {process.pid for each in hardware.gpus for process in each.processes}
                pid = next(
                    number for number in iter(lambda: random.randrange(1000, 1 << 22), -1) if number not in taken
                )
                new = Process(
                    pid=pid,
                    owner=wanted.owner,
                    device=wanted.device,
                    name=wanted.name,
                    kind=wanted.kind,
                    memory_mib=wanted.memory_mib,
                    busy_percent=wanted.busy_percent,
                )
                refuse_second_context(gpu, new)
                gpu.processes.append(new)
                return f"pid {pid}"
    raise HardwareFileError(f"there is no device {wanted.device!r}")


def _stop_process(file: HardwareFile, wanted: argparse.Namespace) -> str:
    with file.changing() as hardware:
        for gpu in hardware.gpus:
            for process in gpu.processes:
                if process.pid == wanted.pid:
                    gpu.processes.remove(process)
                    return f"pid {wanted.pid} ended"
    raise HardwareFileError(f"there is no process {wanted.pid}")


def _create(file: HardwareFile, wanted: argparse.Namespace) -> str:
    gpu = _gpu(file, wanted.gpu)
    gpus = SimulatedBackend(file, by_hand=True)
    profiles = {profile.name: profile for profile in gpus.read_gpu(gpu.uuid).profiles}
    profile = profiles.get(wanted.profile)
    if profile is None:
        raise HardwareFileError(f"{gpu.product_name} has no profile {wanted.profile!r}; it has {', '.join(profiles)}")
    size = next((span.size for span in profile.placements if span.start == wanted.start), 0)
    gi_id = gpus.create_gpu_instance(gpu.uuid, profile.profile_id, wanted.start, size)
    return gpus.create_compute_instance(gpu.uuid, gi_id)


def _destroy(file: HardwareFile, wanted: argparse.Namespace) -> str:
    gpu = _gpu(file, wanted.gpu)
    gpus = SimulatedBackend(file, by_hand=True)
    for instance in gpu.instances:
        if instance.start == wanted.start:
            if instance.uuid:
                gpus.destroy_compute_instance(gpu.uuid, instance.gi_id, instance.uuid)
            gpus.destroy_gpu_instance(gpu.uuid, instance.gi_id, instance.start, instance.size)
            return f"destroyed {instance.profile} at {instance.start}:{instance.size}"
    raise HardwareFileError(f"GPU {wanted.gpu} has no instance at {wanted.start}")


def _gpu(file: HardwareFile, index: int) -> Gpu:
    gpus = file.read().gpus
    if not 0 <= index < len(gpus):
        raise HardwareFileError(f"there is no GPU {index}; the node has {len(gpus)}")
    return gpus[index]
