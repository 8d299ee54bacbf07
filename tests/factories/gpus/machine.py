"""A node as preflight sees it: all well, in a folder, and each thing of it can be made wrong."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from factories.agent_driver import short_folder

from sluice.contracts.fleet_file.fleet_spec import parse_fleet
from sluice.contracts.ids import NodeName
from sluice_node_agent.device.processes import Processes
from sluice_node_agent.preflight.environment import check_machine
from sluice_node_agent.preflight.findings import Check, Finding, Machine, Ran
from sluice_node_agent.preflight.permissions import INITIAL_PID_NAMESPACE
from sluice_node_agent.simulated.backend import SimulatedBackend
from sluice_node_agent.simulated.hardware_file import HardwareFile

NODE = NodeName("n1")
FLEET = """
[[node]]
name = "n1"
gpus = [{ model = "a100-40gb", count = 1, mig = true }, { model = "h100-sxm-80gb", count = 1, mig = false }]
timing = { create_ms = 0, destroy_ms = 0 }
"""
PODS_DIR = Path("/run/sluice/pods")
ROOT_MOUNT = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw"
RUN_MOUNT = "25 22 0:23 / /run rw,nosuid shared:5 - tmpfs tmpfs rw,size=1g"
"""Lines of /proc/self/mountinfo, as a kernel writes them."""
POD_PID, POD_UID = 950, "0d2f3a44-9c1e-4b7a-8f10-2b6c5d4e3f21"
DRIVER = "580.65.06"
PROC_VERSION = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build  (u@h)\nGCC 12.2.0\n"
ALL_RIGHTS = (1 << 41) - 1
TOOLKIT = "NVIDIA Container Toolkit CLI version 1.20.0\ncommit: 62bd0154"


class Gpus(SimulatedBackend):
    """Simulated GPUs as a driver of a version would show them."""

    version = DRIVER

    def driver_version(self) -> str:
        return self.version


def programs(**said):
    """A `run` with the output of some programs, by name."""

    def run(command):
        answer = said.get(Path(command[0]).name.replace("-", "_"), Ran(None, "No such file or directory"))
        return answer if isinstance(answer, Ran) else Ran(0, answer)

    return run


def process(root: Path, pid: int, *command: str, environ: str = "") -> None:
    place = root / str(pid)
    place.mkdir(parents=True)
    (place / "cmdline").write_text("".join(f"{word}\0" for word in command))
    (place / "comm").write_text(f"{Path(command[0]).name[:15]}\n")
    (place / "cgroup").write_text("0::/system.slice/x.service")
    (place / "environ").write_text(environ)


def made_hardware(folder: Path) -> HardwareFile:
    """One A100 cut into instances, one H100 whole."""
    file = HardwareFile(folder / "hardware.json")
    file.make(parse_fleet(FLEET, origin="test").nodes[0])
    return file


@contextlib.contextmanager
def well_made(hardware: HardwareFile) -> Iterator[Machine]:
    """A real node that is all well, in a folder with a short path that all users may pass through."""
    with short_folder() as folder:
        folder.chmod(0o755)
        root = folder / "root"
        proc = root / "proc"
        (proc / "driver/nvidia/capabilities/mig").mkdir(parents=True)
        (proc / "driver/nvidia/version").write_text(PROC_VERSION)
        (root / "dev/nvidia-caps").mkdir(parents=True)
        for minor, name in ((1, "config"), (2, "monitor")):
            text = f"DeviceFileMinor: {minor}\nDeviceFileMode: 256\nDeviceFileModify: 1\n"
            (proc / f"driver/nvidia/capabilities/mig/{name}").write_text(text)
            (root / f"dev/nvidia-caps/nvidia-cap{minor}").touch()
        (proc / "self/ns").mkdir(parents=True)
        (proc / "self/ns/pid").symlink_to(INITIAL_PID_NAMESPACE)
        (proc / "self/mountinfo").write_text(f"{ROOT_MOUNT}\n{RUN_MOUNT}\n")
        process(proc, 1, "/sbin/init")
        process(proc, 900, "/usr/bin/kubelet")
        process(proc, POD_PID, "/pause")
        (proc / str(POD_PID) / "cgroup").write_text(f"0::/kubepods/burstable/pod{POD_UID}/7f7f\n")
        (folder / "data").mkdir(mode=0o755)
        yield Machine(
            node=NODE,
            simulated=False,
            root=root,
            processes=Processes(proc),
            uid=0,
            capabilities=ALL_RIGHTS,
            data_dir=folder / "data",
            mps_root=folder / "data/mps/n1",
            pods_dir=PODS_DIR,
            mps_control="/usr/bin/nvidia-cuda-mps-control",
            open_gpus=lambda: Gpus(hardware),
            exclusive=frozenset,
            run=programs(nvidia_cuda_mps_control="", nvidia_ctk=TOOLKIT),
            find_program=lambda name: f"/usr/bin/{name}",
        )


def version_file(machine: Machine) -> Path:
    """Where the kernel module shows its version."""
    return machine.root / "proc/driver/nvidia/version"


def found(machine: Machine, check: Check) -> list[Finding]:
    return [finding for finding in check_machine(machine) if finding.check is check]


def only(machine: Machine, check: Check, level: str) -> Finding:
    """The one finding of a check that is not ok; nothing else is wrong with the machine."""
    wrong = [finding for finding in check_machine(machine) if finding.level != "ok"]
    assert [(finding.check, finding.level) for finding in wrong] == [(check, level)], wrong
    assert wrong[0].remedy
    return wrong[0]
